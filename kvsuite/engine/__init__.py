"""Engines: the contract, the registry, the reference engine and the contiguous controls."""
