"""`python -m tsgraph`: the same as the command `tsgraph`."""

from __future__ import annotations

import sys

from tsgraph.cli import main

if __name__ == "__main__":
    sys.exit(main())
