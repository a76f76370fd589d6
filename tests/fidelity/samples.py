"""Calls from torch's operator database as programs: eager, then captured and replayed."""

from __future__ import annotations

import functools
import zlib
from collections.abc import Callable
from typing import Any

import torch

from tests.fidelity.grounds import Ground
from tests.fidelity.interpreter import Interpreter, Observation
from tests.fidelity.op_samples import Sample, samples
from tests.fidelity.program import Program

PER_OPERATOR = 2

# `random`: whether two eager calls differ; then only what is made is compared, not its values.
PROGRAM = Program("sample", 0, [
    'fact("inputs", lambda: drawn)',
    ['with attempt("eager") as at:', ["random = differ(call(), call())", 'at("done")']],
    ["if 'random' in globals():", [
        'fact("random", lambda: random)',
        "p0 = torch.cuda.graph_pool_handle()",
        "g0 = torch.cuda.CUDAGraph()",
        ['with attempt("g0") as at:', [
            ["with torch.cuda.graph(g0, pool=p0):", ['at("body")', "made = call()", 'at("end")']],
            "g0.replay()",
            'fact("made", lambda: describe(made))',
            "r0, r1, r2 = (None, None, None) if random else leaves(made)",
        ]],
        'see("r0", "float")', 'see("r1", "float")', 'see("r2", "float")',
    ]],
])  # fmt: skip


def names() -> list[str]:
    """The calls that there are."""
    return [sample.name for sample in samples(limit=PER_OPERATOR) if _is_strided(sample)]


def find(name: str) -> Sample | None:
    """The call of that name; None where this version of torch has no such call, or none to compare."""
    return _calls(*name.rsplit(" ", 2)[:2]).get(name)


def observe(name: str, ground: Ground) -> list[Observation]:
    """Run a call on a ground."""
    sample = find(name)
    if sample is None:
        return [
            {
                "line": 1,
                "of": "inputs",
                "is": "fact",
                "value": "no such call in this version of torch, or none to compare",
            }
        ]
    given = {"call": _on_device(sample), "drawn": _digest(sample)}
    interpreter = Interpreter(ground.recover, **given, differ=_differ, leaves=_three_leaves, describe=_describe)
    return interpreter.run(PROGRAM)


@functools.lru_cache(maxsize=16)
def _calls(operator: str, dtype: str) -> dict[str, Sample]:
    """All calls of an operator, by name: which of them a recording has was chosen when it was made."""
    found = samples(lambda each: each == operator, (getattr(torch, dtype),))
    return {sample.name: sample for sample in found if _is_strided(sample)}


def _is_strided(sample: Sample) -> bool:
    """Others (sparse ones) have no numbers in a row to compare, nor copies that a capture can make."""
    leaves = _flat([*sample.args, *sample.kwargs.values()])
    return all(leaf.layout is torch.strided for leaf in leaves if isinstance(leaf, torch.Tensor))


def _on_device(sample: Sample) -> Callable[[], Any]:
    args, kwargs = _map(_to_device, sample.args), {key: _map(_to_device, value) for key, value in sample.kwargs.items()}
    if "device" in kwargs:
        kwargs["device"] = "cuda"

    def call() -> Any:
        copies, others = _map(_copy, args), {key: _map(_copy, value) for key, value in kwargs.items()}
        return sample.function(*copies, **others)

    return call


def _to_device(leaf: Any) -> Any:
    return leaf.to("cuda") if isinstance(leaf, torch.Tensor) else leaf


def _copy(leaf: Any) -> Any:
    return leaf.clone() if isinstance(leaf, torch.Tensor) else leaf


def _map(change: Callable[[Any], Any], value: Any) -> Any:
    return type(value)(_map(change, each) for each in value) if type(value) in (list, tuple) else change(value)


def _flat(value: Any) -> list[Any]:
    return [leaf for each in value for leaf in _flat(each)] if isinstance(value, list | tuple) else [value]


def _differ(left: Any, right: Any) -> bool:
    pairs = [pair for pair in zip(_flat(left), _flat(right), strict=True) if isinstance(pair[0], torch.Tensor)]
    return any(not torch.equal(one.nan_to_num(), other.nan_to_num()) for one, other in pairs)


def _three_leaves(value: Any) -> list[Any]:
    leaves = [leaf for leaf in _flat(value) if isinstance(leaf, torch.Tensor)]
    return [*leaves, None, None, None][:3]


def _describe(value: Any) -> list[str]:
    return [
        f"{tuple(leaf.shape)} {leaf.dtype} {leaf.device.type}" if isinstance(leaf, torch.Tensor) else repr(leaf)[:40]
        for leaf in _flat(value)
    ]


def _digest(sample: Sample) -> int:
    """Alike where torch drew the same numbers."""
    told = [leaf.tolist() if isinstance(leaf, torch.Tensor) else repr(leaf) for leaf in _flat(list(sample.args))]
    return zlib.crc32(repr([told, sorted(sample.kwargs)]).encode())
