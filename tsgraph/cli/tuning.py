"""How `tsgraph tune` tells what it chose: for people, and as plain data."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import attrs
from rich.box import SIMPLE_HEAD
from rich.table import Table

from tsgraph.dispatch.histogram import Histogram
from tsgraph.dispatch.tune import Outcome, Tuning
from tsgraph.spec.model import Spec
from tsgraph.spec.table import as_text

WIDTH = 120


def facts(tuning: Tuning, seen: Histogram, spec: Spec) -> dict[str, Any]:
    """Everything as plain JSON data."""
    outcomes = {"chosen": tuning.chosen, "defaults": tuning.defaults, "exact": tuning.exact}
    return {
        "spec": spec.name,
        "steps": sum(seen.total.values()),
        "variants": seen.variants,
        "tokens_per_request": seen.tokens_per_request,
        "notes": seen.notes,
        "unit": tuning.unit,
        "limit": tuning.limit,
        "sizes": tuning.chosen.sizes,
        **{name: _facts(tuning, outcome) for name, outcome in outcomes.items()},
    }


def _facts(tuning: Tuning, outcome: Outcome) -> dict[str, Any]:
    shares = {"padded_work": tuning.padded_work(outcome), "pad_share": outcome.pad_share}
    return {**attrs.asdict(outcome, recurse=False), "unused": [str(slot) for slot in outcome.unused], **shares}


def told(tuning: Tuning, seen: Histogram, spec: Spec) -> str:
    """A table, what no size covers, what nothing used, and the sizes to paste."""
    outcomes = {"chosen": tuning.chosen, f"{spec.name}'s defaults": tuning.defaults, "exact sizes": tuning.exact}
    *compared, _ = outcomes.items()
    coverage = (_filled(f"{name}: {line}") for name, each in compared for line in _coverage(each, tuning.limit))
    return "\n".join(
        (_head(seen), *map(_filled, seen.notes), _table(tuning, outcomes), *coverage, "", _paste(tuning, spec))
    )


def _filled(text: str) -> str:
    return textwrap.fill(text, WIDTH, subsequent_indent="  ", break_on_hyphens=False)


def _head(seen: Histogram) -> str:
    total = seen.total
    width = f", {seen.tokens_per_request} tokens a row" if seen.tokens_per_request > 1 else ""
    variants = f", variants {', '.join(seen.variants)}" if len(seen.variants) > 1 else ""
    return f"{sum(total.values())} decode steps of {min(total)} to {max(total)} rows{width}{variants}"


def _table(tuning: Tuning, outcomes: dict[str, Outcome]) -> str:
    table = Table("", box=SIMPLE_HEAD, pad_edge=False)
    names = ("sizes", "slots", f"work, {tuning.unit}", "over exact", "pad rows", "eager steps", "unused slots")
    for name in names if tuning.chosen.bytes is None else (*names, "MiB"):
        table.add_column(name, justify="right", no_wrap=True)
    for name, outcome in outcomes.items():
        table.add_row(name, *_cells(tuning, outcome))
    return as_text([table], WIDTH)


def _cells(tuning: Tuning, outcome: Outcome) -> Iterator[str]:
    yield from (str(len(outcome.sizes)), str(outcome.slots))
    yield f"{outcome.work:,.0f}" if tuning.unit == "tokens" else f"{outcome.work:,.3f}"
    yield from (f"{tuning.padded_work(outcome):+.1%}", f"{outcome.pad_share:.1%}")
    yield from (str(outcome.eager_steps), str(len(outcome.unused)))
    if outcome.bytes is not None:
        yield f"{outcome.bytes / 2**20:,.1f}"


def _coverage(outcome: Outcome, limit: int) -> Iterator[str]:
    """The batches that no size covers, and the slots that serve none."""
    if outcome.eager:
        rows, most = _spans(tuple(outcome.eager)), f" (a size has {limit} at most)"
        where = f"{rows}{most if max(outcome.eager) > limit else ''}"
        yield f"no size covers so many rows: {where}; steps that run eagerly: {outcome.eager_steps}"
    if outcome.unused:
        variants = dict.fromkeys(slot.variant for slot in outcome.unused)
        unused = (f"{name}/{_listed(s.size for s in outcome.unused if s.variant == name)}" for name in variants)
        yield f"no step uses {'; '.join(unused)}"


def _listed(sizes: Iterable[int]) -> str:
    return ", ".join(map(str, sizes))


def _spans(numbers: Sequence[int]) -> str:
    """Increasing numbers, those in a row as a span: `1, 4..6`."""
    spans: list[list[int]] = []
    for number in numbers:
        if spans and number == spans[-1][-1] + 1:
            spans[-1][1:] = [number]
        else:
            spans.append([number])
    return ", ".join("..".join(map(str, span)) for span in spans)


def _paste(tuning: Tuning, spec: Spec) -> str:
    key = "default" if spec.sizes.padding else "default_without_padding"
    return f"sizes={tuning.chosen.sizes}\n\n[sizes]\n{key} = {list(tuning.chosen.sizes)}"
