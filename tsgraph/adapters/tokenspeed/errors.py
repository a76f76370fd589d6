"""Errors of a drop-in, each also of the builtin classes that callers of the original catch."""

from __future__ import annotations

from tsgraph.errors import BadBatch, StaleSlot, UnknownSlot


class UncapturedGraph(UnknownSlot, RuntimeError):
    """A step needs a graph that was not captured."""

    code = "uncaptured_graph"


class MissingTables(BadBatch, RuntimeError):
    """An eager step lacks the flat tables without which every layer would read the first group's pages."""

    code = "missing_tables"


class StaleVariant(StaleSlot):
    """The variant that the sampler asks for, once metadata are refreshed, has a stale slot: the step runs eagerly."""

    code = "stale_variant"
