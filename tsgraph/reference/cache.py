"""A paged key-value cache: where keys and values lie, and who holds which page.

Page 0 is the dummy page. Pad rows point at it and write to it, so it is a sink and is never given to a request.
A slot is one token's place: page * page_size + offset.
"""

from __future__ import annotations

from collections.abc import Iterable

import attrs
import torch
from attrs.validators import ge, instance_of
from torch import Tensor

from tsgraph.errors import CallerError, OutOfBudget

DUMMY_PAGE = 0
DUMMY_SLOT = 0

Slots = tuple[Tensor, Tensor]


@attrs.frozen(eq=False)
class PagedCache:
    """Keys and values of all layers, each [pages, layers, page_size, kv_heads, head_dim].

    Pages come first: a page is then one index of the tensor, and `State(cache.keys, sink=DUMMY_PAGE)` says all.
    """

    keys: Tensor
    values: Tensor

    @classmethod
    def empty(
        cls,
        *,
        pages: int,
        layers: int,
        page_size: int,
        kv_heads: int,
        head_dim: int,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
    ) -> PagedCache:
        """A cache of zeros. They must be finite: a masked key has weight 0, and 0 times NaN is NaN."""
        shape = (pages, layers, page_size, kv_heads, head_dim)
        return cls(*(torch.zeros(shape, device=device, dtype=dtype) for _ in range(2)))

    @property
    def pages(self) -> int:
        """How many pages there are, the dummy page among them."""
        return self.keys.shape[0]

    @property
    def page_size(self) -> int:
        """Tokens of one page."""
        return self.keys.shape[2]

    def locate(self, slots: Tensor) -> Slots:
        """The page and the offset in it of each slot, as `write` takes them."""
        slots = slots.long()
        return slots // self.page_size, slots % self.page_size

    def write(self, layer: int, slots: Slots, keys: Tensor, values: Tensor) -> None:
        """Put `keys` and `values` [tokens, kv_heads, head_dim] at `slots`. Pad rows may share the dummy slot."""
        self.keys[:, layer].index_put_(slots, keys)
        self.values[:, layer].index_put_(slots, values)

    def read(self, layer: int, tables: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values of `tables` [rows, pages], each [rows, pages * page_size, kv_heads, head_dim]."""
        tables = tables.long()
        return self.keys[:, layer][tables].flatten(1, 2), self.values[:, layer][tables].flatten(1, 2)


@attrs.define(eq=False)
class PageAllocator:
    """Who holds which of `pages` pages; the dummy page is nobody's. A refused call changes nothing."""

    pages: int = attrs.field(validator=[instance_of(int), ge(1)])
    _free: list[int] = attrs.field(init=False)
    _held: set[int] = attrs.field(init=False, factory=set)

    def __attrs_post_init__(self) -> None:
        self._free = list(range(self.pages - 1, DUMMY_PAGE, -1))

    @property
    def free_pages(self) -> int:
        """How many pages nobody holds."""
        return len(self._free)

    @property
    def usable_pages(self) -> int:
        """How many pages one may hold at most: all but the dummy page."""
        return self.pages - 1

    def allocate(self, count: int) -> tuple[int, ...]:
        """`count` pages that nobody held. Raises: OutOfBudget if there are fewer, CallerError for a negative count."""
        if count < 0:
            raise CallerError(f"{count} pages were asked for", hint="ask for 0 or more", count=count)
        if count > self.free_pages:
            what = f"{count} pages were asked for, {self.free_pages} of {self.usable_pages} are free"
            raise OutOfBudget(what, hint="free pages first, or make the cache larger", count=count)
        taken = tuple(self._free.pop() for _ in range(count))
        self._held.update(taken)
        return taken

    def free(self, pages: Iterable[int]) -> None:
        """Give `pages` back. Raises: CallerError for a page that is not held (freed twice, or never allocated)."""
        pages = tuple(pages)
        wrong = sorted({page for page in pages if page not in self._held or pages.count(page) > 1})
        if wrong:
            what = f"pages {wrong} are freed but not held (or named twice)"
            raise CallerError(what, hint="free each allocated page exactly once", pages=wrong)
        self._held.difference_update(pages)
        self._free.extend(reversed(pages))
