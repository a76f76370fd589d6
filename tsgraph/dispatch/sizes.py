"""Which sizes to capture (rule R1)."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from tsgraph.errors import SpecError
from tsgraph.spec.model import Sizes


def capture_sizes(sizes: Sizes, rows: int, asked: Sequence[int] | None = None) -> tuple[int, ...]:
    """The sizes to capture, strictly increasing, for at most `rows` live rows.

    `asked` replaces the spec's defaults. Where a default list reaches beyond `rows`, `rows - 1` and `rows` are added,
    so that the largest batches have a slot of their own (fault G1); sizes above the cap or `rows` are dropped.

    Raises: SpecError where the sizes are not strictly increasing positive integers, or none is left.
    """
    wanted = tuple(asked) if asked is not None else sizes.default if sizes.padding else sizes.default_without_padding
    _check_increasing(wanted)
    if max(wanted) > rows:
        wanted = tuple(sorted({*wanted, rows - 1, rows}))
    kept = tuple(size for size in wanted if 0 < size <= min(sizes.cap, rows))
    if not kept:
        raise SpecError("sizes", (f"none of {list(wanted)} is within the cap of {sizes.cap} and {rows} rows",))
    return kept


def _check_increasing(wanted: tuple[int, ...]) -> None:
    if not wanted:
        raise SpecError("sizes", ("no capture size is given",))
    if not all(type(size) is int and size > 0 for size in wanted):
        raise SpecError("sizes", (f"{list(wanted)} must be positive integers",))
    if any(later <= earlier for earlier, later in pairwise(wanted)):
        problem = f"{list(wanted)} must be strictly increasing, or a step may be sent to a wrong slot"
        raise SpecError("sizes", (problem,))
