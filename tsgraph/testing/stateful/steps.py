"""What programs about runtimes are written with: states saved and put back, dirty buffers, steps that burst."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import attrs
import torch
from torch.utils import _pytree as pytree

from tsgraph.buffers.contract import Field, resolve_fields
from tsgraph.capture.mode import is_capturing
from tsgraph.keys import Batch, Decision
from tsgraph.runtime import GraphRuntime

GARBAGE = (0, 1, 2, 3, -1, 2**31 - 1)
"""What dirty integers hold: rows that may be somebody's, a common hole, and no row at all. Dirty floats hold NaN."""


class Burst(RuntimeError):
    """A step failed because it was told to."""


# -- state ------------------------------------------------------------------------------------------------------------


def kept(outputs: Any) -> Any:
    """Copies of all tensors in `outputs`: a replay overwrites the outputs of the one before."""
    return pytree.tree_map_only(torch.Tensor, torch.clone, outputs)


def state_of(runtime: GraphRuntime) -> dict[str, torch.Tensor]:
    """A copy of everything that was declared as state."""
    return {name: state.tensor.clone() for name, state in runtime._parts.declared.state.items()}


def put_state(runtime: GraphRuntime, saved: Mapping[str, torch.Tensor]) -> None:
    """Make the state what it was when `saved` was taken."""
    with torch.inference_mode():
        for name, state in runtime._parts.declared.state.items():
            state.tensor.copy_(saved[name])


def dirty(runtime: GraphRuntime, number: int) -> None:
    """Fill every static buffer with garbage, as an earlier batch might have left it."""
    arena = runtime._parts.engine.arena
    with torch.inference_mode():
        for field, tensor in zip(arena.fields, arena.tensors().values(), strict=True):
            tensor.fill_(_garbage(field, number))


def _garbage(field: Field, number: int) -> float:
    if field.dtype.is_floating_point or field.dtype.is_complex:
        return float("nan")
    value = GARBAGE[number % len(GARBAGE)]
    return value % 2 if field.dtype is torch.bool else min(value, torch.iinfo(field.dtype).max) % 2**31


def padded(runtime: GraphRuntime, rows: int, sources: Mapping[str, Any]) -> dict[str, Any]:
    """`sources` of live rows, filled up to `rows` with what the spec declares for pad rows: by hand, not by staging."""
    found: dict[str, Any] = {}
    for field in resolve_fields(runtime.spec.buffers, runtime.geometry):
        source = sources.get(field.name, sources.get(field.mirrors or ""))
        tensor = _padded(field, rows, source if field.group is None else source[field.group])
        if field.group is None:
            found[field.name] = tensor
        else:
            found.setdefault(field.name, {})[field.group] = tensor
    return found


def _padded(field: Field, rows: int, source: torch.Tensor) -> torch.Tensor:
    whole = torch.full((rows * field.rows_per_request, *field.shape), field.pad, dtype=field.dtype)
    whole[: len(source)] = source
    return whole


# -- comparison -------------------------------------------------------------------------------------------------------


def same(expected: Any, actual: Any) -> bool:
    """Whether the leaves of `actual` are bitwise the first rows of those of `expected`."""
    return _compared(expected, actual, lambda one, other: _bits_equal(one[: len(other)] if other.dim() else one, other))


def near(expected: Any, actual: Any, rtol: float = 1e-3, atol: float = 1e-5) -> bool:
    """Whether both have leaves of the same shapes whose values differ by no more than rounding."""

    def close(one: torch.Tensor, other: torch.Tensor) -> bool:
        fits = one.shape == other.shape and one.dtype == other.dtype
        return fits and torch.allclose(one.double(), other.double(), rtol=rtol, atol=atol, equal_nan=True)

    return _compared(expected, actual, close)


def untouched(runtime: GraphRuntime, expected: Mapping[str, torch.Tensor]) -> bool:
    """Whether all state, but for sink rows, is near `expected`: what live rows alone would have made of it."""
    now = state_of(runtime)
    return all(
        near(_without(state.sink, expected[name]), _without(state.sink, now[name]))
        for name, state in runtime._parts.declared.state.items()
    )


def _without(rows: tuple[int, ...] | None, tensor: torch.Tensor) -> torch.Tensor:
    return tensor if not rows else tensor[[row for row in range(len(tensor)) if row not in rows]]


def _compared(expected: Any, actual: Any, equal: Any) -> bool:
    ones, structure = pytree.tree_flatten(expected)
    others, other_structure = pytree.tree_flatten(actual)
    return structure == other_structure and all(
        (one is None and other is None) or bool(equal(one, other)) for one, other in zip(ones, others, strict=True)
    )


def _bits_equal(one: torch.Tensor, other: torch.Tensor) -> bool:
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    return (
        torch.equal(one.contiguous().view(torch.uint8), other.contiguous().view(torch.uint8))
        if one.dim()
        else (torch.equal(one.reshape(1).view(torch.uint8), other.reshape(1).view(torch.uint8)))
    )


# -- what a runtime says ----------------------------------------------------------------------------------------------


def told(decision: Decision) -> tuple[tuple[str, int] | None, int, str]:
    """A decision as plain data: the slot's key or None, the rows it is padded to, the reason's name."""
    key = None if decision.key is None else (decision.key.variant, decision.key.size)
    return key, decision.padded_to, decision.reason.name


def figures(runtime: GraphRuntime) -> dict[str, Any]:
    """What the snapshot tells of slots and counters: of each slot state, replays and pad rows."""
    snapshot = runtime.snapshot()
    slots = {(slot["variant"], slot["size"]): slot for slot in snapshot["slots"]}
    return {
        "enabled": snapshot["enabled"],
        "slots": {key: (slot["state"], slot["replays"], slot["pad_rows"]) for key, slot in slots.items()},
        "eager": snapshot["counters"]["eager"],
        "replays": snapshot["counters"]["replays"],
        "pad_rows": snapshot["counters"]["pad_rows"],
    }


# -- failures ---------------------------------------------------------------------------------------------------------


@attrs.define(eq=False)
class Fuse:
    """Whether the step has burst."""

    burnt: bool = False


@contextmanager
def burst(runtime: GraphRuntime, rows: int, forward: int) -> Iterator[Fuse]:
    """Let the step raise `Burst` in the block, at its `forward`-th call (from 0) for a batch of `rows` rows."""
    engine, fuse, calls = runtime._parts.engine, Fuse(), 0
    step = engine.step

    def bursting(batch: Batch) -> Any:
        nonlocal calls
        if batch.rows == rows:
            calls += 1
            if calls == forward + 1:
                fuse.burnt = True
                raise Burst(f"at forward {forward} of {rows} rows")
        return step(batch)

    engine.step = bursting
    try:
        yield fuse
    finally:
        engine.step = step


def held(runtime: GraphRuntime) -> dict[str, torch.Tensor]:
    """A copy of what the static buffers hold."""
    return {name: tensor.clone() for name, tensor in runtime._parts.engine.arena.tensors().items()}


def left_on() -> tuple[bool, bool]:
    """Whether capture mode is on, and whether this thread is in inference mode, outside of any step."""
    return is_capturing(), torch.is_inference_mode_enabled()
