"""Autocast for "cuda": torch's own switch, with kernels that cast the tensors of the emulated device.

Torch's kernels for it are there without CUDA, but they cast CUDA's tensors alone, and none comes to them. So the
dispatcher is told to pass by that layer while autocast is on, and finds other kernels there, by the same lists.
"""

# ruff: noqa: SLF001 - the dispatcher's state of this thread has no public name

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from tsgraph.backends.emulated.dispatcher import named, schema, unseen_by_functions
from tsgraph.backends.emulated.residence import Residence
from tsgraph.backends.emulated.trees import map_leaves, tensors_in
from tsgraph.testing.cuda import cast_lists
from tsgraph.testing.cuda.patches import Patches

_KEY = torch._C.DispatchKey.AutocastCUDA
_LAYER = torch._C.DispatchKeySet(_KEY)

Eligible = Callable[[torch.Tensor], bool]
Cast = Callable[[Eligible, Any, tuple[Any, ...], dict[str, Any]], Any]


def put_autocast(patches: Patches) -> None:
    """Replace what switches autocast."""
    patches.put(torch, "set_autocast_enabled", _setter(torch.set_autocast_enabled))


def _setter(put: Callable[..., Any]) -> Callable[..., Any]:
    """Torch means CUDA where no device is named."""

    @functools.wraps(put)
    def switch(*args: Any) -> None:
        device, enabled = args if len(args) == 2 else ("cuda", *args)
        put(device, enabled)
        if device == "cuda":
            torch._C._dispatch_tls_set_dispatch_key_included(_KEY, enabled)

    return switch


@contextmanager
def casting(residence: Residence) -> Iterator[None]:
    """Autocast for "cuda" casts the tensors of `residence` that are on the device, in the block."""
    library = torch.library.Library("aten", "IMPL")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it overrides what is there: that is the purpose
            for name, cast in _CASTS.items():
                if _overload(name) is not None:
                    kernel = functools.partial(_run, cast, functools.partial(_is_eligible, residence), _overload(name))
                    library.impl(name, kernel, _KEY.name)
        yield
    finally:
        library._destroy()


def _overload(name: str) -> Any:
    packet, _, overload = name.partition(".")
    return getattr(getattr(torch.ops.aten, packet, None), overload or "default", None)


def _run(cast: Cast, eligible: Eligible, operator: Any, *args: Any, **kwargs: Any) -> Any:
    with unseen_by_functions(), torch._C._ExcludeDispatchKeyGuard(_LAYER):
        return cast(eligible, operator, args, kwargs)


def _is_eligible(residence: Residence, tensor: torch.Tensor) -> bool:
    """As torch has it: of the device, and floating, but not double."""
    floats = tensor.is_floating_point() and tensor.dtype is not torch.float64
    return floats and residence.holds(tensor)


def _to(eligible: Eligible, dtype: torch.dtype, value: Any) -> Any:
    def change(leaf: Any) -> Any:
        return leaf.to(dtype) if isinstance(leaf, torch.Tensor) and eligible(leaf) else leaf

    return map_leaves(change, value)


def _cast_all(eligible: Eligible, dtype: torch.dtype, operator: Any, args: Any, kwargs: Any) -> Any:
    options = {name: _to(eligible, dtype, value) for name, value in kwargs.items()}
    return operator(*_to(eligible, dtype, args), **options)


def _lower(eligible: Eligible, operator: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return _cast_all(eligible, torch.get_autocast_dtype("cuda"), operator, args, kwargs)


def _float(eligible: Eligible, operator: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return _cast_all(eligible, torch.float32, operator, args, kwargs)


def _widest(eligible: Eligible, operator: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    found = any(each.dtype is torch.float32 for each in tensors_in([args, kwargs]) if eligible(each))
    dtype = torch.float32 if found else torch.get_autocast_dtype("cuda")
    return _cast_all(eligible, dtype, operator, args, kwargs)


def _float_by_dtype(eligible: Eligible, operator: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    given = dict(named(operator, args, kwargs))
    if given.get("dtype") is None and eligible(args[0]):
        given["dtype"] = torch.float32
    return operator(**given)


def _float_by_overload(eligible: Eligible, operator: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if not eligible(args[0]):
        return operator(*args, **kwargs)
    other = _overload(cast_lists.FLOAT_BY_OVERLOAD[operator.name().removeprefix("aten::")])
    left_out = {each.name: each.default_value for each in schema(operator).arguments if each.has_default_value()}
    return other(**left_out | dict(named(operator, args, kwargs)), dtype=torch.float32)


_CASTS: dict[str, Cast] = {
    **dict.fromkeys(cast_lists.LOWER, _lower),
    **dict.fromkeys(cast_lists.FLOAT, _float),
    **dict.fromkeys(cast_lists.FLOAT_BY_DTYPE, _float_by_dtype),
    **dict.fromkeys(cast_lists.FLOAT_BY_OVERLOAD, _float_by_overload),
    **dict.fromkeys(cast_lists.WIDEST, _widest),
}
