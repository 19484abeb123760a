"""A replay beside an engine in another interpreter: the server that runs there, and what it sends."""
