"""Planting a problem in a small sound spec."""

from __future__ import annotations

import pytest


def plant(data, address, value):
    """Set the value at a key path, where a list index is a number; one past the end of a list appends."""
    *above, last = [int(part) if part.isdigit() else part for part in address.split(".")]
    for part in above:
        data = data[part]
    if isinstance(data, list) and last == len(data):
        data.append(value)
    else:
        data[last] = value


@pytest.fixture
def planted(small, problems):
    """`planted(address, value, …)`: what loading the small spec tells once these values are at these key paths."""

    def problems_with(*changes):
        for address, value in zip(changes[::2], changes[1::2], strict=True):
            plant(small, address, value)
        return set(problems(small))

    return problems_with
