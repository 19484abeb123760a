"""Engines that live in a process and an interpreter of their own."""
