"""The byte ledger: rows derived from snapshots, timelines of them, and the laws they obey."""
