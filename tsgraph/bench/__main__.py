"""The command line of the benchmarks. Each is a module with `add(subparsers)` and `run(args) -> int`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from tsgraph.bench import replay


def main(argv: Sequence[str] | None = None) -> int:
    """Run one benchmark; returns its exit code."""
    parser = argparse.ArgumentParser(prog="python -m tsgraph.bench", description="Benchmarks of tsgraph.")
    replay.add(parser.add_subparsers(dest="name", required=True, metavar="NAME"))
    return replay.run(parser.parse_args(argv))


if __name__ == "__main__":
    sys.exit(main())
