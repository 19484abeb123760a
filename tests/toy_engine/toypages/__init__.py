"""A toy page manager with an interface of its own, and the adapter under which kvsuite drives it."""
