"""Host functions of the cuda backend, on the emulated device: in place of the call of CUDA's runtime library."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from tsgraph.backends import hostfunc
from tsgraph.backends.emulated.hostfunc import put
from tsgraph.backends.emulated.residence import Residence
from tsgraph.backends.turns import HostFunction


def enqueuing(residence: Residence) -> Callable[[int, int, HostFunction], None]:
    """What stands in for `tsgraph.backends.hostfunc.enqueue`: on the current stream, which is the one it is told."""

    def enqueue(_: int, key: int, function: HostFunction) -> None:
        put(function, partial(hostfunc.call, key), residence)

    return enqueue
