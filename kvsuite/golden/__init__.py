"""Accepted ledgers: what identifies one, how it is written, and how an observed ledger stands to it.

Pure: nothing here knows pytest. `GoldenStore` is the way in; `docs/goldens.md` is the manual.
"""
