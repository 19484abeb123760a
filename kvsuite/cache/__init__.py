"""The paged KV cache itself: layout in bytes, blocks, tables, reference counts, prefix keys."""
