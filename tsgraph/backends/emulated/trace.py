"""What was recorded, as data: each operation with its operands, and the storages that they lie in.

Storages are numbered in the order in which the recording met them, so equal recordings have equal numbers.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal

import attrs
import torch
from torch.multiprocessing.reductions import StorageWeakRef

from tsgraph.backends.emulated.dispatcher import reads_values, storage_key, written_names
from tsgraph.backends.emulated.operation import Operation
from tsgraph.backends.emulated.residence import Residence
from tsgraph.backends.emulated.trees import tensors_in
from tsgraph.protocols.backend import GraphNode

StoragePlace = Literal["external", "pool", "host"]
HOST_FUNCTION = "host function "
"""What the operator of a host function's node begins with."""


@attrs.frozen
class Storage:
    """Memory that a recording touches: `external` device memory, a block of the graph's `pool`, or on the `host`.

    A block of the pool that is given out twice is two storages: what lies in it is not the same.
    """

    id: int
    place: StoragePlace
    bytes: int

    def __str__(self) -> str:
        return f"{self.place[0].upper()}{self.id}"


@attrs.frozen
class Operand:
    """A tensor that a node reads or writes: the name of its argument (`""` for what is returned), and where it lies."""

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    storage: Storage

    def __str__(self) -> str:
        size = "×".join(map(str, self.shape)) or "scalar"
        return f"{self.storage} {size} {str(self.dtype).removeprefix('torch.')}"

    def describe(self) -> dict[str, Any]:
        """The same as plain JSON data."""
        dtype = str(self.dtype).removeprefix("torch.")
        return {"name": self.name, "shape": list(self.shape), "dtype": dtype, "storage": self.storage.id}


@attrs.frozen
class Node:
    """A recorded operation: the operator, the line of the step that made it, what it reads and what it writes.

    An argument that is changed in place is among both. `stream` is None where a recording has but one.
    """

    operator: str
    line: str
    inputs: tuple[Operand, ...] = ()
    outputs: tuple[Operand, ...] = ()
    stream: int | None = None

    @property
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        """The shapes of its outputs."""
        return tuple(operand.shape for operand in self.outputs)

    def describe(self) -> dict[str, Any]:
        """The same as plain JSON data."""
        return {
            "operator": self.operator,
            "line": self.line,
            "stream": self.stream,
            "inputs": [operand.describe() for operand in self.inputs],
            "outputs": [operand.describe() for operand in self.outputs],
        }

    def told(self) -> GraphNode:
        """What a device would tell of it: a host function, a copy between host and device, or a kernel."""
        if self.operator.startswith(HOST_FUNCTION):
            return GraphNode("host", self.operator.removeprefix(HOST_FUNCTION))
        crosses = any(operand.storage.place == "host" for operand in (*self.inputs, *self.outputs))
        copies = crosses and self.operator.startswith("aten.copy_.")
        return GraphNode("memcpy" if copies else "kernel", self.operator)

    def __str__(self) -> str:
        return f"{self.operator} at {self.line}"


class Storages:
    """Numbers for the storages of one recording."""

    def __init__(self, residence: Residence) -> None:
        self._residence = residence
        self._known: dict[int, Storage] = {}
        self._references: dict[int, StorageWeakRef] = {}
        self._taken: set[int] = set()

    def take(self, tensor: torch.Tensor) -> None:
        """Note that the memory of `tensor` was taken from the pool."""
        self._taken.add(self._key(tensor))

    def of(self, tensor: torch.Tensor) -> Storage:
        """The storage that `tensor` lies in; it gets the next number if it is new."""
        key = self._key(tensor)
        if key not in self._known:
            here: StoragePlace = "external" if self._residence.holds(tensor) else "host"
            place: StoragePlace = "pool" if key in self._taken else here
            self._known[key] = Storage(len(self._known), place, tensor.untyped_storage().nbytes())
        return self._known[key]

    def node(self, operation: Operation, results: Iterable[Any], line: str) -> Node:
        """The node of an operation that wrote into `results`."""
        written = written_names(operation.operator)
        operands = list(operation.operands())
        reads = [(name, tensor) for name, tensor in operands if reads_values(operation.operator, name)]
        changed = [(name, tensor) for name, tensor in operands if name in written]
        seen = {id(tensor) for _, tensor in changed}
        fresh = [("", tensor) for tensor in tensors_in(list(results)) if id(tensor) not in seen]
        return Node(str(operation.operator), line, self._operands(reads), self._operands(changed + fresh))

    def _operands(self, tensors: Iterable[tuple[str, torch.Tensor]]) -> tuple[Operand, ...]:
        return tuple(Operand(name, tuple(each.shape), each.dtype, self.of(each)) for name, each in tensors)

    def _key(self, tensor: torch.Tensor) -> int:
        storage = tensor.untyped_storage()
        key = storage_key(storage)
        if key not in self._references:  # which keeps the key from being used again when this storage is gone
            self._references[key] = StorageWeakRef(storage)
        return key
