"""Traces: what was asked of an engine. Read from a file, made from a seed, or overlaid."""
