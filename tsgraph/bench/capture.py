"""Capturing 23 sizes of a 16-layer decoder: seconds, and memory of the pool, in the seed's order and in tsgraph's."""

from __future__ import annotations

import argparse
import gc
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import attrs
import torch
from torch import Tensor

from tsgraph.bench.host import backend_for
from tsgraph.bench.report import Data, Report, Sheet, add_outputs, count, mebibytes, progress, publish, times
from tsgraph.bench.rows import random_rows
from tsgraph.bench.seed_model.capture import Captured, capture_all, capture_barely
from tsgraph.bench.settings import is_emulated
from tsgraph.protocols.backend import Backend
from tsgraph.reference import DecoderConfig, EngineConfig, Parts
from tsgraph.runtime import GraphRuntime
from tsgraph.spec.load import parse_spec
from tsgraph.spec.model import Spec

SAYS = "capturing many sizes of a decoder: seconds, and memory of the pool, in the seed's order and in tsgraph's"
SIZES = (1, 2, 4, *range(8, 161, 8))
SEED, FROZEN, ALONE, BARE = "seed", "seed, collector frozen", "alone", "bare"
PER_SLOT, PER_VARIANT = "tsgraph, warm-ups per slot", "tsgraph, warm-ups per variant"
WATCHED_ONCE = "tsgraph, and receipts of the warmed-up"
WORDS: Mapping[str, Mapping[str, Mapping[str, str]]] = {
    PER_SLOT: {"warmup": {"per": "slot"}},
    PER_VARIANT: {"warmup": {"per": "variant"}},
    WATCHED_ONCE: {"warmup": {"per": "variant"}, "policy": {"receipts": "warmed", "collect": "young"}},
}
"""What the spec of each of tsgraph's ways says."""

Say = Callable[[str], None]


OPTIONS = {
    "sizes": (len(SIZES), 3, "how many capture sizes, the smallest ones of decode's defaults"),
    "layers": (16, 2, "layers of the decoder"),
    "width": (1024, 64, "width of the decoder"),
    "context": (128, 32, "tokens that a request may have"),
    "turns": (3, 1, "times that each is run"),
}
"""Of each option what it is on a GPU, and emulated, where a recording takes seconds."""


def add(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the `capture` benchmark."""
    parser = subparsers.add_parser("capture", help=SAYS, description=SAYS)
    for option, (large, small, told) in OPTIONS.items():
        parser.add_argument(f"--{option}", type=count, metavar="N", help=f"{told} ({large}; emulated: {small})")
    parser.add_argument("--backend", default="auto", choices=("auto", "cuda", "emulated"), help="where to measure")
    parser.add_argument("--profile", type=Path, metavar="FILE", help="write where tsgraph's time goes, by cProfile")
    add_outputs(parser, *OPTIONS, "backend")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Measure on the CUDA device, or emulated where there is none, and print the table."""
    say, backend = progress("capture"), backend_for(args.backend)
    for option, (large, small, _) in OPTIONS.items():
        if getattr(args, option) is None:
            setattr(args, option, small if is_emulated(backend) else large)
    decoder = Decoder.of(SIZES[: args.sizes], args.layers, args.width, args.context, backend)
    data = {"backend": backend.name, "sizes": decoder.sizes, "layers": args.layers, **measure(decoder, args.turns, say)}
    if args.profile is not None:
        say(f"profiling into {args.profile}")
        profile_capture(decoder, args.profile)
    return publish(Report.of("capture", args, data), list(sheets(data)), args)


# -- the decoder ------------------------------------------------------------------------------------------------------


def spec_of(way: str) -> Spec:
    """The reference engine's contract with the words of one of tsgraph's ways, and room for all sizes."""
    words = {"extends": "reference", "name": "reference", "version": 1}
    return parse_spec({**words, "sizes": {"cap": SIZES[-1]}, **WORDS[way]})


@attrs.frozen(eq=False)
class Decoder:
    """The reference decoder that is captured, at these sizes."""

    parts: Parts
    sizes: tuple[int, ...]
    backend: Backend

    @classmethod
    def of(cls, sizes: Sequence[int], layers: int, width: int, context: int, backend: Backend) -> Decoder:
        """One of `layers` layers, in bfloat16 on a GPU."""
        cuda, rows, head = backend.device.type == "cuda", max(sizes), min(64, width // 2)
        shape = DecoderConfig(
            layers=layers,
            width=width,
            heads=width // head,
            kv_heads=max(1, width // head // 2),
            head_dim=head,
            hidden=width * 11 // 4,
        )
        config = EngineConfig(
            decoder=shape,
            rows=rows,
            context=context,
            pages=rows * -(-context // 16) + 1,
            device=str(backend.device),
            dtype=torch.bfloat16 if cuda else torch.float32,
        )
        return cls(Parts.build(config), tuple(sizes), backend)

    def runtime(self, way: str, sizes: Sequence[int]) -> GraphRuntime:
        """A runtime that has captured nothing yet."""
        return GraphRuntime(
            spec_of(way),
            self.parts.step,
            geometry=self.parts.geometry,
            sizes=list(sizes),
            modules=[self.parts.model],
            state=self.parts.states,
            backend=self.backend,
            observers=(),
        )

    def rows(self, size: int) -> dict[str, Any]:
        """Random rows for a step of `size` requests, on the host."""
        return random_rows(self.parts.config, size)


# -- measuring --------------------------------------------------------------------------------------------------------


def measure(decoder: Decoder, turns: int, say: Say) -> Data:
    """Each way `turns` times, in turns: what it takes, and that what it captured computes what eager does."""
    say("running every size eagerly, so that whatever is loaded at first use is there")
    _run_eagerly(decoder)
    ways: dict[str, Callable[[], Data]] = {
        SEED: lambda: _seed(decoder, decoder.sizes),
        FROZEN: lambda: _seed(decoder, decoder.sizes, partial(capture_all, freeze=True)),
        **{way: partial(_tsgraph, decoder, way) for way in WORDS},
        BARE: lambda: _seed(decoder, decoder.sizes, capture_barely),
        ALONE: lambda: _seed(decoder, decoder.sizes[-1:]),
    }
    found: dict[str, list[Data]] = {way: [] for way in ways}
    for turn in range(turns):
        for way, capture in ways.items():
            say(f"turn {turn + 1} of {turns}: {way}")
            found[way].append(capture())
            _tidy(decoder.backend)
    return {"ways": {way: _told(runs) for way, runs in found.items()}, "collection": _time_collection()}


def _told(runs: Sequence[Data]) -> Data:
    return {
        "seconds": median(run["seconds"] for run in runs),
        "turns": [run["seconds"] for run in runs],
        "bytes": max(run["bytes"] for run in runs),
        "failed": max((run["failed"] for run in runs), key=len),
        "farthest": max(run["farthest"] for run in runs),
        "slots": runs[-1].get("slots", []),
    }


def _run_eagerly(decoder: Decoder) -> None:
    runtime = decoder.runtime(PER_SLOT, decoder.sizes)
    for size in decoder.sizes:
        runtime.eager(rows=size, padded_to=size, **decoder.rows(size))
    decoder.backend.synchronize()
    runtime.capture(("default", decoder.sizes[0]))
    runtime.release()


def _tidy(backend: Backend) -> None:
    gc.collect()
    backend.synchronize()
    backend.trim()


def _time_collection() -> float:
    """Seconds of one garbage collection that looks at everything."""
    began = perf_counter()
    gc.collect()
    return perf_counter() - began


def _seed(decoder: Decoder, sizes: Sequence[int], capture: Callable[..., Captured] = capture_all) -> Data:
    batches = {size: slot.batch for (_, size), slot in decoder.runtime(PER_SLOT, decoder.sizes).slots.items()}
    wanted = {size: batches[size] for size in sizes}
    began = perf_counter()
    captured = capture(decoder.parts.step, wanted, decoder.backend)
    decoder.backend.synchronize()
    seconds = perf_counter() - began
    farthest = max(_distance_of_seed(decoder, captured, batches[size], size) for size in sizes)
    return {"seconds": seconds, "bytes": captured.pool_bytes, "failed": [], "farthest": farthest}


def _distance_of_seed(decoder: Decoder, captured: Captured, batch: Any, size: int) -> float:
    for name, rows in decoder.rows(size).items():
        batch[name].copy_(rows)
    with torch.inference_mode():
        eager = decoder.parts.step(batch)["logits"].clone()
    captured.replays[size]()
    decoder.backend.synchronize()
    return _distance(eager, captured.outputs[size]["logits"])


def _tsgraph(decoder: Decoder, way: str) -> Data:
    runtime = decoder.runtime(way, decoder.sizes)
    pooled = decoder.backend.memory().pooled
    began = perf_counter()
    summary = runtime.capture()
    decoder.backend.synchronize()
    seconds = perf_counter() - began
    size = decoder.backend.memory().pooled - pooled
    farthest = max(_distance_of_runtime(decoder, runtime, size) for size in decoder.sizes)
    slots = [slot.seconds for slot in runtime.slots.values()]
    failed = [f"{key}: {runtime.slots[key].cause}" for key in summary.failed]
    runtime.release()
    return {"seconds": seconds, "bytes": size, "failed": failed, "farthest": farthest, "slots": slots}


def _distance_of_runtime(decoder: Decoder, runtime: GraphRuntime, size: int) -> float:
    rows = decoder.rows(size)
    eager = runtime.eager(rows=size, padded_to=size, **rows)["logits"].clone()
    return _distance(eager, runtime(rows=size, **rows)["logits"])


def _distance(one: Tensor, other: Tensor) -> float:
    """The largest difference relative to the largest number; 0 where both are the same bit by bit."""
    if torch.equal(one, other):
        return 0.0
    return float((one - other).abs().max() / one.abs().max().clamp_min(1e-30))


def profile_capture(decoder: Decoder, path: Path) -> None:
    """Write what the quickest way to capture spends its time in."""
    import cProfile
    import pstats

    runtime, profile = decoder.runtime(WATCHED_ONCE, decoder.sizes), cProfile.Profile()
    profile.runcall(runtime.capture)
    runtime.release()
    with path.open("w", encoding="utf-8") as file:
        for order in ("cumtime", "tottime"):
            pstats.Stats(profile, stream=file).sort_stats(order).print_stats(50)


# -- telling ----------------------------------------------------------------------------------------------------------


def sheets(data: Data) -> Iterator[Sheet]:
    """The table of a run."""
    ways: Mapping[str, Data] = data["ways"]
    seed, alone = ways[SEED], ways[ALONE]
    rows = tuple(
        (
            way,
            f"{found['seconds']:.3f}",
            times(seed["seconds"] / found["seconds"]),
            mebibytes(found["bytes"]),
            times(found["bytes"] / max(alone["bytes"], 1)),
            "bit by bit" if found["farthest"] == 0 else f"to {found['farthest']:.1e}",
        )
        for way, found in ways.items()
    )
    columns = ("", "s", "times as fast as the seed", "MiB of the pool", "of the largest size's", "equal to eager")
    note = (
        f"{len(data['sizes'])} sizes from {data['sizes'][0]} to {data['sizes'][-1]}, {data['layers']} layers. A "
        f"collection of all garbage takes {data['collection']:.3f} s here: the seed makes two for a run of captures, "
        f"tsgraph one, and none where the policy says that young garbage will do. As it ships, the seed leaves the "
        f"collector on meanwhile. Bare: each size recorded once, after one warm-up for all, and nothing else: no order "
        f"that runs the step for each size takes less. Alone: the largest size by itself, in the seed's way."
    )
    failures = tuple(f"{way}: {failure}" for way, found in ways.items() for failure in found["failed"])
    yield Sheet("Captures", columns, rows, (note, *failures))
