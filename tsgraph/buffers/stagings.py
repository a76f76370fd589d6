"""Which way the rows of calls go to the static buffers of one runtime, and what is recorded for it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import torch

from tsgraph.buffers.arena import Arena
from tsgraph.buffers.packing import Packing, lanes_of
from tsgraph.buffers.staging import Staging
from tsgraph.errors import CaptureUnsupported
from tsgraph.protocols.backend import Stager

Way = Literal["auto", "launch", "copies"]


class Stagings:
    """The stagings of a runtime, one for each size of slots, all through one ring of pinned memory.

    `way`: the policy's word. `reads`: see `Backend.stager`. Nothing is made before it is asked for.
    """

    def __init__(self, arena: Arena, way: Way = "auto", *, reads: Literal["ring", "landing"] = "ring") -> None:
        self._arena, self._way, self._reads = arena, way, reads
        self._stager: Stager | None = None
        self._refusal = ""
        self._by_size: dict[int, Staging | Packing] = {}

    def of(self, size: int) -> Staging | Packing:
        """That of slots of `size` rows. Not to be asked for first inside a recording."""
        if size not in self._by_size:
            self._by_size[size] = self._make(size)
        return self._by_size[size]

    def _make(self, size: int) -> Staging | Packing:
        stager = self._found()
        if stager is None:
            return Staging(self._arena, size)
        return Packing(self._arena, stager, size, inside=self._way == "auto" and not self._early_readers())

    def _found(self) -> Stager | None:
        """What brings rows at once, if the policy asks for it and the device can."""
        if self._stager is None and not self._refusal and self._way != "copies" and self._arena.fields:
            try:
                self._stager = self._arena.backend.stager(lanes_of(self._arena), self._arena.rows, reads=self._reads)
            except CaptureUnsupported as error:
                self._refusal = str(error)
        return self._stager

    def _early_readers(self) -> list[str]:
        """The buffers that somebody reads on the device before the graph does."""
        return [field.label for field in self._arena.fields if "device" in field.read_by]

    def memory(self) -> Mapping[str, torch.Tensor]:
        """Memory that launches and staging nodes read and write besides the static buffers, by name."""
        return {} if self._stager is None else self._stager.memory()

    def describe(self) -> dict[str, Any]:
        """How rows are staged and why so, as plain JSON data. Before the first slot is captured, what is intended."""
        return {"policy": self._way, "way": self._chosen(), "why": self._reason()}

    def _chosen(self) -> str:
        if self._way == "copies" or self._refusal or not self._arena.fields:
            return "copies"
        return "launch" if self._way == "launch" or self._early_readers() else "graph"

    def _reason(self) -> str:
        if self._refusal or not self._arena.fields:
            return self._refusal or "there is no buffer"
        if self._way != "auto":
            return "the policy says so"
        readers = ", ".join(self._early_readers())
        return (
            f"read on the device before the replay: {readers}" if readers else "nobody reads buffers before the replay"
        )
