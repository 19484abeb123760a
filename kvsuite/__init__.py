"""kvsuite: regression and conformance suite for paged KV caches."""

__version__ = "0.1.0"
