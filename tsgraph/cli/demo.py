"""`tsgraph demo`: serves text prompts on the reference engine through captured slots, and proves the result."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING

from tsgraph.errors import CallerError
from tsgraph.keys import Reason

if TYPE_CHECKING:
    from rich.console import Console

    from tsgraph.reference import Completion
    from tsgraph.reference.trial import Trial

BACKENDS = ("auto", "emulated", "cuda")
DEFAULT_REQUESTS = 24
SAYS = "serve text prompts on the reference engine through captured slots, and prove the result against eager steps"


def add(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the `demo` command."""
    parser = subparsers.add_parser("demo", help=SAYS, description=SAYS)
    parser.add_argument("--prompts", metavar="FILE", help="UTF-8 text, one prompt per line (default: the shipped ones)")
    parser.add_argument("--backend", choices=BACKENDS, default="auto", help="auto: cuda if there is one, else emulated")
    parser.add_argument("--requests", type=_count, default=DEFAULT_REQUESTS, metavar="N", help="how many (default: 24)")
    parser.add_argument("--speculative", action="store_true", help="verify drafts of a smaller model, 4 tokens a step")
    parser.add_argument("--recurrent", action="store_true", help="half of the layers keep a state for each request")
    parser.add_argument("--json-schema", metavar="FILE", help="every other text must be JSON that this schema allows")
    parser.add_argument(
        "--verify", action="store_true", help="try every slot by itself, over garbage and other replays"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document with all figures")


def run(args: argparse.Namespace) -> int:
    """Run the demo. Returns 0 if replay and eager agree, 1 if not. Raises: CallerError for what cannot be run."""
    from rich.console import Console

    from tsgraph.reference import load_prompts
    from tsgraph.reference.constraint import JsonGrammar, load_schema
    from tsgraph.reference.trial import config_for, requests_for, run_trial

    device, parts = _device(args.backend), {"speculative": args.speculative, "recurrent": args.recurrent}
    grammar = None if args.json_schema is None else JsonGrammar.of(load_schema(args.json_schema))
    prompts, penalties = load_prompts(args.prompts), any(parts.values())
    requests = requests_for(prompts, args.requests, penalties=penalties, grammar=grammar)
    with Console(stderr=True).status("capturing, serving, and running every replayed step again"):
        words = {"backend": args.backend, "grammar": grammar, "verify": args.verify}
        trial = run_trial(requests, config_for(requests, device, **parts), **words)
    if args.json:
        print(json.dumps(trial.as_json(), indent=2, ensure_ascii=False))
    else:
        _show(trial, Console(highlight=False, markup=False))
    return 0 if trial.holds else 1


def _count(text: str) -> int:
    if not (text.isascii() and text.isdigit() and int(text) > 0):
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive whole number")
    return int(text)


def _device(backend: str) -> str:
    import torch

    there = torch.cuda.is_available()
    if backend == "cuda" and not there:
        raise CallerError("torch sees no CUDA device here", hint="use --backend emulated", backend=backend)
    if there and backend != "emulated":
        return "cuda"
    torch.set_num_threads(1)  # operations this small gain nothing from threads, and lose much on a busy machine
    return "cpu"


def _show(trial: Trial, console: Console) -> None:
    _show_completions(trial.completions, console)
    console.print(trial.table, soft_wrap=True)
    _show_figures(trial, console)
    if trial.verification is not None:
        console.print(trial.verification.table(console.width), soft_wrap=True)
    for fault in (*trial.proof.faults, *trial.invalid):
        console.print(f"  {fault}", style="red")
    for flip in (*trial.proof.flips, *trial.flips):
        console.print(f"  {flip}", style="yellow" if flip.excused else "red")
    console.print(_verdict(trial), style="bold green" if trial.holds else "bold red")


def _show_completions(completions: Sequence[Completion], console: Console) -> None:
    from rich.table import Table
    from rich.text import Text

    table = Table(
        title="a decoder with random weights completes", title_justify="left", box=None, pad_edge=False, expand=True
    )
    for name, ratio in (("prompt", 3), ("completion", 2)):
        table.add_column(name, ratio=ratio, no_wrap=True, overflow="ellipsis")
    for name in ("tokens", "end"):
        table.add_column(name, justify="right", no_wrap=True)
    for each in completions:
        prompt, text = (Text(_printable(tokens)) for tokens in (each.request.prompt, each.tokens))
        table.add_row(prompt, text, str(len(each.tokens)), each.ended)
    console.print(table, "")


def _show_figures(trial: Trial, console: Console) -> None:
    from rich.table import Table

    counters = trial.snapshot["counters"]
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_row("replayed steps", str(counters["replays"]))
    for reason, steps in counters["eager"].items():
        table.add_row("eager steps", f"{steps} ({Reason[reason.upper()].value})")
    table.add_row("pad rows", str(counters["pad_rows"]))
    table.add_row("decoding, replayed", f"{trial.replayed_speed:.0f} tokens/s")
    table.add_row("decoding, eager", f"{trial.eager_speed:.0f} tokens/s")
    if trial.config.drafts:
        gains = f"{trial.replayed_gain:.2f} replayed, {trial.eager_gain:.2f} eager"
        table.add_row("accepted tokens per step", f"{gains}, of {trial.config.tokens_per_request}")
    if trial.grammar is not None:
        valid = f"{len(trial.constrained) - len(trial.invalid)} of {len(trial.constrained)} texts"
        table.add_row("valid JSON", f"{valid} ({trial.grammar.by} matcher)")
    table.add_row("largest logit difference", f"{trial.proof.furthest:.1e}, eager at the live shape")
    console.print(table, "")
    if trial.snapshot["backend"] == "emulated":
        console.print("emulated: this shows that replays are right, not how fast they are on a GPU")


def _verdict(trial: Trial) -> str:
    if not trial.proof.steps:
        return "not verified: no step was replayed"
    if trial.invalid:
        return "INVALID: texts do not keep their grammar"
    if trial.verification is not None and not trial.verification.ok:
        return f"DIFFERENT: {trial.verification.verdict}"
    if not trial.holds:
        return "DIFFERENT: replay and eager do not agree"
    flips = len(trial.proof.flips) + len(trial.flips)
    near = f" ({flips} near-ties fell otherwise at another shape, within rounding)" if flips else ""
    return f"verified: {trial.proof.steps} replayed steps equal eager bit by bit, and all texts agree{near}"


def _printable(tokens: Sequence[int]) -> str:
    from tsgraph.reference import decode

    return "".join(
        char if char.isprintable() and char != "\N{REPLACEMENT CHARACTER}" else "·" for char in decode(tokens)
    )
