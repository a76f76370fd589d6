"""Which of several equal elements an index names, where torch's documentation leaves that open.

`torch.topk`: "the indices of tied elements are not guaranteed to be stable and may vary across different invocations".
`torch.kthvalue`: for a CUDA tensor with several valid values it "may nondeterministically return indices for any of
them". So an index is right if the element that it names has the value that was returned beside it.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from tests.fidelity.interpreter import plain
from tests.fidelity.op_samples import Sample

Observation = Mapping[str, Any]
VALUES, INDICES = "r0", "r1"  # what the program of a sample calls them
OPERATORS = ("topk", "kthvalue")  # (input, k, dim=-1, …)


def name_equal_elements(sample: Sample, observed: Sequence[Observation]) -> bool:
    """Whether each index that a run of the sample returned names an element with the value beside it."""
    values, indices = (_look(observed, name) for name in (VALUES, INDICES))
    places = _places(sample, values["shape"], indices["values"])
    found = [_at(sample.args[0], place, values["tolerance"]) for place in places]
    return found == list(values["values"])


def _look(observed: Sequence[Observation], name: str) -> Observation:
    return next(each for each in observed if each["of"] == name)


def _places(sample: Sample, shape: Sequence[int], indices: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """Where each index points to in the input; the values are the first that there are, row by row."""
    dims = sample.args[0].dim()
    dim = sample.args[2] if len(sample.args) > 2 else sample.kwargs.get("dim", -1)
    for place, index in zip(itertools.product(*map(range, shape)), indices, strict=False):
        around = list(place)
        if len(around) < dims:  # without `keepdim`
            around.insert(dim % dims, 0)
        if around:
            around[dim] = index
        yield tuple(around)


def _at(tensor: torch.Tensor, place: tuple[int, ...], tolerance: str) -> Any:
    try:
        return plain(tensor[place].item(), tolerance)
    except IndexError:
        return "no such element"
