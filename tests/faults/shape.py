"""The numbers of the engine that faults are planted under."""

from __future__ import annotations

import functools
from typing import Literal

import attrs

from tsgraph.keys import Geometry
from tsgraph.spec.load import load_spec
from tsgraph.spec.model import AtLeast, Condition, Pad, Spec

PAGE = 2
"""Tokens of one page."""

COLUMNS = {"full": 4, "window": 2}
"""The width of each cache group's table; a window sees the token itself and the two before it."""

WIDTH, VOCABULARY, WINDOW = 6, 12, 3
CONTEXT = PAGE * COLUMNS["full"]
DUMMY_PAGE = 0
DUMMY_SLOT = 0
CONVENTIONS = ("paged_groups", "flat_groups")

SpecName = Literal["decode", "speculative"]

shipped_law = functools.cache(load_spec)
"""A shipped spec, read once."""


@attrs.frozen(kw_only=True)
class Shape:
    """One engine: whose spec it follows, its sizes and variants, and whether products are the same at every batch size.

    `speculative` has a drafter and two tokens a request. `pads` replaces pads of the spec, by buffer: hostile ones.
    """

    spec: SpecName = "decode"
    sizes: tuple[int, ...] = (2, 4)
    variants: tuple[str, ...] = ("default",)
    row_products: bool = True
    pads: tuple[tuple[str, int | float], ...] = ()
    column_pads: tuple[tuple[str, int | float], ...] = ()

    @property
    def drafts(self) -> bool:
        """Whether there is a drafter."""
        return self.spec == "speculative"

    @property
    def tokens(self) -> int:
        """Tokens of a request in a decode step."""
        return 2 if self.drafts else 1

    @property
    def rows(self) -> int:
        """Most live rows. Request-pool rows are 1 to `rows`; 0 is reserved, `rows + 1` is the sentinel."""
        return self.sizes[-1]

    @property
    def sentinel(self) -> int:
        """The request-pool row that no request ever has."""
        return self.rows + 1

    @property
    def pages(self) -> int:
        """Pages of the cache, the dummy page among them."""
        return 1 + self.rows * COLUMNS["full"]

    @property
    def state_slots(self) -> int:
        """Recurrent slots, all of them live: four for each row."""
        return 4 * self.rows

    @property
    def geometry(self) -> Geometry:
        """The same, as a runtime is told."""
        return Geometry(
            rows=self.rows,
            tokens_per_request=self.tokens,
            extents={"pages": COLUMNS},
            sinks={"dummy_cache_slot": DUMMY_SLOT, "sentinel": self.sentinel},
            conventions=CONVENTIONS,
        )

    @property
    def neutral(self) -> Spec:
        """The spec as it is shipped, with an output more that tells how many keys a row saw."""
        return _neutral(self.spec)

    @property
    def law(self) -> Spec:
        """The spec that the runtime follows: the neutral one, but for `pads` and `column_pads`."""
        law = self.neutral
        changed = {name: attrs.evolve(law.buffers[name], pad=Pad(value=value)) for name, value in self.pads}
        columns = {name: attrs.evolve(law.buffers[name], column_pad=value) for name, value in self.column_pads}
        return attrs.evolve(law, buffers={**law.buffers, **changed, **columns})


@functools.cache
def _neutral(name: SpecName) -> Spec:
    law = shipped_law(name)
    outputs = {**law.outputs, "scanned": attrs.evolve(law.outputs["accept_lengths"], name="scanned")}
    outputs["draft"] = attrs.evolve(outputs["scanned"], name="draft")
    return attrs.evolve(_warmed_once(law), outputs=outputs)


def _warmed_once(law: Spec) -> Spec:
    """The spec with one warm-up forward instead of several: what it demands of each is the same, in less time."""
    many = law.warmup.forwards
    route = [attrs.evolve(t, repeat=1 if t.repeat == many else t.repeat) for t in law.lifecycle.transitions]
    rules = [attrs.evolve(r, condition=_once(r.condition, many)) for r in law.rules]
    lifecycle = attrs.evolve(law.lifecycle, transitions=tuple(route))
    return attrs.evolve(law, lifecycle=lifecycle, rules=tuple(rules), warmup=attrs.evolve(law.warmup, forwards=1))


def _once(condition: Condition, many: int) -> Condition:
    return AtLeast(condition.event, 1) if isinstance(condition, AtLeast) and condition.n == many else condition
