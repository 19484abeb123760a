"""Readers of trace files: one module a format, and one line in the registry."""
