"""The kernel whose time decides on a device, or why none does."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsuite.device.attention.kernels import available, kernel_named
from kvsuite.errors import ConfigError, KernelUnavailable

if TYPE_CHECKING:
    from kvsuite.cache.layout import Dtype
    from kvsuite.device.attention.call import DecodeAttention

_WITHOUT_CONTROL = ("flashinfer", "torch-varlen")
"""These need a table. The control they are held against is this project's own."""


def deciding_kernel(device: str, dtype: Dtype, name: str | None = None) -> DecodeAttention:
    """Return the kernel called ``name``, else the first that runs and whose time says what a block costs.

    **Raises:** `KernelUnavailable` where there is none, with the reasons; `ConfigError` for an unknown name
    or a dtype that the named one does not take.
    """
    try:
        return _first_deciding(device, dtype) if name is None else _named(name, dtype)
    except KernelUnavailable as error:
        raise KernelUnavailable(
            f"no latency verdict can be given on {device}: {error}", error.looked_for
        ) from error


def control_for(kernel: DecodeAttention, device: str, dtype: Dtype) -> DecodeAttention:
    """Return what reads contiguous memory beside ``kernel``: itself, or where it cannot, another.

    **Raises:** `KernelUnavailable` where there is none.
    """
    return deciding_kernel(device, dtype) if kernel.name in _WITHOUT_CONTROL else kernel


def _first_deciding(device: str, dtype: Dtype) -> DecodeAttention:
    choices = available(device, dtype)
    for choice in choices:
        if choice.kernel is not None and choice.kernel.latency_verdict:
            return choice.kernel
    told = "; ".join(f"{choice.name}: {choice.problem}" for choice in choices if choice.problem)
    raise KernelUnavailable(f"no attention kernel whose time decides: {told}")


def _named(name: str, dtype: Dtype) -> DecodeAttention:
    kernel = kernel_named(name)
    if dtype not in kernel.dtypes:
        taken = ", ".join(each.value for each in kernel.dtypes)
        raise ConfigError(f"{name} takes {taken}, not {dtype.value}")
    if not kernel.latency_verdict:
        raise KernelUnavailable(f"the time of {name} says nothing of a block size: other work hides it")
    return kernel
