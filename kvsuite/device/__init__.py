"""The one home of torch: which device, KV slots as tensors on it, and what the device says of its memory.

`buffer`, `patterns`, `slots`, `cuda` and `worker` need torch; the other modules do not, and `select` and
`memory` are imported where there is none.
"""
