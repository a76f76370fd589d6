"""`tsgraph tune`: the capture sizes with which the batches that an engine saw cost least, beside the spec's."""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Mapping
from typing import Any

import attrs

from tsgraph.cli.tuning import facts, told
from tsgraph.dispatch.costs import EAGER, Costs
from tsgraph.dispatch.forecast import Forecast
from tsgraph.dispatch.histogram import Histogram
from tsgraph.dispatch.observations import read_observations, read_text
from tsgraph.dispatch.tune import tune
from tsgraph.errors import CallerError
from tsgraph.spec.load import load_spec

SAYS = "choose the capture sizes that fit the batches of a log or histogram best, and say what they leave out"
_UNITS = {unit: 1000**power for power, unit in enumerate(("B", "KB", "MB", "GB", "TB"))} | {
    unit: 1024**power for power, unit in enumerate(("", "KIB", "MIB", "GIB", "TIB"))
}


def add(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the `tune` command."""
    parser = subparsers.add_parser("tune", help=SAYS, description=f"{SAYS}. Ends with 1 where no size covers a batch.")
    parser.add_argument("file", metavar="LOG|HISTOGRAM", help="JSON, CSV, JSON lines, or a runtime's snapshot")
    parser.add_argument(
        "--slots", type=_count, metavar="N", help="slots of each variant at most (default: as many as the spec has)"
    )
    parser.add_argument("--rows", type=_count, metavar="N", help="most live rows of a step (default: the spec's cap)")
    parser.add_argument("--spec", default="decode", metavar="NAME", help="a spec to compare with (default: decode)")
    parser.add_argument("--variants", type=_names, default=(), metavar="A,B", help="variants beside those in the file")
    parser.add_argument(
        "--tokens-per-request", type=_count, metavar="N", help="width of speculation (default: the file's)"
    )
    costs = parser.add_argument_group("what steps cost")
    costs.add_argument(
        "--costs", metavar="FILE", help="JSON: measured seconds of a replay by size (default: its tokens)"
    )
    costs.add_argument(
        "--eager", type=float, default=EAGER, metavar="F", help="of an eager step, in replays (default: 2)"
    )
    memory = parser.add_argument_group("what slots take", "Bytes, or such as 512MiB. Largest first, one pool for all.")
    memory.add_argument("--memory", type=_bytes, metavar="M", help="limit of all slots; without a snapshot it needs:")
    memory.add_argument("--shared-bytes", type=_bytes, metavar="B", help="for each row of the largest size, once")
    memory.add_argument("--row-bytes", type=_bytes, metavar="B", help="that every slot keeps for each of its rows")
    memory.add_argument("--slot-bytes", type=_bytes, metavar="B", help="that every slot keeps besides")
    memory.add_argument("--forecast", metavar="FILE", help="a runtime's snapshot that tells all three")
    parser.add_argument("--json", action="store_true", help="print one JSON document with all figures")


def run(args: argparse.Namespace) -> int:
    """Print the sizes. Returns 0 if they cover all batches, 1 if not. Raises: TsgraphError for what cannot be used."""
    spec, seen = load_spec(args.spec), _seen(args)
    tuning = tune(
        seen,
        spec.sizes,
        slots=args.slots,
        rows=args.rows,
        costs=Costs(seconds=_measured(args.costs), eager=args.eager),
        forecast=_forecast(args, seen),
        memory=args.memory,
    )
    print(json.dumps({"file": args.file, **facts(tuning, seen, spec)}) if args.json else told(tuning, seen, spec))
    return 1 if tuning.chosen.eager else 0


def _count(text: str) -> int:
    if not (text.isascii() and text.isdigit() and int(text) > 0):
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive whole number")
    return int(text)


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())


def _bytes(text: str) -> int:
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([A-Za-z]*)", text.strip())
    if found is None or found[2].upper() not in _UNITS:
        raise argparse.ArgumentTypeError(f"{text!r} is no size of memory, such as 1048576, 512MiB or 1.5GB")
    return int(float(found[1]) * _UNITS[found[2].upper()])


def _seen(args: argparse.Namespace) -> Histogram:
    seen = read_observations(args.file, tokens_per_request=args.tokens_per_request)
    return attrs.evolve(seen, steps={name: seen.steps.get(name, {}) for name in (*seen.variants, *args.variants)})


def _measured(path: str | None) -> Mapping[int, float] | None:
    """Seconds by size."""
    if path is None:
        return None
    table = _object(path)
    if not all(size.isdecimal() for size in table):
        raise CallerError(f"{path}: sizes must be whole numbers, not {', '.join(table)}", path=path)
    return {int(size): seconds for size, seconds in table.items()}


def _forecast(args: argparse.Namespace, seen: Histogram) -> Forecast | None:
    """What is said on the command line; else, where memory is limited, what a snapshot tells of its own slots."""
    given = {"shared": args.shared_bytes, "row": args.row_bytes, "slot": args.slot_bytes}
    given = {name: each for name, each in given.items() if each is not None}
    if args.forecast is None and given:
        return Forecast(**given)
    if args.forecast is None:
        return Forecast.of_slots(seen.slots) if seen.slots and args.memory is not None else None
    if given:
        raise CallerError("a forecast is given twice", hint="give --forecast, or bytes, but not both")
    slots = _object(args.forecast).get("slots")
    if not isinstance(slots, list):
        raise CallerError(f"{args.forecast} tells of no slots", hint="give a runtime's snapshot", path=args.forecast)
    return Forecast.of_slots(slots)


def _object(path: str) -> dict[str, Any]:
    try:
        document = json.loads(read_text(path))
    except (ValueError, RecursionError) as error:
        raise CallerError(f"{path} is no JSON: {error}", path=path) from error
    if not isinstance(document, dict):
        raise CallerError(f"{path} holds no JSON object", path=path)
    return document
