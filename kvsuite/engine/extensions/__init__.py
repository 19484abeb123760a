"""Small engines over the reference, one capability each: what a case asks for that the reference does not do."""
