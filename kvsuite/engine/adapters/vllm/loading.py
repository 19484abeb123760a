"""Loads vLLM's block manager from whatever vLLM this interpreter finds, whole or through the import filter.

``full`` imports vLLM as it is, with all that it requires. ``filtered`` reads the same files of the block
manager and leaves the rest of vLLM out (`RULES`). The environment variable ``KVSUITE_VLLM_LOADER`` names one;
otherwise vLLM is loaded whole where torch and transformers are installed. One interpreter loads one vLLM.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import re
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from kvsuite.engine.adapters.vllm.import_filter import ImportFilter, absent_packages
from kvsuite.engine.adapters.vllm.rules import ABSENT, RULES
from kvsuite.errors import EngineError

LOADER_VARIABLE = "KVSUITE_VLLM_LOADER"
LOADERS = ("full", "filtered")
OLDEST = (0, 20, 2)
_WHOLE_NEEDS = ("torch", "transformers")
_VERSION = re.compile(r"^(?:__version__|version)(?: = version)? = ['\"]([^'\"]+)['\"]", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class VllmCore:
    """The modules of one vLLM that the adapter calls, typed as what they are: somebody else's."""

    version: str
    loader: str
    torch: Any
    """The torch whose element types are used, or its stand-in."""
    manager: Any
    utils: Any
    interface: Any
    request: Any
    sampling: Any
    hashing: Any


@cache
def load_core() -> VllmCore:
    """Return the block manager of the vLLM in this interpreter.

    **Raises:** `EngineError` when there is none, it is older than 0.20.2, or it cannot be imported.
    """
    root = package_root("vllm")
    version = version_in(root)
    if release_of(version) < OLDEST:
        oldest = ".".join(map(str, OLDEST))
        raise EngineError(f"vLLM {version} in {root} is older than {oldest}, the first this adapter supports")
    loader = _loader()
    if loader == "full":
        return _imported(version, loader)
    if any(name == "vllm" or name.startswith("vllm.") for name in sys.modules):
        raise EngineError(
            "vllm was imported here before the import filter: use a fresh interpreter, or the full loader"
        )
    sys.meta_path.insert(0, ImportFilter(root, RULES))
    with absent_packages(ABSENT):
        return _imported(version, loader)


def package_root(name: str) -> Path:
    """Return the folder of an installed package, without importing it.

    **Raises:** `EngineError` when it is not installed.
    """
    spec = importlib.util.find_spec(name)
    folders = list(spec.submodule_search_locations or ()) if spec else []
    if not folders:
        raise EngineError(
            f"{name} is not installed for {sys.executable}: ask for a version of it, "
            f"{name}@VERSION, to have it run in an environment of its own"
        )
    return Path(folders[0])


def version_in(root: Path) -> str:
    """Return the version that a vLLM's own ``_version.py`` gives, its local part left out.

    **Raises:** `EngineError` when there is no such file or it gives none.
    """
    file = root / "_version.py"
    found = _VERSION.search(file.read_text(encoding="utf-8")) if file.is_file() else None
    if found is None:
        raise EngineError(f"{file} gives no version: this is no released vLLM")
    return found[1].partition("+")[0]


def release_of(version: str) -> tuple[int, ...]:
    """Return the release numbers of a version.

    >>> release_of("0.27.1rc2")
    (0, 27, 1)
    """
    numbers = re.match(r"\d+(?:\.\d+)*", version)
    return tuple(int(number) for number in numbers[0].split(".")) if numbers else ()


def _loader() -> str:
    asked = os.environ.get(LOADER_VARIABLE)
    if asked in LOADERS:
        return asked
    if asked:
        raise EngineError(f"{LOADER_VARIABLE} is {asked!r}, expected {' or '.join(LOADERS)}")
    whole = all(importlib.util.find_spec(name) is not None for name in _WHOLE_NEEDS)
    return "full" if whole else "filtered"


def _imported(version: str, loader: str) -> VllmCore:
    try:
        return VllmCore(
            version=version,
            loader=loader,
            torch=importlib.import_module("torch"),
            manager=importlib.import_module("vllm.v1.core.kv_cache_manager"),
            utils=importlib.import_module("vllm.v1.core.kv_cache_utils"),
            interface=importlib.import_module("vllm.v1.kv_cache_interface"),
            request=importlib.import_module("vllm.v1.request"),
            sampling=importlib.import_module("vllm.sampling_params"),
            hashing=importlib.import_module("vllm.utils.hashing"),
        )
    except EngineError:
        raise
    except Exception as error:
        other = LOADERS[1 - LOADERS.index(loader)]
        raise EngineError(
            f"vLLM {version} cannot be imported ({loader} loader): {type(error).__name__}: {error}; install "
            f"what it lacks, or set {LOADER_VARIABLE}={other}"
        ) from error
