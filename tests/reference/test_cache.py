"""The paged cache and who holds its pages."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tsgraph.errors import CallerError, OutOfBudget
from tsgraph.reference.cache import DUMMY_PAGE, PageAllocator, PagedCache

SHAPE = {"pages": 6, "layers": 2, "page_size": 4, "kv_heads": 2, "head_dim": 8}


def test_written_tokens_are_read_in_table_order():
    """Keys written at slots of scattered pages are read back in the order of the table, in their own layer only."""
    cache = PagedCache.empty(**SHAPE)
    keys, values = torch.randn(8, 2, 8), torch.randn(8, 2, 8)
    slots = torch.tensor([20, 21, 22, 23, 8, 9, 10, 11], dtype=torch.int32)
    cache.write(1, cache.locate(slots), keys, values)
    read = cache.read(1, torch.tensor([[5, 2]], dtype=torch.int32))
    assert torch.equal(keys[None], read[0])
    assert torch.equal(values[None], read[1])
    assert not cache.keys[:, 0].any()


def test_only_the_named_slots_change():
    """A write leaves every other slot of every page as it was."""
    cache = PagedCache.empty(**SHAPE)
    cache.write(0, cache.locate(torch.tensor([13])), torch.ones(1, 2, 8), torch.ones(1, 2, 8))
    touched = cache.keys.flatten(3).any(-1).nonzero()
    assert [[3, 0, 1]] == touched.tolist()


def test_pages_and_page_size_are_the_tensors():
    """The cache's figures are read off its tensors, so that they cannot disagree with them."""
    cache = PagedCache.empty(**SHAPE)
    assert (6, 4) == (cache.pages, cache.page_size)
    assert (6, 2, 4, 2, 8) == cache.keys.shape == cache.values.shape


def test_exhaustion_changes_nothing():
    """Asking for more pages than are free is refused with both numbers, and no page is lost."""
    allocator = PageAllocator(5)
    allocator.allocate(3)
    with pytest.raises(OutOfBudget, match="2 pages were asked for, 1 of 4 are free"):
        allocator.allocate(2)
    assert 1 == allocator.free_pages


@pytest.mark.parametrize("again", [(1,), (1, 2), (2, 2), (DUMMY_PAGE,), (99,)])
def test_wrong_free_changes_nothing(again: tuple[int, ...]):
    """A page freed twice, named twice, never allocated, or the dummy page is refused, and the right ones stay held."""
    allocator = PageAllocator(5)
    pages = allocator.allocate(3)
    allocator.free(pages[:1])
    with pytest.raises(CallerError, match="freed but not held"):
        allocator.free(again)
    assert 2 == allocator.free_pages
    allocator.free(pages[1:])
    assert 4 == allocator.free_pages


def test_negative_count_is_refused():
    """A negative number of pages is the caller's error."""
    with pytest.raises(CallerError, match="-1 pages"):
        PageAllocator(5).allocate(-1)


@given(st.integers(-3, 0))
def test_allocator_without_pages_is_refused(pages: int):
    """Without the dummy page there is no cache."""
    with pytest.raises(ValueError, match="pages"):
        PageAllocator(pages)


class PageLife(RuleBasedStateMachine):
    """Requests take and give back pages; at every moment each page is free, held once, or the dummy page."""

    @initialize(pages=st.integers(1, 12))
    def start(self, pages: int) -> None:
        """An allocator with few pages, none of them held."""
        self.allocator = PageAllocator(pages)
        self.held: list[tuple[int, ...]] = []

    @rule(count=st.integers(0, 5))
    def take(self, count: int) -> None:
        """A request takes pages, or is refused if there are too few."""
        free = self.allocator.free_pages
        if count > free:
            with pytest.raises(OutOfBudget):
                self.allocator.allocate(count)
        else:
            self.held.append(self.allocator.allocate(count))
            assert count == len(self.held[-1])

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def give_back(self, data: st.DataObject) -> None:
        """A request gives its pages back; a second time is refused."""
        pages = self.held.pop(data.draw(st.integers(0, len(self.held) - 1)))
        self.allocator.free(pages)
        if pages:
            with pytest.raises(CallerError):
                self.allocator.free(pages)

    @invariant()
    def every_page_has_one_holder(self) -> None:
        """No page is held twice, none is lost, and the dummy page is nobody's."""
        held = [page for pages in self.held for page in pages]
        assert len(held) == len(set(held))
        assert set(held) <= set(range(1, self.allocator.pages))
        assert self.allocator.usable_pages == len(held) + self.allocator.free_pages


TestPageLife = PageLife.TestCase
