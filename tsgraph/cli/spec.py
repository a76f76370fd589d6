"""`tsgraph spec check | draw | table | list`: look at a spec without an engine, a device or torch."""

from __future__ import annotations

import argparse
import json
from typing import Any

from tsgraph.errors import SpecError
from tsgraph.spec.catalog import locate, shipped
from tsgraph.spec.draw import draw_spec
from tsgraph.spec.load import load_spec
from tsgraph.spec.model import Spec
from tsgraph.spec.table import spec_table

NARROWEST = 60


def add(subparsers: Any) -> None:
    """Declare the arguments of `tsgraph spec`."""
    parser = subparsers.add_parser("spec", help="check, draw and list specs")
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    check = _on_file(actions, "check", "tell every problem of a spec at once")
    check.add_argument("--json", action="store_true", help="print the verdict as JSON")
    draw = _on_file(actions, "draw", "draw the lifecycle as a Mermaid state diagram")
    draw.add_argument("--state", help="a state to mark")
    table = _on_file(actions, "table", "list transitions, rules and buffers")
    table.add_argument("--width", type=_width, default=120, help="columns of text (default: %(default)s)")
    actions.add_parser("list", help="list the shipped specs")


def run(args: argparse.Namespace) -> int:
    """Do what `args` ask; returns the exit code. Raises: SpecError for a spec that cannot be shown."""
    if args.action == "check":
        return _check(args.file, as_json=args.json)
    print(_shown(args))
    return 0


def _on_file(actions: Any, name: str, what: str) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = actions.add_parser(name, help=what)
    parser.add_argument("file", metavar="FILE", help="a TOML file, or the name of a shipped spec")
    return parser


def _width(text: str) -> int:
    if not text.isdecimal() or int(text) < NARROWEST:
        raise argparse.ArgumentTypeError(f"{text!r} is no width; the narrowest is {NARROWEST}")
    return int(text)


def _shown(args: argparse.Namespace) -> str:
    if args.action == "list":
        return "\n".join(shipped())
    spec = load_spec(args.file)
    return draw_spec(spec, args.state) if args.action == "draw" else spec_table(spec, args.width)


def _check(file: str, *, as_json: bool) -> int:
    locate(file)
    try:
        verdict: dict[str, Any] = {"problems": (), **_facts(load_spec(file))}
    except SpecError as error:
        verdict = {"problems": error.problems}
    print(json.dumps({"file": file, **verdict}) if as_json else _told(file, **verdict))
    return 1 if verdict["problems"] else 0


def _facts(spec: Spec) -> dict[str, Any]:
    counted = {
        "states": spec.lifecycle.states,
        "transitions": spec.lifecycle.transitions,
        "steps": spec.steps,
        "rules": spec.rules,
        "properties": spec.properties,
        "buffers": spec.buffers,
    }
    return {"name": spec.name, "counts": {name: len(things) for name, things in counted.items()}}


def _told(file: str, *, problems: tuple[str, ...], name: str = "", counts: dict[str, int] | None = None) -> str:
    if problems:
        return "\n".join(f"{file}: {problem}" for problem in problems)
    return f"{name}: ok ({', '.join(f'{number} {things}' for things, number in (counts or {}).items())})"
