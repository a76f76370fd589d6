"""The command line: `tsgraph COMMAND …`. Exit codes: 0 fine, 1 problems found, 2 wrong usage or input.

Each command is a module of this package with `add(subparsers)`, which declares its arguments, and `run(args) -> int`.
Only the module of the command that was asked for is imported, so that `tsgraph spec` needs no torch.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any

from tsgraph.errors import TsgraphError

COMMANDS = ("demo", "receipt", "spec", "tune")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit code. Errors of tsgraph are printed without a traceback."""
    given = list(sys.argv[1:] if argv is None else argv)
    args = _parser(given).parse_args(given)
    try:
        code: int = _command(args.command).run(args)
        sys.stdout.flush()
    except TsgraphError as error:
        print(f"tsgraph: {error}", file=sys.stderr)
        return 2
    except BrokenPipeError:  # the reader, `head` say, has seen enough; nothing may be written at exit either
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    return code


def _parser(given: Sequence[str]) -> argparse.ArgumentParser:
    """The parser of the command that was given, or of all where none was (for the help)."""
    parser = argparse.ArgumentParser(prog="tsgraph", description="Declared lifecycles for CUDA graphs.")
    subparsers = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name in given[:1] if given and given[0] in COMMANDS else COMMANDS:
        _command(name).add(subparsers)
    return parser


def _command(name: str) -> Any:
    return import_module(f"tsgraph.cli.{name}")
