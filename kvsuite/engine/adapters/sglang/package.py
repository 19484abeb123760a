"""The parts of SGLang that hold its cache, imported without its kernels, its server or a device."""

from __future__ import annotations

import importlib
import importlib.metadata
import sys
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from kvsuite.engine.adapters.sandbox import Rules, Sandbox
from kvsuite.errors import ConfigError, EngineError

NAME = "sglang"
_CACHE = "sglang.srt.mem_cache"
_PARTS = {
    "radix_cache": ("RadixCache", "RadixKey"),
    "cache_init_params": ("CacheInitParams",),
    "base_prefix_cache": ("MatchPrefixParams",),
    "memory_pool": ("ReqToTokenPool",),
    "allocator": ("TokenToKVPoolAllocator", "PagedTokenToKVPoolAllocator"),
    "allocation": ("alloc_token_slots", "alloc_paged_token_slots_extend", "alloc_paged_token_slots_decode"),
    "common": ("release_kv_cache",),
}
RULES = Rules(
    package=NAME,
    real=(
        _CACHE,
        "sglang.srt.constants",
        "sglang.srt.disaggregation.kv_events",
        "sglang.srt.environ",
        "sglang.srt.platforms",
        "sglang.srt.plugins",
        "sglang.srt.utils.common",
        "sglang.srt.utils.torch_memory_saver_adapter",
    ),
    shells={
        "sglang": None,
        "sglang.srt": None,
        "sglang.srt.disaggregation": None,
        "sglang.srt.utils": "sglang.srt.utils.common",
    },
    optional=(
        *(
            "IPython",
            "PIL",
            "aiohttp",
            "dill",
            "fastapi",
            "orjson",
            "pybase64",
            "sentencepiece",
            "setproctitle",
        ),
        *("sgl_kernel", "starlette", "torchvision", "triton", "tvm_ffi", "uvloop", "zmq"),
    ),
    # One rank that decodes a token a step: what a server started with defaults would publish.
    answers={
        "sglang.srt.runtime_context": {
            "get_spec": lambda: SimpleNamespace(speculative_algorithm=None),
            "get_serving": lambda: SimpleNamespace(strip_thinking_cache=False),
        }
    },
)


@dataclass(frozen=True, slots=True)
class Package:
    """SGLang as it is installed here. Members are named as SGLang names them."""

    version: str
    torch: Any
    members: SimpleNamespace
    paged_module: Any
    left_out: tuple[str, ...]
    """Modules of SGLang that stand-ins took the place of."""

    def refuse_kernels(self, page_size: int) -> None:
        """Refuse pages where slots would come from a kernel: without a device they are uninitialised memory.

        **Raises:** `ConfigError` when this release has no native allocation of pages, or would not use it.
        """
        if page_size == 1:
            return
        native = all(
            hasattr(self.paged_module, name) for name in ("alloc_extend_naive", "alloc_decode_naive")
        )
        platform = getattr(self.paged_module, "current_platform", None)
        if native and platform is not None and not platform.capabilities.supports_triton:
            return
        raise ConfigError(
            f"sglang {self.version} allocates pages of {page_size} tokens with a Triton kernel "
            f"({self.paged_module.__name__} has {'a' if native else 'no'} native path), which the sandbox "
            "leaves out: take block size 1, or a release that has alloc_decode_naive and a CPU platform"
        )


_loaded: Package | EngineError | None = None
"""What came of the one import a process has: half a package stays behind where it fails."""


def load() -> Package:
    """Return SGLang, imported once a process.

    **Raises:** `EngineError` when it or torch is not installed, or lacks a part that the adapter drives.
    """
    global _loaded
    if _loaded is None:
        try:
            _loaded = _import()
        except EngineError as error:
            _loaded = error
    if isinstance(_loaded, EngineError):
        raise _loaded
    return _loaded


def _import() -> Package:
    try:
        version = importlib.metadata.version(NAME)
        torch: Any = importlib.import_module("torch")
    except (ImportError, importlib.metadata.PackageNotFoundError) as error:
        raise EngineError(
            f"engine 'sglang' needs the packages sglang and torch here ({error}): install them, or ask for "
            "sglang@VERSION, which has an environment of its own"
        ) from error
    if _CACHE in sys.modules:
        raise EngineError(
            "sglang is imported already, by somebody else: open the engine first, or in a process of its own"
        )
    sandbox = Sandbox(RULES)
    with sandbox.importing():
        members = {
            name: member
            for module, names in _PARTS.items()
            for name, member in _members(module, names, version)
        }
        paged = importlib.import_module(members["PagedTokenToKVPoolAllocator"].__module__)
    return Package(version, torch, SimpleNamespace(**members), paged, tuple(sandbox.left_out))


def _members(module: str, names: tuple[str, ...], version: str) -> list[tuple[str, Any]]:
    try:
        found = importlib.import_module(f"{_CACHE}.{module}")
        return [(name, getattr(found, name)) for name in names]
    except (ImportError, AttributeError) as error:
        raise EngineError(
            f"sglang {version} lacks {module} ({', '.join(names)}) as this adapter drives it ({error}): "
            "ask for 0.5.22 or later"
        ) from error
