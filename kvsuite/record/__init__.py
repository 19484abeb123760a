"""The run record: one JSON line a fact, versioned, written as it happens and read back whole."""
