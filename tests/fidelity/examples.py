"""What PyTorch's documentation and common engines do with CUDA graphs, written anew for inference.

Each `example_*(device)` uses `torch.cuda` as it is: on a GPU for real, elsewhere under `tsgraph.testing.emulate()`. It
returns what it found, on the host, as tensors and plain values. Nothing in it depends on which of the two it runs on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

Device = str
Results = list[Any]


def examples() -> Iterator[Callable[[Device], Results]]:
    """All of them, by name."""
    for name, function in sorted(globals().items()):
        if name.startswith("example_"):
            yield function


def _network(device: Device, width: int = 8) -> nn.Module:
    """A small network with weights that are the same everywhere."""
    torch.manual_seed(7)
    network = nn.Sequential(nn.Linear(4, width), nn.ReLU(), nn.Linear(width, 3))
    return network.to(device).eval()


def _batch(rows: int, start: float, device: Device) -> torch.Tensor:
    return (torch.arange(rows * 4, dtype=torch.float32) / 10 + start).view(rows, 4).to(device)


def _warm_up(step: Callable[[], object], times: int = 3) -> None:
    """Run `step` on a side stream, as the documentation asks for before a capture."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(times):
            step()
    torch.cuda.current_stream().wait_stream(side)


@torch.no_grad()
def example_whole_network(device: Device) -> Results:
    """Warm up, capture a whole forward pass, then fill the static input and replay, again and again."""
    network, static_input = _network(device), torch.zeros(2, 4, device=device)
    _warm_up(lambda: network(static_input))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        static_output = network(static_input)
    results: Results = []
    for start in (0.0, 1.0, -2.0):
        batch = _batch(2, start, device)
        static_input.copy_(batch)
        graph.replay()
        results += [static_output.cpu(), torch.allclose(static_output, network(batch), atol=1e-6)]
    return results


@torch.no_grad()
def example_partial_capture(device: Device) -> Results:
    """Graph what is static, and choose between the graphs in Python, by a value that is read on the host."""
    first, left, right = _network(device), nn.Linear(3, 3).to(device), nn.Linear(3, 3).to(device)
    for module, value in ((left, 0.5), (right, -0.25)):
        for parameter in module.parameters():
            parameter.fill_(value)
    graphed_first: Any = torch.cuda.make_graphed_callables(first, (torch.zeros(2, 4, device=device),))
    hidden = torch.zeros(2, 3, device=device)
    graphed_left, graphed_right = torch.cuda.make_graphed_callables((left, right), ((hidden,), (hidden,)))
    results: Results = []
    for start in (0.0, 3.0, -3.0):
        middle = graphed_first(_batch(2, start, device))
        chosen: Any = graphed_left if middle.sum().item() > 0 else graphed_right
        results += [chosen is graphed_left, chosen(middle).cpu()]
    return results


@torch.no_grad()
def example_shared_pool(device: Device) -> Results:
    """Two graphs in one pool, replayed in the order of their capture; the second reads what the first made."""
    source = torch.ones(4, device=device)
    first, second = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
    with torch.cuda.graph(first):
        middle = source * 2 + 1
    with torch.cuda.graph(second, pool=first.pool()):
        result = middle.cumsum(0)
    results: Results = [tuple(first.pool()) == tuple(second.pool())]
    for value in (1.0, 5.0):
        source.fill_(value)
        first.replay()
        second.replay()
        results.append(result.cpu())
    return results


@torch.no_grad()
def example_pool_handle(device: Device) -> Results:
    """Independent graphs in a pool that was asked for, each with its results copied out before the next replay."""
    handle, source = torch.cuda.graph_pool_handle(), torch.arange(6.0, device=device)
    graphs, outputs = [], []
    for power in (1, 2, 3):
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=handle):
            outputs.append(source**power + 1)
        graphs.append(graph)
    results: Results = []
    for graph, output in zip(graphs, outputs, strict=True):
        graph.replay()
        results.append(output.cpu())
    return results


@torch.no_grad()
def example_side_stream(device: Device) -> Results:
    """A capture that forks to a side stream by an event and joins it again before it ends."""
    source = torch.ones(3, device=device)
    graph, side = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    with torch.cuda.graph(graph):
        doubled = source * 2
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            aside = doubled + 10
        here = doubled - 10
        torch.cuda.current_stream().wait_stream(side)
        total = here * aside
    source.fill_(4.0)
    graph.replay()
    torch.cuda.synchronize()
    return [here.cpu(), aside.cpu(), total.cpu()]


@torch.no_grad()
def example_several_streams(device: Device) -> Results:
    """Branches on streams of their own, with an event for each end, all joined by the stream of the capture."""
    source = torch.arange(4.0, device=device)
    streams = [torch.cuda.Stream() for _ in range(3)]
    graph, capturing = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    with torch.cuda.graph(graph, stream=capturing):
        began = torch.cuda.Event()
        began.record()
        branches, ends = [], []
        for index, stream in enumerate(streams):
            with torch.cuda.stream(stream):
                began.wait()
                branches.append((source + index).square())
                ends.append(stream.record_event())
        for end in ends:
            torch.cuda.current_stream().wait_event(end)
        total = torch.stack(branches).sum(0)
    results: Results = []
    for value in (0.0, 2.0):
        source.fill_(value)
        graph.replay()
        results.append(total.cpu())
    return results


@torch.no_grad()
def example_begin_and_end(device: Device) -> Results:
    """A capture without the context manager: begin and end on a stream of one's own, then reset and capture again."""
    source, graph, stream = torch.full((2,), 3.0, device=device), torch.cuda.CUDAGraph(), torch.cuda.Stream()
    results: Results = []
    for factor in (2.0, 5.0):
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            before = torch.cuda.is_current_stream_capturing()
            graph.capture_begin(capture_error_mode="thread_local")
            during = torch.cuda.is_current_stream_capturing()
            output = source * factor
            graph.capture_end()
        torch.cuda.current_stream().wait_stream(stream)
        graph.replay()
        results += [before, during, torch.cuda.is_current_stream_capturing(), output.cpu()]
        del output
        graph.reset()
    return results


class Runner:
    """Captures a model at several batch sizes, the largest first, in one pool; pads a batch to the next size.

    The shape that most engines have: static buffers of the largest size, of which each graph reads the first rows.
    """

    def __init__(self, model: nn.Module, sizes: tuple[int, ...], device: Device) -> None:
        self.model, self.sizes, self.device = model, sorted(sizes), device
        self.inputs = torch.zeros(max(sizes), 4, device=device)
        self.graphs: dict[int, torch.cuda.CUDAGraph] = {}
        self.outputs: dict[int, torch.Tensor] = {}
        self.pool: Any = None
        self.stream = torch.cuda.Stream()

    @torch.inference_mode()
    def capture(self) -> None:
        """Warm up and capture every size."""
        self.stream.wait_stream(torch.cuda.current_stream())
        for size in reversed(self.sizes):
            self._capture(size)
        torch.cuda.current_stream().wait_stream(self.stream)

    def _capture(self, size: int) -> None:
        with torch.cuda.stream(self.stream):
            for _ in range(2):
                self.model(self.inputs[:size])
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self.pool, stream=self.stream):
            self.outputs[size] = self.model(self.inputs[:size])
        self.pool = self.pool or graph.pool()
        self.graphs[size] = graph

    @torch.inference_mode()
    def run(self, batch: torch.Tensor) -> torch.Tensor:
        """The model's answer to `batch`: by a graph if one is large enough, else eagerly."""
        rows = batch.shape[0]
        size = next((size for size in self.sizes if size >= rows), None)
        if size is None:
            eager: torch.Tensor = self.model(batch)
            return eager
        self.inputs[:rows].copy_(batch, non_blocking=True)
        self.inputs[rows:size].zero_()
        self.graphs[size].replay()
        return self.outputs[size][:rows].clone()


def example_runner(device: Device) -> Results:
    """Batches of every size, through a runner that pads: each row as an eager step gives it."""
    model = _network(device).requires_grad_(False)
    runner = Runner(model, (1, 2, 4), device)
    runner.capture()
    results: Results = []
    for rows in (1, 2, 3, 4, 5, 1):
        batch = _batch(rows, rows / 2, device)
        answer = runner.run(batch)
        results += [answer.cpu(), torch.allclose(answer, model(batch), atol=1e-6)]
    return results


@torch.no_grad()
def example_pinned_staging(device: Device) -> Results:
    """Copies from and into pinned memory within the graph: each replay reads and writes the host's memory anew."""
    staged, answer = torch.zeros(3).pin_memory(), torch.zeros(3, pin_memory=True)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        there = staged.to(device, non_blocking=True)
        answer.copy_(there * 10, non_blocking=True)
    results: Results = [staged.is_pinned(), answer.is_pinned()]
    for value in (1.0, 2.0):
        staged.fill_(value)
        graph.replay()
        torch.cuda.synchronize()
        results.append(answer.clone())
    return results


@torch.no_grad()
def example_cached_buffer(device: Device) -> Results:
    """A module that makes a buffer in its first call: the warm-up makes it, so the graph reads one that stays."""

    class Positions(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table: torch.Tensor | None = None

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if self.table is None:
                self.table = torch.arange(x.shape[-1], device=x.device, dtype=x.dtype)
            return x + self.table

    module, source = Positions(), torch.zeros(2, 3, device=device)
    _warm_up(lambda: module(source), times=1)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        output = module(source)
    source.fill_(1.0)
    graph.replay()
    return [str(module.table.device), output.cpu()] if module.table is not None else []


@torch.no_grad()
def example_random_numbers(device: Device) -> Results:
    """Fresh numbers at each replay; the same again from the same seed, of the default and a registered generator."""
    own = torch.Generator(device=device)
    graph = torch.cuda.CUDAGraph()
    graph.register_generator_state(own)
    with torch.cuda.graph(graph):
        default, registered = torch.rand(4, device=device), torch.rand(4, device=device, generator=own)
    seen = []
    for _ in range(2):
        torch.cuda.manual_seed(11)
        own.manual_seed(13)
        for _ in range(2):
            graph.replay()
            seen.append(torch.cat([default, registered]).cpu())
    return [
        torch.equal(seen[0], seen[1]),
        torch.equal(seen[0], seen[2]),
        torch.equal(seen[1], seen[3]),
        all(bool(((0 <= each) & (each < 1)).all()) for each in seen),
    ]


@torch.no_grad()
def example_autocast(device: Device) -> Results:
    """A captured matrix product under autocast: the graph keeps the dtype that the capture chose."""
    weight, source = torch.eye(4, device=device) * 2, torch.ones(2, 4, device=device)
    with torch.autocast("cuda", dtype=torch.bfloat16, cache_enabled=False):
        _warm_up(lambda: source @ weight, times=1)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            output = source @ weight
    source.fill_(3.0)
    graph.replay()
    return [str(output.dtype), output.float().cpu()]
