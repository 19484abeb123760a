"""Contiguous controls: one unbroken run of slots a sequence, with the holes and the waste that brings."""
