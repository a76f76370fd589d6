"""One turn served by the runtime, and by an oracle that knows no slot and no staging; then every promise is checked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs
import torch
from torch import Tensor

from tests.faults.bench import entry
from tests.faults.histories import History, Rows, Sources, Turn
from tests.faults.rig import Rig, Snapshot, require
from tests.faults.step import tensor
from tsgraph.keys import Batch, Mode
from tsgraph.slots.slot import Slot
from tsgraph.spec.model import Buffer

Outputs = dict[str, Tensor]

CLOSE = 1e-4
"""How far a float32 number may move with the shape of a step."""

TABLES = 4
"""Through how many tables a token looks; a pad token sees one key in each, and a draft one more."""


def serve_history(rig: Rig, history: History) -> None:
    """Serve every turn of a history and check it. Raises AssertionError, or what the runtime raises."""
    for turn in history.turns:
        rig.turn += 1
        OneTurn.of(rig, turn, history.garbage).check()


def same(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors are equal bit by bit."""
    if one.is_floating_point():
        one, other = one.contiguous().view(torch.int32), other.contiguous().view(torch.int32)
    return torch.equal(one, other)


def changed_rows(one: Tensor, other: Tensor) -> set[int]:
    """The rows in which two tensors differ, bit by bit."""
    if one.is_floating_point():
        one, other = one.view(torch.int32), other.view(torch.int32)
    return set((one != other).view(len(one), -1).any(1).nonzero().flatten().tolist())


@attrs.define(eq=False)
class OneTurn:
    """One turn: `size` is the slot's, `before` all memory as the turn finds it."""

    rig: Rig
    rows: Rows
    garbage: int | None
    size: int
    before: Snapshot = attrs.field(factory=dict)

    @classmethod
    def of(cls, rig: Rig, turn: Turn, garbage: int | None) -> OneTurn:
        """That of the engine's next turn."""
        size = rig.size_of(len(turn.rows), turn.variant)
        return cls(rig, Rows(rig.shape, turn, rig.turn), garbage, size)

    @property
    def live(self) -> int:
        """Live rows."""
        return len(self.rows.live.rows)

    @property
    def slot(self) -> Slot:
        """The slot that serves it."""
        return self.rig.runtime.slots[self.rows.live.variant, self.size]

    def check(self) -> None:
        """Serve it all ways and compare."""
        self._prepare()
        padded, expected = self._oracle(self.size)
        exact = self._oracle(self.live)[0] if self.live else {}
        if self.garbage is not None:
            self.rig.litter(self.garbage)
        outputs = self._replay(self.rows)
        after = self.rig.snapshot()
        held = {name: _clone(each) for name, each in self.slot.batch.buffers.items()}
        self._compare(outputs, padded, exact)
        self._check_state(after, expected)
        self._check_isolation()
        self._check_pads(held)
        self.rig.restore(after)
        self.rig.keep_pages(self.rows.owned()["keys"])

    def _prepare(self) -> None:
        """What an engine does before its step: a request's random numbers, masks and pages are in place."""
        parts, tokens = self.rig.parts, self.live * self.rig.shape.tokens
        parts.sampler.coins.fill_(0.5)
        parts.sampler.coins[:tokens] = tensor(self.rig.turn, tokens)
        parts.grammar.mask.fill_(value=True)
        parts.grammar.mask[:tokens, self.rig.turn % 3 :: 3] = False
        self.rig.load_pages(self.rows.owned()["keys"])
        self.before = self.rig.snapshot()

    # -- ways to serve it ----------------------------------------------------------------------------------------------

    def _oracle(self, size: int) -> tuple[Outputs, Snapshot]:
        """Outputs of an eager step at `size` rows with neutral pads, and the memory after it, which is put back."""
        rig, shape, live = self.rig, self.rig.shape, self.rows.live
        buffers, tokens = neutral_buffers(self.rows, size), size * shape.tokens
        batch = Batch(size, tokens, Mode.DECODE, live.variant, buffers, full_hidden=shape.drafts)
        batch.mask = rig.parts.grammar.mask[:tokens]
        with torch.inference_mode():
            for part in (rig.parts.attention, rig.parts.drafter):
                if part is not None:
                    part.begin_eager(batch)
            rig.parts.comm.restore()
            outputs = cut(rig.step(batch), self.live, size)
            rig.parts.recurrent.update(outputs, self.live)
            after = rig.snapshot()
            rig.restore(self.before)
        return outputs, after

    def _replay(self, rows: Rows) -> Outputs:
        sources = rows.sources()
        passed = {name: _clone(source) for name, source in sources.items()}
        run = self.rig.runtime if self.rig.replays else self._run_padded
        with entry(self.rig.runtime, self.live):
            outputs = run(rows=self.live, variant=rows.live.variant, **sources)
        require(all(_equal(passed[name], sources[name]) for name in passed), "a source of the caller's was changed")
        require(not torch.is_inference_mode_enabled(), "inference mode was left on")
        return {name: leaf.clone() for name, leaf in outputs.items()}

    def _run_padded(self, **words: Any) -> Outputs:
        outputs: Outputs = self.rig.runtime.eager(padded_to=self.size, **words)
        return outputs

    # -- promises ------------------------------------------------------------------------------------------------------

    def _compare(self, outputs: Outputs, padded: Outputs, exact: Outputs) -> None:
        for name, leaf in padded.items():
            require(outputs[name].shape == leaf.shape, f"output {name} is not cut to the live rows")
            require(same(outputs[name], leaf), f"output {name} is not that of eager with neutral pads")
        bitwise = self.rig.shape.row_products
        for name in exact if bitwise else exact.keys() & {"logprobs", "scanned"}:
            equal = (
                same(outputs[name], exact[name])
                if bitwise
                else torch.allclose(outputs[name], exact[name], CLOSE, CLOSE)
            )
            require(equal, f"output {name} is not that of eager at exactly {self.live} rows")
        require(bool(outputs["logprobs"].isfinite().all()), "a live row's number is not finite")

    def _check_pads(self, held: dict[str, Any]) -> None:
        """Rows beyond the live ones held the pads that the runtime's own spec declares, columns theirs."""
        declared = neutral_buffers(self.rows, self.size, self.rig.runtime.spec.buffers)
        for name, expected in declared.items():
            require(_equal(held[name], expected), f"buffer {name} did not hold the live rows and its pads")

    def _check_state(self, after: Snapshot, expected: Snapshot) -> None:
        owned = {**self.rows.owned(), "accepted": [int(each) for each in self.rows.sources()["recurrent_slots"]]}
        for name, rows in owned.items():
            sink = self.rig.memory.sinks.get(name)
            written = changed_rows(after[name], self.before[name]) - {sink, *rows}
            require(not written, f"rows {sorted(written)} of {name} were written, and are no live row's")
            wrong = changed_rows(after[name], expected[name]) & set(rows)
            require(not wrong, f"rows {sorted(wrong)} of {name} are not what eager writes")
            require(sink is None or bool(after[name][sink].isfinite().all()), f"pad rows left a NaN in {name}")

    def _check_isolation(self) -> None:
        """Each pad row sees one key, and computes the same whatever the live rows and their state hold."""
        first = self._pad_outputs()
        keys = (TABLES + self.rig.shape.drafts) * self.rig.shape.tokens
        require(bool((first["scanned"] == keys).all()), f"a pad row scans {first['scanned'].tolist()} keys, not {keys}")
        self.rig.restore(self.before)
        for name, sink in self.rig.memory.sinks.items():
            now = getattr(self.rig.memory, name)
            held = now[sink].clone()
            now.copy_(now.nan_to_num(0.0).roll(1, 0) + 1)
            now[sink] = held
        self._replay(self._others())
        again = self._pad_outputs()
        for name, leaf in first.items():
            require(same(leaf, again[name]), f"output {name} of pad rows depends on live rows")

    def _others(self) -> Rows:
        """As many other rows."""
        live = self.rows.live
        shorter = tuple(max(self.rig.shape.tokens, length // 2) for length in live.lengths)
        return Rows(self.rig.shape, attrs.evolve(live, rows=live.rows[::-1], lengths=shorter), self.rows.turn + 1)

    def _pad_outputs(self) -> Outputs:
        held = self.slot.outputs
        whole = held.cut(self.size) if held is not None else self.rig.step.last
        return {name: leaf[self.live * len(leaf) // self.size :].clone() for name, leaf in whole.items()}


def cut(outputs: Outputs, live: int, size: int) -> Outputs:
    """Copies of the live rows of a step's outputs."""
    return {name: leaf[: live * len(leaf) // size].clone() for name, leaf in outputs.items()}


def neutral_buffers(rows: Rows, size: int, declared: Mapping[str, Buffer] | None = None) -> dict[str, Any]:
    """The buffers of `size` rows, made from the declarations alone (None: those of the spec as it is shipped)."""
    shape, sources = rows.shape, rows.sources()
    declared = shape.neutral.buffers if declared is None else declared
    there = {name: buffer for name, buffer in declared.items() if (buffer.mirrors or name) in sources}
    return {name: _padded(buffer, sources, size, rows) for name, buffer in there.items()}


def _padded(buffer: Buffer, sources: Sources, size: int, rows: Rows) -> Any:
    source = sources[buffer.mirrors or buffer.name]
    if isinstance(source, dict):
        widths = rows.shape.geometry.extents["pages"]
        assert isinstance(widths, Mapping)
        return {group: _rows(buffer, each, size, rows, widths[group]) for group, each in source.items()}
    return _rows(buffer, source, size, rows, 0)


def _rows(buffer: Buffer, source: Tensor, size: int, rows: Rows, width: int) -> Tensor:
    shape, pad = rows.shape, buffer.pad
    value = shape.geometry.sinks[pad.sink] if pad.sink is not None else pad.value
    leading = size * (shape.tokens if buffer.per == "token" else 1)
    extents = (width,) if buffer.shape else ()
    made = torch.full((leading, *extents), value, dtype=source.dtype)  # type: ignore[arg-type]
    if buffer.column_pad is not None:
        made[: len(source)] = int(buffer.column_pad)
    head = made[: len(source), : source.shape[-1]] if extents else made[: len(source)]
    head.copy_(source)
    return made


def _clone(source: Any) -> Any:
    return source.clone() if isinstance(source, Tensor) else {group: each.clone() for group, each in source.items()}


def _equal(one: Any, other: Any) -> bool:
    if isinstance(one, Tensor):
        return torch.equal(one, other)
    return all(torch.equal(one[group], other[group]) for group in other)
