"""`copy.deepcopy` of a device tensor in a recording: on a GPU, a copy of its storage on the current stream."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch

from tsgraph.backends.emulated.dispatcher import unseen_by_operators
from tsgraph.backends.emulated.operation import Function

if TYPE_CHECKING:
    from tsgraph.backends.emulated.functions import FunctionMode


def deep_copy(mode: FunctionMode, function: Function, args: tuple[Any, ...], options: Mapping[str, Any]) -> Any:
    """`Tensor.__deepcopy__`: torch builds the tensor, and finds that the storage has been copied already."""
    tensor, memo = args
    if not mode.residence.holds(tensor) or not tensor.is_leaf or id(tensor) in memo:
        return function(*args, **options)
    storage, copies = tensor.untyped_storage(), memo.setdefault("torch", {})  # where torch looks
    key = storage._cdata  # noqa: SLF001 - torch's own key
    if key not in copies:
        copies[key] = _bytes_of(storage).clone().untyped_storage()
    return function(*args, **options)


def _bytes_of(storage: torch.UntypedStorage) -> torch.Tensor:
    with unseen_by_operators():
        flat = torch.empty(0, dtype=torch.uint8, device="cpu")
        return flat.set_(storage, 0, (storage.nbytes(),), (1,))
