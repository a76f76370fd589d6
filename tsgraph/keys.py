"""The words of a call: modes, geometry, slot keys, batches and decisions. No torch at run time."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import attrs

from tsgraph.groups import CacheGroup, table_widths

if TYPE_CHECKING:
    import torch

DEFAULT_VARIANT = "default"
CALL_WORDS = ("rows", "mode", "variant", "counts", "clone", "padded_to")
"""What a call says besides its sources: no source can have such a name."""


class Mode(enum.Enum):
    """What kind of forward a step is."""

    DECODE = "decode"
    EXTEND = "extend"
    MIXED = "mixed"
    IDLE = "idle"


class Reason(enum.Enum):
    """Why a step used a slot, or why it did not. The value is the sentence that `explain` prints."""

    EXACT = "a slot of exactly this size"
    PADDED = "a slot of the next larger size"
    NO_SIZE_FITS = "more rows than the largest captured size"
    NO_EXACT_SIZE = "padding is off and no slot has exactly this size"
    NOT_DECODE = "only decode steps have slots"
    DISABLED = "the runtime is disabled"
    NOT_CAPTURED = "the slot is not captured yet"
    SLOT_STALE = "the slot is stale"
    SLOT_FAILED = "the slot failed to capture"
    SLOT_RELEASED = "the slot was released"
    SLOT_EVICTED = "the slot was evicted, for the memory that it held"
    ON_DEMAND = "the slot is captured by the first step that wants it, if there is room"
    ASKED = "the caller asked for an eager step"
    OTHER_RANKS_UNKNOWN = "how many tokens the other ranks have is not known"
    OTHER_RANKS_BUSY = "a rank neither decodes nor idles"
    ALL_IDLE = "no rank has a row"


class SlotKey(NamedTuple):
    """What tells one slot from another: equal to the plain tuple, so `slots["default", 16]` finds it."""

    variant: str
    size: int

    def __str__(self) -> str:
        return f"{self.variant}/{self.size}"


PAGES = "pages"
"""The extent that says how many columns a table of pages has."""

_POSITIVE = [attrs.validators.instance_of(int), attrs.validators.ge(1)]


@attrs.frozen(kw_only=True)
class Geometry:
    """The numbers that a spec leaves open.

    `rows`: most live rows of a step (R1's max_bs). `tokens_per_request`: tokens each row carries in a decode step.
    `extents`: sizes of the trailing dimensions that buffers name (`{"pages": 64}`), in elements; an extent of a
    grouped buffer is a mapping from group to size. `sinks`: the index that each named sink has. `conventions`: the
    cache-group conventions in use (`"paged_groups"`, `"flat_groups"`), which buffers may need. `groups`: the engine's
    cache groups; with them the extent `pages` need not be given, it is what a request of `context` tokens may need
    (0: not known, see `table_widths`) with `overlap_depth` steps ahead.
    """

    rows: int = attrs.field(validator=_POSITIVE)
    tokens_per_request: int = attrs.field(default=1, validator=_POSITIVE)
    extents: Mapping[str, int | Mapping[str, int]] = attrs.field(factory=dict)
    sinks: Mapping[str, int] = attrs.field(factory=dict)
    conventions: tuple[str, ...] = ()
    groups: tuple[CacheGroup, ...] = ()
    context: int = 0
    overlap_depth: int = 0

    def __attrs_post_init__(self) -> None:
        if self.groups and PAGES not in self.extents:
            object.__setattr__(self, "extents", {**self.extents, PAGES: self._widths()})

    def _widths(self) -> Mapping[str, int]:
        words = {"tokens_per_request": self.tokens_per_request, "overlap_depth": self.overlap_depth}
        return table_widths(self.groups, self.context, largest=self.rows, **words)


def _per_rank(numbers: Iterable[int]) -> tuple[int, ...]:
    return tuple(numbers)


@attrs.frozen
class RankCounts:
    """What every rank brings to one step, in the order of the ranks; the same on every rank.

    `tokens`: tokens of each. `rows`: requests of each; where all decode or idle they follow from the tokens.
    `all_decode_or_idle`: whether no rank extends or mixes; only then can a step use a slot (R26).
    """

    tokens: tuple[int, ...] = attrs.field(converter=_per_rank)
    rows: tuple[int, ...] | None = attrs.field(default=None, converter=attrs.converters.optional(_per_rank))
    all_decode_or_idle: bool = False


@attrs.define(slots=True)
class Batch:
    """What a step gets behind the full door: the buffers at this step's size, by attribute, and the words beside them.

    Inside a slot, `rows` is the slot's size: a recording is made once, so it cannot know the live rows. In an eager
    step `rows` is the live rows. Buffers are read as attributes (`batch.input_ids`) or items; grouped buffers are
    mappings from group to tensor.

    `counts`: what all ranks bring, where there are several (else None, unless the caller gave it). A recording has as
    many rows on every rank, all decoding (R14, R15); a refresh before a replay and an eager step have the real ones.
    """

    rows: int
    tokens: int
    mode: Mode
    variant: str
    buffers: Mapping[str, torch.Tensor | Mapping[str, torch.Tensor]]
    fixed: Mapping[str, torch.Tensor] = attrs.field(factory=dict)
    counts: RankCounts | None = None
    full_hidden: bool = False
    mask: torch.Tensor | None = None

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(f"this batch has no buffer {name!r}; it has {', '.join(self.buffers)}") from None

    def __getitem__(self, name: str) -> Any:
        return self.buffers[name] if name in self.buffers else self.fixed[name]


@attrs.frozen
class Decision:
    """Where a step goes, and why.

    `key` is the slot, or None for an eager step. `padded_to` is the slot's size in rows (the live rows if eager);
    `waste` is how many of them are pads.
    """

    rows: int
    padded_to: int
    reason: Reason
    key: SlotKey | None = None
    detail: str = ""

    @property
    def eager(self) -> bool:
        """Whether the step runs eagerly."""
        return self.key is None

    @property
    def waste(self) -> int:
        """Pad rows: rows computed and thrown away."""
        return self.padded_to - self.rows

    def __str__(self) -> str:
        where = "eager" if self.key is None else f"slot {self.key}"
        waste = f", {self.waste} pad row{'s' if self.waste > 1 else ''}" if self.waste else ""
        detail = f" ({self.detail})" if self.detail else ""
        return f"{self.rows} rows → {where}{waste}: {self.reason.value}{detail}"


@attrs.frozen
class Step:
    """One call of the runtime: its outputs at live size, the decision behind them, and `ready`, to wait for them."""

    outputs: Any
    decision: Decision
    ready: Any
