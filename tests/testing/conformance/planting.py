"""How the suites' own tests plant a fault: one broken implementation for each promise, which the suite must name."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest

from tsgraph.testing.conformance import Nonconformance, Promise, Promises


def named(promises: Promises[Any], name: str) -> Promise[Any]:
    """The promise whose check has this name."""
    (found,) = [promise for promise in promises if promise.name == name]
    return found


def assert_found(promises: Promises[Any], name: str, check: Callable[[], None]) -> None:
    """`check` tells that this promise is broken: by protocol and member, in the fields and in the message."""
    promise, protocol = named(promises, name), promises.protocol.__name__
    with pytest.raises(Nonconformance) as caught:
        check()
    told = [violation for violation in caught.value.violations if violation.expected == promise.expected]
    assert [(protocol, promise.member)] == [(violation.protocol, violation.member) for violation in told]
    assert f"\n  {protocol}.{promise.member}: expected {promise.expected}, got {told[0].got}" in str(caught.value)


def assert_all_planted(promises: Promises[Any], planted: Iterable[str]) -> None:
    """There is a planted fault for every promise, and a docstring that says what the check does."""
    assert [promise.name for promise in promises] == list(planted)
    assert all(promise.check.__doc__ for promise in promises)
