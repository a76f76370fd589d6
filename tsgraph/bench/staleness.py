"""What looking for stale recordings costs per replay, in each of the policy's words, where nothing is to be staged."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, get_args, get_type_hints

import torch
from torch import nn

from tsgraph.bench.recording import record_step
from tsgraph.bench.turns import time_turns
from tsgraph.buffers.contract import Rows
from tsgraph.keys import DEFAULT_VARIANT
from tsgraph.protocols.backend import Backend
from tsgraph.runtime import GraphRuntime
from tsgraph.spec.model import Policy

PARAMETERS = 291
"""As many as a Llama of 32 layers has."""


def modes() -> tuple[str, ...]:
    """The words that `policy.staleness` takes."""
    return get_args(get_type_hints(Policy)["staleness"])


def measure_staleness(
    backend: Backend, turns: int, ahead: int, say: Callable[[str], None], parameters: int = PARAMETERS
) -> dict[str, Any]:
    """Times of a replay of one exact size in each mode, and of the bare replay.

    The only buffer is written in place by the engine, so a call decides, looks, replays and cuts, and nothing else.
    """
    model, runtimes = _Weights(parameters, backend.device), {}
    for mode in modes():
        say(f"staleness {mode}: capturing")
        runtimes[mode] = _runtime(backend, mode, model)
    ways: dict[str, Callable[[], object]] = {f"staleness {mode}": _call(each) for mode, each in runtimes.items()}
    lengths = backend.allocate((8,), torch.int32, 1)
    raw = record_step(lambda: (lengths, model()), backend)
    ways |= {"raw": raw.replay, "decision": _decide(runtimes["off"])}
    timings = time_turns(ways, turns, calls=ahead, settle=backend.synchronize)
    excess = {mode: timings.excess(f"staleness {mode}", "raw") for mode in modes()}
    over_off = {mode: timings.excess(f"staleness {mode}", "staleness off") for mode in modes()}
    return {
        "parameters": parameters,
        "ways": timings.figures(),
        "over raw": excess,
        "over off": over_off,
        "decision": timings.median("decision"),
    }


def _decide(runtime: GraphRuntime) -> Callable[[], object]:
    """The decision alone, as a call makes it: by variant and live rows."""
    routes = runtime._server.routes  # noqa: SLF001 - what is timed is inside
    return lambda: routes.tables[DEFAULT_VARIANT][8]


def _runtime(backend: Backend, mode: str, model: nn.Module) -> GraphRuntime:
    def step(lengths: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return lengths, model()

    runtime = GraphRuntime.for_step(
        step,
        inputs={"lengths": Rows(torch.int32, pad=1, source="engine")},
        sizes=(8,),
        outputs=("request", "whole"),
        modules=[model],
        policy={"staleness": mode},
        backend=backend,
    )
    runtime.capture()
    return runtime


class _Weights(nn.Module):
    """A module of many parameters, all of which are read by a kernel or two."""

    def __init__(self, parameters: int, device: torch.device) -> None:
        super().__init__()
        self.weights = nn.ParameterList(
            nn.Parameter(torch.ones(1, device=device), requires_grad=False) for _ in range(parameters)
        )

    def forward(self) -> torch.Tensor:
        return torch.cat(list(self.weights))


def _call(runtime: GraphRuntime) -> Callable[[], object]:
    return lambda: runtime(rows=8)
