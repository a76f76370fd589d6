"""Autocast for "cuda": the CPU's own, with CUDA's default dtype.

So host tensors are cast in it too, and which operators are cast to which dtype is the CPU's list.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch.amp.autocast_mode import autocast

from tsgraph.testing.cuda.patches import Patches


def put_autocast(patches: Patches) -> None:
    """Replace what asks for, and sets, autocast of a device."""
    patches.put(autocast, "__init__", _as_cpu(autocast.__init__))
    for name in ("is_autocast_enabled", "get_autocast_dtype", "set_autocast_dtype"):
        patches.put(torch, name, _translated(getattr(torch, name)))
    patches.put(torch, "set_autocast_enabled", _setter(torch.set_autocast_enabled))


def _as_cpu(init: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(init)
    def start(self: Any, device_type: str, dtype: torch.dtype | None = None, *args: Any, **kwargs: Any) -> None:
        if device_type == "cuda":
            device_type, dtype = "cpu", dtype or torch.float16
        init(self, device_type, dtype, *args, **kwargs)

    return start


def _translated(ask: Callable[..., Any]) -> Callable[..., Any]:
    """Torch means CUDA where no device is named."""

    @functools.wraps(ask)
    def translated(device_type: str = "cuda", *args: Any) -> Any:
        return ask("cpu" if device_type == "cuda" else device_type, *args)

    return translated


def _setter(put: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(put)
    def translated(*args: Any) -> Any:
        device, enabled = args if len(args) == 2 else ("cuda", *args)
        return put("cpu" if device == "cuda" else device, enabled)

    return translated
