"""What constrained decoding costs a decode step: the host's time, and how much of the mask build its forward hides."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from operator import sub
from statistics import median
from time import perf_counter
from typing import Any

import attrs
import torch

from tsgraph.bench.report import Report, Sheet, add_outputs, count, counts, micro, progress, publish
from tsgraph.grammar.capturable import CapturableGrammar
from tsgraph.grammar.dfa import Automaton, DfaMatcher
from tsgraph.grammar.eager import EagerGrammar
from tsgraph.protocols.matching import Matcher, Words
from tsgraph.reference import EngineConfig, Parts, graph_runtime
from tsgraph.reference.cache import DUMMY_PAGE
from tsgraph.reference.constraint import TOKENS
from tsgraph.reference.model import DecoderConfig
from tsgraph.reference.text import EOS
from tsgraph.runtime import GraphRuntime

SAYS = "constrained decoding: the host's time of a step, and how much of the mask build the forward hides"
_TURNS, _ROWS, _WIDTH, _LAYERS, _MICROSECONDS = 100, 16, 1024, 16, (0, 50)
_WARM_UPS, _LENGTH = 5, 64
WAYS = ("free", "in the graph", "before the step")


def add(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the `grammar` benchmark."""
    parser = subparsers.add_parser("grammar", help=SAYS, description=SAYS)
    for option, default, told in (
        ("--turns", _TURNS, "steps of each"),
        ("--rows", _ROWS, "rows of a step, all of them constrained"),
        ("--width", _WIDTH, "width of the reference decoder"),
        ("--layers", _LAYERS, "layers of it"),
    ):
        parser.add_argument(option, type=count, default=default, metavar="N", help=f"{told} (default: {default})")
    words = ",".join(map(str, _MICROSECONDS))
    told = f"Python that a matcher does for each mask, beside its own (default: {words})"
    parser.add_argument("--microseconds", type=_costs, default=_MICROSECONDS, metavar="N,…", help=told)
    add_outputs(parser, "turns", "rows", "width", "layers", "microseconds")
    parser.set_defaults(run=run)


def _costs(text: str) -> tuple[int, ...]:
    return tuple(0 if word == "0" else counts(word)[0] for word in text.split(","))


def run(args: argparse.Namespace) -> int:
    """Run it on the CUDA device, or emulated, and print a table."""
    say, found = progress("grammar"), []
    for cost in args.microseconds:
        say(f"matchers of {cost} µs")
        found += [attrs.asdict(each) for each in measure(_config(args), args.turns, cost / 1e6)]
    return publish(Report.of("grammar", args, {"steps": found}), [_sheet(found)], args)


def _config(args: argparse.Namespace) -> EngineConfig:
    heads = max(1, args.width // 64)
    shape = DecoderConfig(
        width=args.width, layers=args.layers, heads=heads, kv_heads=heads, head_dim=64, hidden=3 * args.width
    )
    device = "cuda" if torch.cuda.is_available() else "cpu"
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    return EngineConfig(decoder=shape, rows=args.rows, constrained=True, device=device, dtype=dtype, eos=None)


def _sheet(found: list[dict[str, Any]]) -> Sheet:
    columns = ("masks are made", "µs a matcher adds", "host µs of a step", "masks µs", "whole step µs", "masks hidden")
    rows = tuple(
        (
            each["way"],
            f"{each['cost'] * 1e6:.0f}",
            *(micro(each[name]) for name in ("host", "masks", "whole")),
            "" if each["hidden"] is None else f"{each['hidden']:.0%}",
        )
        for each in found
    )
    notes = (
        "Host: pushing the entry and calling the step (before the step: making the masks, too).",
        "Masks: from the first call of a matcher to the end of the last. Medians of each.",
    )
    return Sheet("Constrained decode steps", columns, rows, notes)


# -- measuring --------------------------------------------------------------------------------------------------------


@attrs.frozen
class Step:
    """Medians of one way, in seconds: of the `host`, of making the `masks`, of the `whole` step. `hidden`: of masks."""

    way: str
    cost: float
    host: float
    masks: float
    whole: float
    hidden: float | None


@attrs.define
class Span:
    """When matchers were busy in a step."""

    began: float = 0.0
    ended: float = 0.0

    def take(self) -> float:
        """Seconds from the first call to the end of the last; begin anew."""
        seconds, self.began, self.ended = self.ended - self.began, 0.0, 0.0
        return seconds


@attrs.define(eq=False)
class TimedMatcher:
    """A matcher that takes `cost` seconds more for each mask, and tells `span` when it is busy."""

    inner: Matcher
    cost: float
    span: Span

    @property
    def terminated(self) -> bool:
        """As the inner one."""
        return self.inner.terminated

    def fill(self, words: Words) -> None:
        """As the inner one, later."""
        began = self._begin()
        self.inner.fill(words)
        while perf_counter() - began < self.cost:
            pass
        self.span.ended = perf_counter()

    def accept(self, token: int) -> bool:
        """As the inner one."""
        self._begin()
        accepted = self.inner.accept(token)
        self.span.ended = perf_counter()
        return accepted

    def rollback(self, count: int) -> None:
        """As the inner one."""
        self.inner.rollback(count)

    def _begin(self) -> float:
        now = perf_counter()
        self.span.began = self.span.began or now
        return now


def measure(config: EngineConfig, turns: int, cost: float) -> Iterator[Step]:
    """The ways, in turns over the same sources; each has an engine of equal weights."""
    benches = {way: Bench.of(config, way, turns, cost) for way in WAYS}
    for turn in range(_WARM_UPS + turns):
        for way in WAYS[turn % 3 :] + WAYS[: turn % 3]:
            benches[way].step(counts_in=turn >= _WARM_UPS)
    free = benches["free"].whole
    for way, bench in benches.items():
        masks, longer = median(bench.masks), median(map(sub, bench.whole, free))
        hidden = 1 - longer / masks if masks else None
        yield Step(way, cost, median(bench.host), masks, median(bench.whole), hidden)


@attrs.define(eq=False, kw_only=True)
class Bench:
    """One way of serving the same step again and again."""

    runtime: GraphRuntime
    executor: CapturableGrammar | EagerGrammar
    sources: dict[str, Any]
    matchers: list[TimedMatcher | None]
    span: Span
    host: list[float] = attrs.field(factory=list)
    masks: list[float] = attrs.field(factory=list)
    whole: list[float] = attrs.field(factory=list)

    @classmethod
    def of(cls, config: EngineConfig, way: str, turns: int, cost: float) -> Bench:
        """The bench of one way, its slot captured."""
        parts, span = Parts.build(config), Span()
        if parts.constraints is not None and way == "before the step":
            parts.constraints.make = EagerGrammar
        runtime = graph_runtime(parts, sizes=[config.rows])
        automaton = Automaton.of("[a-z]{%d}" % (turns + 2 * _WARM_UPS), TOKENS, EOS)  # noqa: UP031 -- braces are its own

        def matcher() -> TimedMatcher | None:
            most = turns + 4 * _WARM_UPS
            return None if way == "free" else TimedMatcher(DfaMatcher(automaton, most), cost, span)

        executor = parts.constraints.executor if parts.constraints is not None else None
        if executor is None:
            raise ValueError("the configuration is of an engine without grammars")
        matchers = [matcher() for _ in range(config.rows)]
        return cls(runtime=runtime, executor=executor, sources=_sources(config), matchers=matchers, span=span)

    def step(self, *, counts_in: bool) -> None:
        """Serve it once, to the end; `counts_in`: whether its times count."""
        rows, began = len(self.matchers), perf_counter()
        self.runtime.push(rows, self.matchers)
        if isinstance(self.executor, EagerGrammar):
            self.executor.prepare()
        done = self.runtime.step(rows=rows, **self.sources)
        host = perf_counter() - began
        done.ready.wait()
        if isinstance(self.executor, EagerGrammar):
            self.executor.deliver(done.outputs["tokens"])
        whole, masks = perf_counter() - began, self.span.take()
        if counts_in:
            for times, seconds in ((self.host, host), (self.masks, masks), (self.whole, whole)):
                times.append(seconds)


def _sources(config: EngineConfig) -> dict[str, Any]:
    """A step of full rows, each `_LENGTH` tokens into its text, on pages of its own as far as they go."""
    rows, pages = config.rows, torch.arange(config.pages_per_request)
    own = 1 + (torch.arange(rows)[:, None] * len(pages) + pages) % (config.pages - 1)
    used = -(-_LENGTH // config.page_size)
    table = torch.where(pages < used, own, torch.tensor(DUMMY_PAGE))
    last = own[:, used - 1] * config.page_size + (_LENGTH - 1) % config.page_size
    filled: dict[str, tuple[Callable[..., torch.Tensor], Any, torch.dtype]] = {
        "input_ids": (torch.full, ord("a"), torch.int32),
        "positions": (torch.full, _LENGTH - 1, torch.int64),
        "seq_lens": (torch.full, _LENGTH, torch.int32),
        "temperature": (torch.full, 0.0, torch.float32),
        "top_k": (torch.full, 0, torch.int32),
        "top_p": (torch.full, 1.0, torch.float32),
        "seed": (torch.full, 0, torch.int64),
    }
    sources = {name: make((rows,), value, dtype=dtype) for name, (make, value, dtype) in filled.items()}
    places = {"cache_locations": last.int(), "request_pool": torch.arange(1, rows + 1), "page_table": table.int()}
    return sources | places
