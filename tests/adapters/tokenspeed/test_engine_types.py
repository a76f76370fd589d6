"""The engine's types, or their equivalents."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest
import torch

from tsgraph.adapters.tokenspeed.engine_types import (
    HOMES,
    EngineTypes,
    ForwardMode,
    bind_grammar_mask_buf,
    find_types,
    init_backend_cuda_graph_state,
)


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """An engine that has just the types, installed for one test."""
    for module, member in HOMES.values():
        file = tmp_path.joinpath("tokenspeed", "runtime", *module.split(".")).with_suffix(".py")
        file.parent.mkdir(parents=True, exist_ok=True)
        with file.open("a", encoding="utf-8") as code:
            code.write(f"class {member}:\n    pass\n")
    monkeypatch.syspath_prepend(tmp_path)
    yield
    for name in [name for name in sys.modules if name.partition(".")[0] == "tokenspeed"]:
        del sys.modules[name]


def test_equivalents_stand_in():
    """Without the engine, small types of our own serve."""
    assert EngineTypes() == find_types()


def test_installed_engine_is_used(installed):
    """With it, each of its own is taken from its module."""
    types = find_types()

    assert {member for _, member in HOMES.values()} == {getattr(types, name).__name__ for name in HOMES}
    assert all(getattr(types, name).__module__.startswith("tokenspeed.runtime.") for name in HOMES)


@pytest.mark.parametrize("mode", ForwardMode)
def test_mode_answers_one_question(mode):
    """A mode decodes, idles, or prefills, and only one of these."""
    assert [True] == [answer for answer in (mode.is_decode(), mode.is_idle(), mode.is_extend_or_mixed()) if answer]


@pytest.mark.parametrize(("spec", "tokens", "rows"), [(False, 3, 2), (True, 3, 6), (True, 1, 2)])
@pytest.mark.parametrize("capturable", [True, False])
def test_mask_has_a_row_for_each_token_of_a_verification(spec, tokens, rows, capturable):
    """Its rows are those of the memory that replays refill: one each request, or each token where several are drawn."""
    mask = torch.zeros(30, 2, dtype=torch.int32)
    info = SimpleNamespace(vocab_mask=None)
    holder = SimpleNamespace(max_tokens_per_req=tokens, bitmask=mask, vocab_mask_buf=mask, vocab_mask_spec_buf=mask)
    places = {"capturable": holder} if capturable else {"capturable": None}

    bind_grammar_mask_buf(info, None if capturable else holder, 2, spec=spec, grammar_backend="", **places)

    assert (rows, mask.data_ptr()) == (len(info.vocab_mask), info.vocab_mask.data_ptr())


def test_no_grammar_binds_no_mask():
    """Without any grammar the sampler sees no mask."""
    info = SimpleNamespace(vocab_mask=None)

    bind_grammar_mask_buf(info, None, 2, spec=False, capturable=None, grammar_backend="")

    assert info.vocab_mask is None


def test_type_error_of_a_body_goes_on():
    """It is never taken for a signature that does not accept the extras."""

    class Backend:
        calls = 0

        def init_cuda_graph_state(self, max_bs, seq_lens, *, depth):
            self.calls += 1
            raise TypeError(f"unexpected keyword argument {depth}")

    backend = Backend()
    with pytest.raises(TypeError, match="argument 2"):
        init_backend_cuda_graph_state(backend, 1, None, depth=2, groups=())

    assert 1 == backend.calls
