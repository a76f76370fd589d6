"""Planted faults: what a test suite must notice. Each makes the library do one small thing wrong, in the whole process.

from tsgraph.testing import faults

def test_our_ci_would_notice():
    with faults.plant("stale_tail"), pytest.raises(AssertionError):
        our_padding_test()
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager

from tsgraph.errors import CallerError
from tsgraph.spec.problems import suggestion
from tsgraph.testing.faults import capture, grammar, padding, replay, routing, standing
from tsgraph.testing.faults.fault import Fault, Patch

__all__ = ["FAULTS", "Fault", "Patch", "breaking", "plant"]

FAULTS: Mapping[str, Fault] = {
    fault.name: fault for module in (padding, routing, replay, capture, grammar, standing) for fault in module.FAULTS
}
"""Every fault by name."""


def plant(name: str) -> AbstractContextManager[None]:
    """The library with the fault `name` in the block; afterwards it is as before, however the block is left.

    Raises: CallerError for a name that no fault has.
    """
    if name not in FAULTS:
        raise CallerError(f"there is no fault {name!r}{suggestion(name, FAULTS)}", hint="FAULTS lists them")
    return FAULTS[name].planted()


def breaking(*rules: str) -> Iterator[Fault]:
    """The faults that break any of `rules`."""
    return (fault for fault in FAULTS.values() if set(rules) & set(fault.breaks))
