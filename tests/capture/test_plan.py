"""Which slots, in which order."""

from tsgraph.capture.plan import plan_capture, with_default


def test_the_largest_comes_first():
    """Sizes fall, so that the pool is as large as its largest graph only (fault M1)."""
    assert [8, 4, 1] == [key.size for key in plan_capture((1, 4, 8), ("default",), largest_first=True)]


def test_every_variant_has_every_size():
    """There is one slot per variant and size, the default variant first (R4)."""
    plan = plan_capture((1, 2), ("greedy", "default"), largest_first=True)
    assert [("default", 2), ("greedy", 2), ("default", 1), ("greedy", 1)] == [tuple(key) for key in plan]


def test_variants_can_be_gone_through_one_by_one():
    """By variant, each has all its sizes before the next, the default's first."""
    plan = plan_capture((1, 2), ("greedy",), largest_first=False, by_variant=True)
    assert [("default", 1), ("default", 2), ("greedy", 1), ("greedy", 2)] == [tuple(key) for key in plan]


def test_the_default_variant_is_always_there_once():
    """No variants, repeated ones, or the default named last: the default is there, first, once."""
    assert [("default",), ("default", "a"), ("default", "a")] == [
        with_default(()),
        with_default(("a", "a")),
        with_default(("a", "default")),
    ]
