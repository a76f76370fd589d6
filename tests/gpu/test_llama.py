"""A Llama of transformers on a CUDA device: its receipts hold nothing unknown, and every replay is an eager step's."""

from functools import partial

import pytest
import torch

from tsgraph.backends.choice import choose_backend
from tsgraph.bench.models import llama, transformers_llama

pytest.importorskip("transformers", reason="transformers is not installed")
pytestmark = pytest.mark.gpu

SMALL = {"num_hidden_layers": 4, "vocab_size": 4096}


@pytest.fixture(scope="module")
def served():
    """Its runtime, with two slots, and the rows that it starts from."""
    backend = choose_backend("cuda", [], "cuda")
    model = llama("llama-1b", backend, 8, 128, partial(transformers_llama, **SMALL))
    return model.runtime((4, 8)), model


def test_its_receipts_list_no_unknowns(served):
    """Weights, caches and rows by name; no undeclared memory, nothing opaque, and every kernel with its name."""
    runtime, _ = served
    for receipt in runtime.receipts().values():
        assert ([], ()) == ([*receipt.undeclared()], receipt.opaque), receipt.table(160)
        kinds = {external.kind for external in receipt.externals}
        assert {"parameter", "buffer", "state"} <= kinds
        assert receipt.kernels


def test_its_replays_are_eager_steps(served):
    """To the bit, at the slot's size; and verified."""
    runtime, model = served
    rows = {name: tensor.to("cuda") for name, tensor in model.start(7).items()}
    expected = runtime.eager(padded_to=8, clone=True, **rows)
    assert torch.equal(expected, runtime(**rows))
    report = runtime.verify(lambda live: {name: tensor.to("cuda") for name, tensor in model.start(live).items()})
    assert report.ok, report.table(160)
