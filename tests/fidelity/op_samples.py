"""Calls of operators with small inputs, drawn from torch's own database of operators, alike on every run and machine.

Torch made the database to test its operators; each entry can draw inputs that the operator accepts, for a dtype and a
device. Here they are drawn on the CPU from a seed of their name. Whoever runs them elsewhere moves the tensors, and
says which device where a keyword says `device`. A few depend on Python's seed of hashes, too: they come from sets.
"""

from __future__ import annotations

import functools
import random
import sys
import warnings
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from typing import Any

import attrs
import numpy as np
import torch

DTYPES = (torch.float32, torch.int64)
IN_PLACE, OUT = "in place", "out"
PER_OPERATOR = 1_000  # more than any operator has


@attrs.frozen
class Sample:
    """One call: `function(*args, **kwargs)`. Unpacks as name, function, arguments and keywords.

    `operator` is the entry in the database, with `in place` behind it where the call changes its first argument, and
    `out` where it fills the one that is given as `out=`: work on copies of both. `name` tells dtype and number too.
    """

    operator: str
    name: str
    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    @property
    def entry(self) -> str:
        """The entry in the database."""
        return self.operator.partition(" ")[0]

    def __iter__(self) -> Iterator[Any]:
        return iter((self.name, self.function, self.args, self.kwargs))


def samples(
    wanted: Callable[[str], bool] = lambda operator: True,
    dtypes: Sequence[torch.dtype] = DTYPES,
    limit: int = PER_OPERATOR,
    salt: int = 0,
) -> Iterator[Sample]:
    """At most `limit` calls of each wanted operator and dtype, spread evenly over those that there are.

    Another `salt` draws other numbers, for most operators into the same shapes.
    """
    for entry in database():
        variants = [variant for variant in _variants(entry) if wanted(variant.operator)]
        for dtype in dtypes if variants else ():
            if dtype in entry.supported_dtypes("cpu"):
                yield from _calls(variants, _draw(entry, dtype, limit, salt), str(dtype).removeprefix("torch."))


@functools.cache
def database() -> Sequence[Any]:
    """Torch's entries, one for each operator and way to call it."""
    with _without_its_traces():
        from torch.testing._internal import common_methods_invocations as source
        from torch.testing._internal import common_utils
        from torch.testing._internal.custom_op_db import custom_op_db
        from torch.testing._internal.opinfo import core
    vars(source)["wrapper_set_seed"] = _call  # entries with random numbers would seed inside: the caller does that here
    for module in (common_utils, core):
        vars(module)["extract_test_fn"] = _no_test  # it reads the whole stack's sources, for each draw
    lists = [getattr(source, f"foreach_{kind}_op_db") for kind in ("unary", "binary", "pointwise", "reduce", "other")]
    return tuple(chain(source.op_db, *lists, custom_op_db))


def _call(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    return function(*args, **kwargs)


def _no_test() -> None:
    """The test of torch that draws: none."""


@attrs.frozen
class _Variant:
    """A way to call an entry: `arguments` gives those of a call from drawn inputs, or None if they do not suit it."""

    operator: str
    function: Callable[..., Any]
    arguments: Callable[[Any], tuple[tuple[Any, ...], dict[str, Any]] | None]


def _variants(entry: Any) -> Iterator[_Variant]:
    yield _Variant(entry.formatted_name, entry.op, _arguments)
    if entry.get_inplace() is not None:
        yield _Variant(f"{entry.formatted_name} {IN_PLACE}", entry.get_inplace(), _arguments_in_place)
    if entry.supports_out:
        yield _Variant(f"{entry.formatted_name} {OUT}", entry.op, functools.partial(_arguments_with_out, entry.op))


def _arguments(inputs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    return (inputs.input, *inputs.args), inputs.kwargs


def _arguments_in_place(inputs: Any) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
    return None if inputs.broadcasts_input else _arguments(inputs)


def _arguments_with_out(function: Callable[..., Any], inputs: Any) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
    args, kwargs = _arguments(inputs)
    with _random_as_it_was():
        try:
            returned = function(*args, **kwargs)
        except (RuntimeError, AssertionError, TypeError):
            return None
    leaves = returned if isinstance(returned, tuple) else (returned,)
    if not all(isinstance(leaf, torch.Tensor) for leaf in leaves):
        return None
    outs = tuple(torch.zeros_like(leaf) for leaf in leaves)
    return args, {**kwargs, "out": outs if isinstance(returned, tuple) else outs[0]}


def _calls(variants: list[_Variant], drawn: list[tuple[int, Any]], dtype: str) -> Iterator[Sample]:
    for variant in variants:
        for number, inputs in drawn:
            call = variant.arguments(inputs)
            if call is not None:
                yield Sample(variant.operator, f"{variant.operator} {dtype} {number}", variant.function, *call)


def _draw(entry: Any, dtype: torch.dtype, limit: int, salt: int) -> list[tuple[int, Any]]:
    with _random_as_it_was():
        for start in (random.seed, np.random.seed, torch.default_generator.manual_seed):
            start(zlib.crc32(f"{entry.formatted_name} {dtype} {salt}".encode()))
        drawn = list(enumerate(entry.sample_inputs(torch.device("cpu"), dtype, requires_grad=False, set_seed=False)))
    step = max(1, -(-len(drawn) // limit))
    return drawn[step // 2 :: step]


@contextmanager
def _random_as_it_was() -> Iterator[None]:
    """The block leaves no trace in the generators that the database draws from, and no warning."""
    before = random.getstate(), np.random.get_state(), torch.get_rng_state()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        random.setstate(before[0])
        np.random.set_state(before[1])
        torch.set_rng_state(before[2])


@contextmanager
def _without_its_traces() -> Iterator[None]:
    """Import torch's test code without what it does to others: it loads a profile of hypothesis, and locks flags."""
    calls = [(kind, kind.__call__) for kind in (torch._C.ScriptFunction, torch._C.ScriptMethod)]
    hidden = sys.modules.get("hypothesis")
    sys.modules["hypothesis"] = None  # type: ignore[assignment]  # as if it were not installed
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        del sys.modules["hypothesis"]
        if hidden is not None:
            sys.modules["hypothesis"] = hidden
        torch.backends.flags_frozen.__globals__["__allow_nonbracketed_mutation_flag"] = True
        for kind, call in calls:
            kind.__call__ = call  # type: ignore[method-assign]
