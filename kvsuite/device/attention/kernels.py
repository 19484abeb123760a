"""The kernels by name, and which of them a device can have."""

from __future__ import annotations

import importlib
import importlib.util
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvsuite.device.attention.c_kernel import CKernel
from kvsuite.device.attention.flashinfer import FlashInferKernel
from kvsuite.device.attention.sdpa import GatherSdpa
from kvsuite.device.attention.varlen import VarlenKernel
from kvsuite.device.select import cuda_problem
from kvsuite.errors import ConfigError, KernelUnavailable

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvsuite.cache.layout import Dtype
    from kvsuite.device.attention.call import DecodeAttention


@dataclass(frozen=True, slots=True)
class Choice:
    """A kernel that can run, or why it cannot: one of ``kernel`` and ``problem`` is ``None``."""

    name: str
    kernel: DecodeAttention | None
    problem: str | None


def available(device: str, dtype: Dtype) -> tuple[Choice, ...]:
    """Return the kernels for ``cpu`` or ``cuda:N`` in order of preference, or what keeps each from running.

    The last is correct everywhere and decides nothing about latency.
    """
    return tuple(_choice(name, device, dtype) for name in _preference(device))


def best_kernel(device: str, dtype: Dtype) -> DecodeAttention:
    """Return the first of `available` that runs; ``latency_verdict`` says whether its time decides.

    **Raises:** `KernelUnavailable` where none does, with the reason of each.
    """
    choices = available(device, dtype)
    found = next((choice.kernel for choice in choices if choice.kernel is not None), None)
    if found is None:
        told = "; ".join(f"{choice.name}: {choice.problem}" for choice in choices)
        raise KernelUnavailable(f"no attention kernel for {dtype.value} on {device}: {told}")
    return found


def kernel_names() -> tuple[str, ...]:
    """Return every name that `kernel_named` knows."""
    return tuple(_MAKERS)


def kernel_named(name: str) -> DecodeAttention:
    """Return the kernel of that name.

    **Raises:** `ConfigError` for an unknown name, `KernelUnavailable` where it cannot be had here.
    """
    try:
        make = _MAKERS[name]
    except KeyError:
        raise ConfigError(
            f"unknown attention kernel {name!r}: expected one of {', '.join(_MAKERS)}"
        ) from None
    return make()


def _preference(device: str) -> tuple[str, ...]:
    if device == "cpu":
        return ("c-prefetch", "c-plain", "gather-sdpa")
    return ("triton", "flashinfer", "torch-varlen", "gather-sdpa")


def _choice(name: str, device: str, dtype: Dtype) -> Choice:
    index = int(device.rpartition(":")[2]) if ":" in device else 0
    problem = None if device == "cpu" else cuda_problem(index)
    if problem is not None:
        return Choice(name, None, problem)
    try:
        kernel = kernel_named(name)
    except KernelUnavailable as error:
        return Choice(name, None, str(error))
    if dtype not in kernel.dtypes:
        taken = ", ".join(each.value for each in kernel.dtypes)
        return Choice(name, None, f"takes {taken}, not {dtype.value}")
    return Choice(name, kernel, None)


def _triton() -> DecodeAttention:
    if importlib.util.find_spec("triton") is None:
        raise KernelUnavailable("the package triton is not installed: pip install triton", ("triton",))
    kernel: DecodeAttention = importlib.import_module("kvsuite.device.attention.triton_kernel").TritonKernel()
    return kernel


_MAKERS: dict[str, Callable[[], DecodeAttention]] = {
    "c-prefetch": CKernel,
    "c-plain": lambda: CKernel(prefetch=False),
    "triton": _triton,
    "flashinfer": FlashInferKernel,
    "torch-varlen": VarlenKernel,
    "gather-sdpa": GatherSdpa,
}
