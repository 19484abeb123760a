"""Decode attention through the block table: kernels of one signature, and what they are timed against.

call       the signature: a pool's keys and values, the blocks a kernel takes, what it is given
c_kernel   the CPU's kernel, built by the system's compiler on first use (`compiler`, `decode.c`)
triton_kernel, flashinfer, varlen      CUDA: this project's own, and two that a user may have
sdpa       torch's attention: correct over gathered blocks, and the yardstick on contiguous memory
pool       one buffer for every block size, in-order and shuffled tables, the contiguous control
kernels    which of them can run here, in order of preference, and why the others cannot
"""
