"""Engines of other versions, each in an environment of its own, built from the package index.

An environment is a folder of a cache, with an interpreter, the engine and NumPy. Nothing of the interpreter
that runs kvsuite can be seen in it, and kvsuite is not installed in it. `ensure` builds what is missing;
`find` never builds. What is built for which engine: `kvsuite.engine.environments.recipes`.
"""

from kvsuite.engine.environments.index import released
from kvsuite.engine.environments.manifest import Environment
from kvsuite.engine.environments.recipes import NEWEST, engine_names
from kvsuite.engine.environments.store import ensure, environments, find, remove

__all__ = ["NEWEST", "Environment", "engine_names", "ensure", "environments", "find", "released", "remove"]
