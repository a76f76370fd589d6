"""A call of an operator, taken apart for a watch: what its schema says is looked up once for each operator.

This runs for every operator of a recording, so it goes by types and identities, and makes little.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Any

import attrs
import torch

from tsgraph.backends.emulated.dispatcher import Operator, handle, is_operator, reads_values, schema
from tsgraph.backends.emulated.operators import COPY_INTO, COPY_OUT, TAKE_MEMORY
from tsgraph.backends.emulated.trees import tensors_in
from tsgraph.buffers.audit import Effect, effect_of
from tsgraph.buffers.owners import LEAVES, TENSORS, storage_address

_FORMS = frozenset(("dtype", "layout", "device", "pin_memory", "memory_format"))
"""Arguments that say what a tensor is, and not what is in it."""

_SCALARS = frozenset((bool, int, float, complex, str))


@attrs.frozen(eq=False)
class Argument:
    """An argument of an operator. `reads`: the operator reads what is in its tensors. `form`: it says what one is."""

    name: str
    reads: bool = True
    form: bool = False


@attrs.frozen(eq=False)
class Facts:
    """What is known of an operator: how to run it, its name, its arguments, and what it does with them.

    `plain`: it has a schema; higher-order operators have none, and are taken to read all that they are given.
    `turns`: it changes the view that a tensor is, and no data. `looks`: it touches no data where it makes no memory,
    as views do, and a reshape or a conversion that finds nothing to do. `copies`: it copies memory, and so takes no
    operand by value. `idle`: it makes host memory, and computes nothing.
    """

    run: Any
    name: str
    plain: bool
    effect: Effect
    arguments: tuple[Argument, ...] = ()
    turns: bool = False
    looks: bool = False
    copies: bool = False
    idle: bool = False
    draws: bool = False
    by_name: Mapping[str, Argument] = attrs.field(init=False)
    always: frozenset[str] = attrs.field(init=False)

    @by_name.default
    def _by_name(self) -> Mapping[str, Argument]:
        return {each.name: each for each in self.arguments}

    @always.default
    def _always(self) -> frozenset[str]:
        return frozenset(name for _, name in self.effect.always)

    def given(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Iterable[tuple[Argument, Any]]:
        """Each argument that is passed, with its value."""
        by_place = self.arguments if self.plain else [Argument(f"argument {at}") for at in range(len(args))]
        by_name = ((self.by_name.get(name) or Argument(name), value) for name, value in kwargs.items())
        return chain(zip(by_place, args, strict=False), by_name)

    def written(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> frozenset[str]:
        """The names of the arguments that are written."""
        if not self.effect.statistics:
            return self.always
        return frozenset(name for _, name in self.effect.written(args, kwargs))


@functools.lru_cache(maxsize=4096)
def facts_of(operator: Any) -> Facts:
    """The facts of `operator`."""
    effect = effect_of(operator)
    if not is_operator(operator):
        return Facts(operator, str(operator), plain=False, effect=effect)
    packet, names = operator.overloadpacket, [argument.name for argument in schema(operator).arguments]
    return Facts(
        handle(operator) if type(operator) is Operator else operator,
        str(operator),
        plain=True,
        effect=effect,
        arguments=tuple(Argument(name, reads_values(operator, name), name in _FORMS) for name in names),
        turns=torch.Tag.inplace_view in operator.tags,
        looks=not schema(operator).is_mutable,
        copies=packet is COPY_INTO or packet in COPY_OUT,
        idle=effect.lifts or packet in TAKE_MEMORY,
        draws=torch.Tag.nondeterministic_seeded in operator.tags,
    )


class Call:
    """A call at a `line`: its tensors with the storage addresses of before, and its scalars, by argument."""

    __slots__ = ("_args", "_kwargs", "addresses", "facts", "line", "name", "scalars", "tensors")

    def __init__(self, facts: Facts, args: Sequence[Any], kwargs: Mapping[str, Any], line: str) -> None:
        self.facts, self.name, self.line, self._args, self._kwargs = facts, facts.name, line, args, kwargs
        self.tensors: list[tuple[Argument, torch.Tensor, int]] = []
        self.addresses: list[int] = []
        self.scalars: list[tuple[str, Any]] = []
        tensors, addresses, scalars = self.tensors, self.addresses, self.scalars
        by_place = facts.plain and not kwargs  # nearly always
        for argument, value in zip(facts.arguments, args, strict=False) if by_place else facts.given(args, kwargs):
            kind = type(value)
            if kind in TENSORS:
                addresses.append(address := storage_address(value))
                tensors.append((argument, value, address))
            elif kind in _SCALARS:
                if not argument.form:
                    scalars.append((argument.name, value))
            elif kind not in LEAVES:
                self._sort(argument, value)

    def _sort(self, argument: Argument, value: Any) -> None:
        if is_scalar(value):
            self.scalars.append((argument.name, value))
            return
        for tensor in tensors_in(value):
            self.addresses.append(address := storage_address(tensor))
            self.tensors.append((argument, tensor, address))

    @property
    def arguments(self) -> dict[str, Any]:
        """Each argument that was given, by name."""
        return {argument.name: value for argument, value in self.facts.given(self._args, self._kwargs)}

    @property
    def written(self) -> frozenset[str]:
        """The arguments that it writes, by name."""
        return self.facts.written(self._args, self._kwargs)

    def made_by(self, results: Iterable[torch.Tensor]) -> list[tuple[torch.Tensor, int]]:
        """Those of its results that lie in no argument's memory, with their addresses; and a constant that is fresh.

        `set_` gives a tensor other memory, which may be anyone's.
        """
        effect, made = self.facts.effect, []
        for each in () if effect.moves else results:
            address = storage_address(each)
            if address and (effect.lifts or address not in self.addresses):
                made.append((each, address))
        return made


def is_scalar(value: Any) -> bool:
    """Whether it is a plain Python value, or a list of such."""
    if isinstance(value, list | tuple):
        return len(value) > 0 and (_SCALARS.issuperset(map(type, value)) or all(map(_is_one, value)))
    return _is_one(value)


def _is_one(value: Any) -> bool:
    return isinstance(value, bool | int | float | complex | str)
