"""The capture sizes of a configuration, and its spec."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from tsgraph.adapters.tokenspeed import get_batch_sizes_to_capture
from tsgraph.adapters.tokenspeed.sizes import spec_of
from tsgraph.errors import SpecError

BY_EIGHT = list(range(8, 161, 8))


def config(**changes):
    """An engine's configuration with these changes."""
    words = {
        "cudagraph_capture_sizes": None,
        "max_num_seqs": 400,
        "data_parallel_size": 1,
        "disable_cuda_graph_padding": False,
        "max_cudagraph_capture_size": 200,
        "spec_algo": None,
    }
    return SimpleNamespace(**{**words, **changes})


@pytest.mark.parametrize(
    ("changes", "sizes"),
    [
        ({}, [1, 2, 4, *BY_EIGHT]),
        ({"disable_cuda_graph_padding": True}, [*range(1, 33), 64, 96, 128, 160]),
        ({"max_num_seqs": 19}, [1, 2, 4, 8, 16, 18, 19]),
        ({"max_num_seqs": 38, "data_parallel_size": 2}, [1, 2, 4, 8, 16, 18, 19]),
        ({"max_num_seqs": 38, "data_parallel_size": 0, "max_cudagraph_capture_size": 16}, [1, 2, 4, 8, 16]),
        ({"cudagraph_capture_sizes": [0, 3, 600, 2, 2]}, [2, 3]),
        ({"cudagraph_capture_sizes": [600], "max_cudagraph_capture_size": 500}, [399, 400]),
    ],
)
def test_sizes(changes, sizes):
    """Defaults with and without padding; the two largest where defaults reach too far; caps; lists of one's own."""
    assert sizes == get_batch_sizes_to_capture(config(**changes))


@pytest.mark.parametrize("asked", [[], [0], [300]])
def test_nothing_left_is_an_error(asked):
    """An empty list, or one that the cap empties, is refused."""
    with pytest.raises(SpecError, match="sizes"):
        get_batch_sizes_to_capture(config(cudagraph_capture_sizes=asked))


@pytest.mark.parametrize(
    ("algo", "name"), [(None, "tokenspeed"), ("EAGLE", "tokenspeed"), ("DFLASH", "tokenspeed_block")]
)
def test_block_drafters_have_a_spec_of_their_own(algo, name):
    """Whose pad rows point at the sentinel."""
    spec = spec_of(config(spec_algo=algo))

    assert (name, "sentinel" if algo == "DFLASH" else None) == (spec.name, spec.buffers["request_pool"].pad.sink)


@pytest.mark.parametrize(("settings", "freezes"), [({}, False), ({"enable_cudagraph_gc": False}, True)])
def test_collector_is_frozen_where_the_engine_says_so(settings, freezes):
    """An absent setting counts as true: no freeze."""
    assert freezes == spec_of(config(**settings)).policy.freeze_gc
