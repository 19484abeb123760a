"""Replay: a scheduler and a driver take a trace through an engine; a worker holds the content."""
