"""Code as others write it, unmodified, under emulation: PyTorch's documented examples and engines' runners."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tests.fidelity import examples

pytestmark = pytest.mark.usefixtures("emulated")

ALL = {function.__name__: function for function in examples.examples()}
KNOWN = {
    "example_shared_pool": [True, [3.0, 6.0, 9.0, 12.0], [11.0, 22.0, 33.0, 44.0]],
    "example_pool_handle": [
        [1.0, 2.0, 3.0, 4.0, 5.0, 6.0], [1.0, 2.0, 5.0, 10.0, 17.0, 26.0], [1.0, 2.0, 9.0, 28.0, 65.0, 126.0],
    ],
    "example_side_stream": [[-2.0] * 3, [18.0] * 3, [-36.0] * 3],
    "example_several_streams": [[5.0] * 4, [29.0] * 4],
    "example_begin_and_end": [False, True, False, [6.0, 6.0], False, True, False, [15.0, 15.0]],
    "example_pinned_staging": [True, True, [10.0] * 3, [20.0] * 3],
    "example_cached_buffer": ["cuda:0", [[1.0, 2.0, 3.0]] * 2],
    "example_random_numbers": [False, True, True, True],
    "example_autocast": ["torch.bfloat16", [[6.0] * 4] * 2],
}  # fmt: skip


def _plain(results):
    return [each.tolist() if isinstance(each, torch.Tensor) else each for each in results]


@pytest.mark.parametrize("name", KNOWN)
def test_example(name):
    """It runs and gives what one works out by hand."""
    assert KNOWN[name] == _plain(ALL[name]("cuda"))


@pytest.mark.parametrize("name", sorted(ALL.keys() - KNOWN.keys()))
def test_example_against_eager(name):
    """It runs, and says of each replay that it equals the eager step; its tensors are on the host."""
    results = ALL[name]("cuda")
    tensors = [each for each in results if isinstance(each, torch.Tensor)]

    assert tensors
    assert all(not each.is_cuda and each.isfinite().all() for each in tensors)
    if name != "example_partial_capture":  # its flags say which branch was taken
        assert {True} == {each for each in results if isinstance(each, bool)}


def test_partial_capture_takes_both_branches():
    """The value that is read between the graphs decides."""
    taken = [each for each in examples.example_partial_capture("cuda") if isinstance(each, bool)]

    assert {True, False} == set(taken)


class ModelRunner:
    """A runner in the style of small serving engines: all of a decode step's inputs static, graphs by batch size."""

    def __init__(self, layers: int = 2, width: int = 8, vocabulary: int = 17, most: int = 4) -> None:
        torch.set_default_device("cuda")
        torch.set_default_dtype(torch.bfloat16)
        try:
            self.embed = nn.Embedding(vocabulary, width)
            self.blocks = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))
            self.head = nn.Linear(width, vocabulary, bias=False)
            self.cache = torch.zeros(64, width)
        finally:
            torch.set_default_device("cpu")
            torch.set_default_dtype(torch.float32)
        self.most = most
        self.capture()

    def forward(self, tokens: torch.Tensor, slots: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        hidden: torch.Tensor = self.embed(tokens)
        self.cache.index_copy_(0, slots, hidden)
        seen = self.cache[: self.most].sum(0) / lengths.unsqueeze(-1)
        for block in self.blocks:
            hidden = torch.relu(block(hidden + seen))
        return hidden

    @torch.inference_mode()
    def capture(self) -> None:
        self.static = {
            "tokens": torch.zeros(self.most, dtype=torch.int64, device="cuda"),
            "slots": torch.full((self.most,), 63, dtype=torch.int64, device="cuda"),
            "lengths": torch.ones(self.most, dtype=torch.int32, device="cuda"),
        }
        self.outputs = torch.zeros(self.most, 8, dtype=torch.bfloat16, device="cuda")
        self.graphs, self.pool = {}, None
        for size in (4, 2, 1):
            graph = torch.cuda.CUDAGraph()
            inputs = [tensor[:size] for tensor in self.static.values()]
            self.outputs[:size] = self.forward(*inputs)  # warm-up
            with torch.cuda.graph(graph, self.pool):
                self.outputs[:size] = self.forward(*inputs)
            if self.pool is None:
                self.pool = graph.pool()
            self.graphs[size] = graph
            torch.cuda.synchronize()

    @torch.inference_mode()
    def step(self, rows: list[tuple[int, int, int]]) -> list[int]:
        staged = [
            torch.tensor(column, dtype=static.dtype, pin_memory=True).cuda(non_blocking=True)
            for column, static in zip(zip(*rows, strict=True), self.static.values(), strict=True)
        ]
        size = next(size for size in sorted(self.graphs) if size >= len(rows))
        self.static["slots"].fill_(63)
        for static, values in zip(self.static.values(), staged, strict=True):
            static[: len(rows)] = values
        self.graphs[size].replay()
        hidden = self.outputs[: len(rows)]
        return list(self.head(hidden).float().argmax(-1).tolist())

    @torch.inference_mode()
    def eager(self, rows: list[tuple[int, int, int]]) -> list[int]:
        tokens, slots, lengths = (torch.tensor(column, device="cuda") for column in zip(*rows, strict=True))
        return list(self.head(self.forward(tokens, slots, lengths)).float().argmax(-1).tolist())


def test_model_runner():
    """An engine's decode step gives the same tokens by graphs as eagerly, at every batch size."""
    torch.manual_seed(0)
    runner = ModelRunner()
    for rows in ([(3, 0, 1)], [(5, 0, 2), (7, 1, 2)], [(1, 0, 3), (2, 1, 1), (16, 2, 4)]):
        runner.cache.zero_()
        by_graph = runner.step(rows)
        runner.cache.zero_()
        assert runner.eager(rows) == by_graph


def test_broken_runner_is_found_out():
    """A runner that hands over new tensors instead of filling the static ones replays the old values."""
    static = torch.zeros(2, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        output = static + 1
    other = static
    static = torch.full((2,), 5.0, device="cuda")  # another tensor by the same name
    graph.replay()

    assert ([1.0, 1.0], [5.0, 5.0], [0.0, 0.0]) == (output.tolist(), static.tolist(), other.tolist())
