"""Whose memory an address is: what a refusal and a receipt call a tensor that they find, and where it is held now."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import Any

import attrs
import torch

from tsgraph.backends.emulated.trees import tensors_in
from tsgraph.buffers.arena import Arena
from tsgraph.buffers.contract import State
from tsgraph.buffers.holders import Find, Held, held_by, held_by_modules


@attrs.frozen
class Owner:
    """What a range of addresses belongs to: `kind` and dotted `name`, and whether a warm-up may write there.

    `declared`: somebody said so; else it is only how the step comes by it. `find` gives the tensor that is there now.
    As text it is its path, which `Owners.resolve` knows.
    """

    kind: str
    name: str
    start: int
    stop: int
    writable: bool
    declared: bool = True
    find: Find = attrs.field(default=lambda: None, eq=False, repr=False)

    def __str__(self) -> str:
        return f"{self.kind} {self.name}"


class Owners:
    """Storage address → owner: static buffers, states, tensors by name, what modules and collaborators hold.

    `written`: memory of collaborators that steps write, on device or host. `parts`: the collaborators, by name.
    `step`: what it holds is declared by nobody, but has a name.

    Memory is known by its storage: a view of a declared tensor's storage is declared with it. `refresh` reads addresses
    again, since modules and collaborators make and move tensors.
    """

    def __init__(
        self,
        arena: Arena,
        states: Mapping[str, State],
        modules: Sequence[torch.nn.Module] = (),
        fixed: Mapping[str, torch.Tensor] | None = None,
        written: Mapping[str, torch.Tensor] | None = None,
        parts: Mapping[str, Any] | None = None,
        step: Callable[..., Any] | None = None,
    ) -> None:
        self._arena, self._states, self._modules, self._fixed = arena, states, modules, fixed or {}
        self._written, self._parts, self._step = written or {}, parts or {}, step
        self._said: list[tuple[str, str, Find, bool]] = []
        self._by_storage: dict[int, list[Owner]] = {}
        self._by_path: dict[str, Owner] = {}
        self._of_step: dict[int, list[Owner]] | None = None
        self.refresh()

    def declare(self, kind: str, name: str, find: Find, *, writable: bool = True) -> None:
        """Memory besides, such as that of staging: `find` gives its tensor, now and at each `refresh`.

        What is declared again under the same name is replaced.
        """
        self._said = [each for each in self._said if each[:2] != (kind, name)] + [(kind, name, find, writable)]
        self._add_found(kind, name, find, writable)

    def refresh(self) -> None:
        """Read every address anew."""
        self._by_storage, self._by_path, self._of_step = {}, {}, None
        for name, tensor in self._arena.tensors().items():
            self._add(Held("buffer", name, tensor, partial(_itself, tensor)), writable=True)
        for name, state in self._states.items():
            self._add(Held("state", name, state.tensor, partial(_itself, state.tensor)), writable=True)
        for name, tensor in self._fixed.items():
            self._add(Held("fixed", name, tensor, partial(_itself, tensor)), writable=False)
        for name, tensor in self._written.items():
            self._add(Held("memory", name, tensor, partial(_itself, tensor)), writable=True)
        for said in self._said:
            self._add_found(*said)
        for held in chain(held_by_modules(self._modules), self._held_by_parts()):
            self._add(held, writable=False)

    def _held_by_parts(self) -> Iterator[Held]:
        for name, part in self._parts.items():
            yield from held_by(part, "collaborator", name)

    def _add_found(self, kind: str, name: str, find: Find, writable: bool) -> None:
        tensor = find()
        if tensor is not None:
            self._add(Held(kind, name, tensor, find), writable=writable)

    def _add(self, held: Held, *, writable: bool) -> None:
        owner = _owner(held, writable=writable)
        if owner is not None:
            self._by_storage.setdefault(storage_address(held.tensor), []).append(owner)
            self._by_path.setdefault(str(owner), owner)

    def find(self, tensor: torch.Tensor) -> Owner | None:
        """The owner of the memory that `tensor` starts in, or of its storage; None where nobody declared it."""
        return nearest(self.at(storage_address(tensor)), tensor)

    def at(self, address: int) -> Sequence[Owner]:
        """Those that are declared in the storage at `address`."""
        return self._by_storage.get(address, ())

    def locate(self, tensor: torch.Tensor) -> Owner | None:
        """The same; of memory that nobody declared, how the step holds it: in a closure, a global, its own object."""
        return self.find(tensor) or nearest(self._held_by_step().get(storage_address(tensor), ()), tensor)

    def holder(self, address: int) -> Owner | None:
        """Who holds something in the storage at `address`, declared or not."""
        return next(iter(self.holders(address)), None)

    def holders(self, address: int) -> tuple[Owner, ...]:
        """Everybody who holds something in the storage at `address`: those that are declared first, then the step."""
        return (*self.at(address), *self._held_by_step().get(address, ()))

    def __iter__(self) -> Iterator[Owner]:
        """All owners that are declared, memory without a path of its own included."""
        return chain.from_iterable(self._by_storage.values())

    def resolve(self, path: str) -> Find | None:
        """What gives the tensor that the owner with this path holds now (None where there is none any more).

        It is made once and cheap to call. None for a path that names nothing.
        """
        owner = self._by_path.get(path)
        if owner is None:
            self._held_by_step()
            owner = self._by_path.get(path)
        return None if owner is None else owner.find

    def may_write(self, tensor: torch.Tensor) -> bool:
        """Whether the storage of `tensor` is a declared buffer's or state's."""
        return any(owner.writable for owner in self.at(storage_address(tensor)))

    def _held_by_step(self) -> dict[int, list[Owner]]:
        """What the step holds, looked for when it is first asked: most recordings read nothing undeclared."""
        if self._of_step is None:
            self._of_step = {}
            for held in held_by(self._step, "step", "step", functions=True) if self._step is not None else ():
                owner = _owner(held, writable=False, declared=False)
                if owner is not None:
                    self._of_step.setdefault(storage_address(held.tensor), []).append(owner)
                    self._by_path.setdefault(str(owner), owner)
        return self._of_step


def storage_address(tensor: torch.Tensor) -> int:
    """The address of a tensor's storage; 0 for one without memory (empty, sparse, meta, fake)."""
    try:
        return tensor.untyped_storage().data_ptr()
    except RuntimeError:
        return 0


TENSORS = frozenset((torch.Tensor, torch.nn.Parameter))
LEAVES = frozenset((type(None), bool, int, float, torch.dtype, torch.device, torch.layout, torch.memory_format))


def addresses_in(*values: Iterable[Any]) -> set[int]:
    """Storage addresses of the tensors among `values`, and in the lists, tuples and dicts there; 0 for one without."""
    found = set()
    for value in chain.from_iterable(values):
        kind = type(value)
        if kind in TENSORS:
            found.add(storage_address(value))
        elif kind not in LEAVES:
            found.update(map(storage_address, tensors_in(value)))
    return found


def _owner(held: Held, *, writable: bool, declared: bool = True) -> Owner | None:
    tensor = held.tensor
    if not storage_address(tensor):
        return None
    start = tensor.data_ptr()
    stop = start + tensor.numel() * tensor.element_size()
    return Owner(held.kind, held.name, start, stop, writable, declared, held.find)


def nearest(owners: Sequence[Owner], tensor: torch.Tensor) -> Owner | None:
    """Of the `owners` in its storage the one that `tensor` starts in; None of none.

    Of a collaborator's several views the tightest, of these the newest.
    """
    if len(owners) < 2:
        return owners[0] if owners else None
    at = tensor.data_ptr()
    around = [owner for owner in owners if owner.start <= at < owner.stop] or owners[:1]
    if around[0].kind == "collaborator":
        stop = at + tensor.numel() * tensor.element_size()
        return min(reversed(around), key=lambda owner: (owner.stop < stop, owner.stop - owner.start))
    return around[0]


def _itself(tensor: torch.Tensor) -> torch.Tensor:
    return tensor
