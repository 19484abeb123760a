"""The command line. One module a verb; whatever is heavy is imported inside the verb.

Exit codes:

| code | meaning |
|---|---|
| 0 | done, and nothing wrong was found |
| 1 | the ledger, the content read back or a golden is wrong; counts drifted; a stored decision is stale |
| 2 | bad input or usage: a file, an option, a pool, an engine name; a cell of a sweep came to nothing |
| 3 | the asked-for device is absent or does not do what was asked; an engine's environment cannot be had |
| 4 | no option of a sweep meets the SLO on this device |
| 130 | interrupted; nothing was half-written |
| 141 | the reader of standard output has gone, as with a pipe to `head` |
"""
