"""`tsgraph spec check | mutate | draw | table | list`: look at a spec without an engine, a device or torch."""

from __future__ import annotations

import argparse
import json
from typing import Any

from tsgraph.cli.kills import kills_told
from tsgraph.cli.proof import told
from tsgraph.errors import SpecError
from tsgraph.proving import Proof, prove
from tsgraph.proving.kill_table import kill_table, settings
from tsgraph.spec.catalog import locate, shipped
from tsgraph.spec.draw import draw_spec
from tsgraph.spec.load import load_spec
from tsgraph.spec.model import Spec
from tsgraph.spec.table import spec_table

NARROWEST = 60


def add(subparsers: Any) -> None:
    """Declare the arguments of `tsgraph spec`."""
    parser = subparsers.add_parser("spec", help="check, mutate, draw and list specs")
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    check = _on_file(actions, "check", "tell every problem of a spec, and prove its properties")
    check.add_argument("--json", action="store_true", help="print the verdict as JSON")
    check.add_argument("--thorough", action="store_true", help="say of each rule which combinations do not need it")
    mutate = _on_file(actions, "mutate", "change the law in every way, and say what finds each change out")
    mutate.add_argument("--json", action="store_true", help="print the kill table as JSON")
    _add_width(mutate)
    draw = _on_file(actions, "draw", "draw the lifecycle as a Mermaid state diagram")
    draw.add_argument("--state", help="a state to mark")
    table = _on_file(actions, "table", "list transitions, rules and buffers")
    _add_width(table)
    actions.add_parser("list", help="list the shipped specs")


def run(args: argparse.Namespace) -> int:
    """Do what `args` ask; returns the exit code. Raises: SpecError for a spec that cannot be shown."""
    if args.action == "check":
        return _check(args.file, as_json=args.json, thorough=args.thorough)
    if args.action == "mutate":
        return _mutate(args.file, as_json=args.json, width=args.width)
    print(_shown(args))
    return 0


def _on_file(actions: Any, name: str, what: str) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = actions.add_parser(name, help=what)
    parser.add_argument("file", metavar="FILE", help="a TOML file, or the name of a shipped spec")
    return parser


def _add_width(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--width", type=_width, default=120, help="columns of text (default: %(default)s)")


def _width(text: str) -> int:
    if not text.isdecimal() or int(text) < NARROWEST:
        raise argparse.ArgumentTypeError(f"{text!r} is no width; the narrowest is {NARROWEST}")
    return int(text)


def _shown(args: argparse.Namespace) -> str:
    if args.action == "list":
        return "\n".join(shipped())
    spec = load_spec(args.file)
    return draw_spec(spec, args.state) if args.action == "draw" else spec_table(spec, args.width)


def _check(file: str, *, as_json: bool, thorough: bool) -> int:
    """Structure first: what is proved of a spec that names things which do not exist would mean nothing."""
    locate(file)
    try:
        spec = load_spec(file)
    except SpecError as error:
        print(_json(file, error.problems) if as_json else "\n".join(f"{file}: {what}" for what in error.problems))
        return 1
    proof = prove(spec, thorough=thorough)
    print(_json(file, (), **_facts(spec), proof=proof.as_dict()) if as_json else f"{_head(spec, proof)}\n{told(proof)}")
    return 0 if proof.ok else 1


def _mutate(file: str, *, as_json: bool, width: int) -> int:
    table = kill_table(settings(file))
    print(json.dumps({"file": file, **table.as_dict()}) if as_json else kills_told(table, width))
    return 0 if table.complete else 1


def _json(file: str, problems: tuple[str, ...], **facts: Any) -> str:
    return json.dumps({"file": file, "problems": problems, **facts})


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


def _head(spec: Spec, proof: Proof) -> str:
    counts = ", ".join(f"{number} {things}" for things, number in _facts(spec)["counts"].items())
    return f"{spec.name}: {'ok' if proof.ok else 'not ok'} ({counts})"
