"""The model of the seed's wrapper does the same work as tsgraph, in the order that its contract says."""

from __future__ import annotations

from functools import partial

import attrs
import pytest
import torch

from tsgraph.backends.emulated import EmulatedBackend
from tsgraph.bench.costs import tensors_made
from tsgraph.bench.seed_model import SeedEngine
from tsgraph.bench.seed_model.collaborators import Context
from tsgraph.bench.settings import LIVE, SETTINGS, SIZES, Setting, differing, flat, sources_of, static_tensors

FULLEST = SETTINGS[-1]


@pytest.fixture(params=SETTINGS, ids=lambda setting: setting.name)
def setting(request: pytest.FixtureRequest) -> Setting:
    """Each setting."""
    made: Setting = request.param
    return made


@pytest.mark.parametrize("host", [True, False], ids=["host", "device"])
def test_buffers_equal_those_of_a_runtime_after_the_same_calls(setting: Setting, host: bool, uncollected):
    """Every static buffer holds the same numbers, padded, exact and padded again: so the comparison is fair."""
    backend = EmulatedBackend()
    seed, runtime = SeedEngine.of(setting, backend), setting.runtime(backend, device_reads=not host)
    serve = seed.serve_from_host if host else seed.serve
    for number, live in enumerate([*LIVE.values(), LIVE["padded"]]):
        sources = sources_of(setting.fields(), live, backend, host=host, seed=number)
        serve(live, sources)
        runtime(rows=live, **sources)
        assert [] == differing(seed.tensors, static_tensors(runtime))


def test_pads_are_those_of_the_contract():
    """R30 to R35: each tail holds the declared pad, and live rows hold what was passed."""
    backend = EmulatedBackend()
    seed, live = SeedEngine.of(FULLEST, backend), LIVE["padded"]
    sources = sources_of(FULLEST.fields(), live, backend, host=True)
    seed.serve_from_host(live, sources)

    pads = {"seq_lens": 1, "draft_seq_lens": 1, "request_pool": 0, "state_write_pool": SIZES[-1] + 1}
    pads |= {"input_ids": 1, "positions": 0, "cache_locations": 0, "shifted_ids": 1}
    pads |= {f"recurrent_{name}": -1 for name in ("slots", "sources", "branches", "tracks")}
    pads |= {f"paged_tables[{group}]": -1 for group in FULLEST.groups}
    pads |= {f"paged_offsets[{group}]": 0 for group in FULLEST.groups}
    assert pads.keys() == seed.tensors.keys()
    passed = flat(sources)
    passed |= {"draft_seq_lens": passed["seq_lens"], "state_write_pool": passed["request_pool"]}
    for label, pad in pads.items():
        rows = live * (len(seed.tensors[label]) // SIZES[-1])
        assert {pad} == set(seed.tensors[label][rows:].flatten().tolist()), label
        assert torch.equal(passed[label], seed.tensors[label][:rows]), label


def test_refreshes_target_then_draft_then_replays():
    """R38: target, draft, communication, then the graph of the next larger size."""
    seed, calls = SeedEngine.of(FULLEST, EmulatedBackend()), []
    wrapper = seed.wrapper

    class Noting:
        def __init__(self, name, part):
            self.name, self.part = name, part

        def __getattr__(self, member):
            return getattr(self.part, member)

        def refresh(self, rows, pool, lengths, **more):
            calls.append((self.name, rows, len(pool), len(lengths), more.get("num_padding")))
            self.part.refresh(rows, pool, lengths, **more)

        def restore(self):
            calls.append(self.name)

    wrapper.metadata = Noting("target", wrapper.metadata)
    wrapper.drafter = attrs.evolve(wrapper.drafter, metadata=Noting("draft", wrapper.drafter.metadata))
    wrapper.communication = Noting("communication", wrapper.communication)
    wrapper.replays = {key: partial(calls.append, key) for key in wrapper.replays}
    seed.serve(5, sources_of(FULLEST.fields(), 5, EmulatedBackend(), host=False))

    assert [("target", 8, 8, 8, 3), ("draft", 8, 8, 8, None), "communication", ("default", 8)] == calls


def test_outputs_are_cut_to_live_rows_and_the_context_is_as_before():
    """R40 and R41: tokens of the live rows alone, and a context that says what it said."""
    seed, context = SeedEngine.of(FULLEST, EmulatedBackend()), Context(5, 20)
    tokens, lengths, logprobs = seed.wrapper(5, context)

    assert (20, 5, None) == (len(tokens), len(lengths), logprobs)
    assert Context(5, 20) == context


def test_rows_that_no_graph_serves_are_refused():
    """The model has graphs only: too many rows, or a step that does not decode, is no step of it."""
    wrapper = SeedEngine.of(SETTINGS[0], EmulatedBackend()).wrapper
    for live, context in ((SIZES[-1] + 1, Context(17, 17)), (1, Context(1, 1, decoding=False))):
        with pytest.raises(ValueError, match="no graph serves"):
            wrapper.padded_size(live, context)


def test_pads_out_of_place(setting: Setting):
    """A padded call makes a tensor for each thing that it pads; that is what it costs the original."""
    backend = EmulatedBackend()
    seed, made = SeedEngine.of(setting, backend), {}
    for fit, live in LIVE.items():
        made[fit] = tensors_made(partial(seed.call, live, sources_of(setting.fields(), live, backend, host=False)))
    padded = 2 + 2 * len(setting.groups) + 4 * setting.recurrent

    assert made["padded"] >= made["exact"] + padded
