"""Writes into memory that several elements share: torch refuses them before a kernel runs, its fake kernels do not."""

from __future__ import annotations

from collections import defaultdict
from itertools import combinations

import torch

from tsgraph.backends.emulated.dispatcher import storage_key, unseen_by_functions, unseen_by_operators, written_names
from tsgraph.backends.emulated.operation import Operation

_SHARED = "single memory location"


def refuse_overlaps(operation: Operation) -> None:
    """Raises: RuntimeError, torch's own, if it says so of the same operation on zeros that are laid out alike."""
    groups = _by_storage(operation)
    if not any(map(_is_suspect, groups)):
        return
    zeros = {id(tensor): zero for group in groups for tensor, zero in _laid_out_alike(group)}
    trial = operation.with_leaves(lambda leaf: zeros.get(id(leaf), leaf))
    with unseen_by_functions(), unseen_by_operators(), torch.no_grad():
        try:
            trial.run()
        except RuntimeError as error:
            if _SHARED in str(error):
                raise


Group = list[tuple[torch.Tensor, bool]]  # tensors of one storage, each with whether it is written


def _by_storage(operation: Operation) -> list[Group]:
    written, groups = written_names(operation.operator), defaultdict(list)
    for name, tensor in operation.operands():
        groups[storage_key(tensor.untyped_storage())].append((tensor, name in written))
    return list(groups.values())


def _is_suspect(group: Group) -> bool:
    if any(written and _is_expanded(tensor) for tensor, written in group):
        return True
    pairs = combinations(group, 2)
    return any((one[1] or other[1]) and _meet(one[0], other[0]) for one, other in pairs)


def _is_expanded(tensor: torch.Tensor) -> bool:
    return any(size > 1 and stride == 0 for size, stride in zip(tensor.shape, tensor.stride(), strict=True))


def _meet(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether their bytes may meet, though they are not the same elements."""
    same = (one.data_ptr(), one.shape, one.stride()) == (other.data_ptr(), other.shape, other.stride())
    return not same and max(_span(one)[0], _span(other)[0]) < min(_span(one)[1], _span(other)[1])


def _span(tensor: torch.Tensor) -> tuple[int, int]:
    """The first byte of its storage that it uses, and the one behind the last."""
    first = int(tensor.storage_offset()) * tensor.element_size()
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return first, first + (last + 1) * tensor.element_size() if tensor.numel() else first


def _laid_out_alike(group: Group) -> list[tuple[torch.Tensor, torch.Tensor]]:
    start = min(_span(tensor)[0] for tensor, _ in group)
    with unseen_by_functions(), unseen_by_operators():
        memory = torch.zeros(max(_span(tensor)[1] for tensor, _ in group) - start, dtype=torch.uint8).untyped_storage()
        return [(tensor, _view(memory, tensor, start)) for tensor, _ in group]


def _view(memory: torch.UntypedStorage, tensor: torch.Tensor, start: int) -> torch.Tensor:
    offset = max(0, tensor.storage_offset() - start // tensor.element_size())
    return torch.empty(0, dtype=tensor.dtype).set_(memory, offset, tensor.shape, tensor.stride())
