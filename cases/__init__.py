"""The cases: what kvsuite asks of every engine. A wheel ships this folder as ``kvsuite.cases``."""
