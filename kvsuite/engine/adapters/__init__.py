"""Adapters for engines that others make; each imports its engine only when it is opened."""
