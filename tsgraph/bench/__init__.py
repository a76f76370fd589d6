"""Benchmarks: `python -m tsgraph.bench NAME …`. Each prints the machine and the versions beside its figures.

A figure is a ratio of two things measured in turns, in one run: the machine's own moods then cancel out.
"""

from __future__ import annotations
