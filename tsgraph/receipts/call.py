"""A call of an operator, taken apart for a watch: what its schema says is looked up once for each operator."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import attrs
import torch

from tsgraph.backends.blame import user_line
from tsgraph.backends.emulated.dispatcher import is_operator, reads_values, schema
from tsgraph.backends.emulated.operators import COPY_INTO, COPY_OUT, LIFT, TAKE_MEMORY
from tsgraph.backends.emulated.trees import tensors_in
from tsgraph.buffers.audit import Writes, writes_of, written_tensors
from tsgraph.buffers.owners import storage_address

_FORMS = frozenset(("dtype", "layout", "device", "pin_memory", "memory_format"))
"""Arguments that say what a tensor is, and not what is in it."""

_SCALARS = (bool, int, float, complex, str)
_NO_WRITES = Writes()


@attrs.frozen(eq=False)
class Facts:
    """What is known of an operator: its name, those of its arguments, and what it does with them.

    `plain`: it has a schema; higher-order operators have none, and are taken to read all that they are given.
    `turns`: it changes the view that a tensor is, and no data. `copies`: it copies memory, and so takes no operand by
    value. `idle`: it makes host memory, and computes nothing.
    """

    name: str
    plain: bool
    names: tuple[str, ...] = ()
    turns: bool = False
    mutates: bool = False
    writes: bool = False
    copies: bool = False
    lifts: bool = False
    moves: bool = False
    idle: bool = False
    draws: bool = False


@functools.lru_cache(maxsize=4096)
def facts_of(operator: Any) -> Facts:
    """The facts of `operator`."""
    if not is_operator(operator):
        return Facts(str(operator), plain=False)
    packet, lifts = operator.overloadpacket, operator is LIFT
    return Facts(
        str(operator),
        plain=True,
        names=tuple(argument.name for argument in schema(operator).arguments),
        turns=torch.Tag.inplace_view in operator.tags,
        mutates=schema(operator).is_mutable,
        writes=writes_of(operator) != _NO_WRITES,
        copies=packet is COPY_INTO or packet in COPY_OUT,
        lifts=lifts,
        moves=packet is torch.ops.aten.set_,
        idle=lifts or packet in TAKE_MEMORY,
        draws=torch.Tag.nondeterministic_seeded in operator.tags,
    )


class Call:
    """A call: its arguments by name, its tensors with the storage addresses of before, and its scalars."""

    __slots__ = ("_line", "arguments", "facts", "operator", "scalars", "tensors", "written")

    def __init__(self, operator: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        self.operator, self.facts = operator, facts_of(operator)
        names = self.facts.names if self.facts.plain else [f"argument {at}" for at in range(len(args))]
        self.arguments: dict[str, Any] = dict(zip(names, args, strict=False), **kwargs)
        self.tensors: list[tuple[str, torch.Tensor, int]] = []
        self.scalars: list[tuple[str, Any]] = []
        self.written = frozenset(map(id, written_tensors(operator, args, kwargs))) if self.facts.writes else frozenset()
        self._line = ""
        for name, value in self.arguments.items():
            self._sort(name, value)

    def _sort(self, name: str, value: Any) -> None:
        if isinstance(value, torch.Tensor):
            self.tensors.append((name, value, storage_address(value)))
        elif is_scalar(value):
            if name not in _FORMS:
                self.scalars.append((name, value))
        elif isinstance(value, list | tuple | dict):
            self.tensors += [(name, each, storage_address(each)) for each in tensors_in(value)]

    @property
    def name(self) -> str:
        """The operator's."""
        return self.facts.name

    @property
    def line(self) -> str:
        """`file:line` of the step, looked up when it is first asked for; only while the call is being made."""
        self._line = self._line or user_line()
        return self._line

    def reads(self, name: str) -> bool:
        """Whether it reads what is in the tensors of this argument."""
        return not self.facts.plain or reads_values(self.operator, name)

    def made_by(self, results: Sequence[torch.Tensor]) -> list[tuple[torch.Tensor, int]]:
        """Those of its results that lie in no argument's memory, with their addresses; and a constant that is fresh.

        `set_` gives a tensor other memory, which may be anyone's.
        """
        if self.facts.moves:
            return []
        given = () if self.facts.lifts else [address for _, _, address in self.tensors]
        return [(each, at) for each in results if (at := storage_address(each)) and at not in given]

    def touches_no_data(self, results: Sequence[torch.Tensor], *, made: bool) -> bool:
        """Whether it is a view: also a reshape or a conversion that found nothing to do, but not one that copied."""
        facts = self.facts
        return facts.turns or (facts.plain and len(results) > 0 and not made and not facts.mutates)


def is_scalar(value: Any) -> bool:
    """Whether it is a plain Python value, or a list of such."""
    if isinstance(value, _SCALARS):
        return True
    return isinstance(value, list | tuple) and len(value) > 0 and all(isinstance(each, _SCALARS) for each in value)
