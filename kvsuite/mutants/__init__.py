"""Deliberately broken engines, one fault each: they show that every check can fail.

They are reached by name only, as ``mutant:<fault>``; ``MUTANTS`` is the table of them, filled by the modules
of this folder.
"""

import importlib
import pkgutil

from kvsuite.mutants.table import MUTANTS, Mutant

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")

__all__ = ["MUTANTS", "Mutant"]
