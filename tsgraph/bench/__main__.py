"""The command line of the benchmarks. Each is a module with `add(subparsers)` and `run(args) -> int`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from tsgraph.bench import capture, decode, grammar, growth, host, host_functions, page, replay, staging


def main(argv: Sequence[str] | None = None) -> int:
    """Run one benchmark; returns its exit code."""
    parser = argparse.ArgumentParser(prog="python -m tsgraph.bench", description="Benchmarks of tsgraph.")
    subparsers = parser.add_subparsers(dest="name", required=True, metavar="NAME")
    for benchmark in (host, staging, capture, growth, decode, replay, host_functions, grammar, page):
        benchmark.add(subparsers)
    args = parser.parse_args(argv)
    exit_code: int = args.run(args)
    return exit_code


if __name__ == "__main__":
    sys.exit(main())
