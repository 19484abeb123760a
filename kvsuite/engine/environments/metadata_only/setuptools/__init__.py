"""A build backend that runs nothing, under the name that source distributions ask for."""
