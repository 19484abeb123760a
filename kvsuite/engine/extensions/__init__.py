"""Small engines over the reference, one capability each: what it does not do, for the cases that ask."""
