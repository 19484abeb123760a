"""Deliberately broken engines, one fault each: they show that every check can fail.

They are reached by name only, as ``mutant:<fault>``; ``MUTANTS`` is the table of them.
"""

from kvsuite.mutants import behaviour, content, misreports
from kvsuite.mutants.table import MUTANTS, Mutant

__all__ = ["MUTANTS", "Mutant", "behaviour", "content", "misreports"]
