"""`tsgraph receipt show | diff`: what a recorded graph reads, writes and has baked in, from files. Needs no torch."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from tsgraph.errors import CallerError
from tsgraph.receipts.compare import compare
from tsgraph.receipts.receipt import CaptureReceipt

NARROWEST = 60


def add(subparsers: Any) -> None:
    """Declare the arguments of `tsgraph receipt`."""
    says = "show or compare receipts, as `receipt.to_json()` writes them"
    parser = subparsers.add_parser("receipt", help=says, description=says)
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    show = actions.add_parser("show", help="print a receipt as tables")
    show.add_argument("file", metavar="FILE", help="a receipt as JSON")
    show.add_argument("--width", type=_width, default=120, help="columns of text (default: %(default)s)")
    diff = actions.add_parser("diff", help="say what differs between two receipts; exit code 1 if anything does")
    for which in ("first", "second"):
        diff.add_argument(which, metavar="FILE", help=f"the {which} receipt")
    diff.add_argument("--addresses", action="store_true", help="also say what moved: both are of one process")


def run(args: argparse.Namespace) -> int:
    """Do what `args` ask; returns the exit code. Raises: CallerError for a file that is no receipt."""
    if args.action == "show":
        print(_read(args.file).table(args.width), end="")
        return 0
    differences = compare(_read(args.first), _read(args.second), addresses=args.addresses)
    for difference in differences:
        print(difference)
    return 1 if differences else 0


def _read(file: str) -> CaptureReceipt:
    try:
        return CaptureReceipt.from_json(Path(file).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or error
        raise CallerError(f"{file} cannot be read: {why}", hint="give the path of a receipt as JSON") from error
    except CallerError as error:
        raise CallerError(f"{file}: {error.what}", hint=error.hint) from error


def _width(text: str) -> int:
    if not text.isdecimal() or int(text) < NARROWEST:
        raise argparse.ArgumentTypeError(f"{text!r} is no width; the narrowest is {NARROWEST}")
    return int(text)
