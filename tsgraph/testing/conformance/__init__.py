"""Conformance suites for the parts that an engine gives tsgraph: plain functions that need no test framework.

Each takes a factory, and ways to see what the protocol leaves to the engine, tries every promise on a fresh part, and
raises one `Nonconformance` that lists all promises broken.
"""

from __future__ import annotations

from tsgraph.testing.conformance.attention import ATTENTION, check_attention
from tsgraph.testing.conformance.backend import BACKEND
from tsgraph.testing.conformance.comm import COMM, check_comm
from tsgraph.testing.conformance.drafter import DRAFTER, check_drafter
from tsgraph.testing.conformance.grammar import GRAMMAR, check_grammar
from tsgraph.testing.conformance.graphs import check_backend
from tsgraph.testing.conformance.ground import Ground
from tsgraph.testing.conformance.promises import Nonconformance, Promise, Promises
from tsgraph.testing.conformance.ranks import RANKS, check_ranks
from tsgraph.testing.conformance.recurrent import RECURRENT, check_recurrent
from tsgraph.testing.conformance.sampler import SAMPLER, check_sampler

__all__ = [
    "ATTENTION",
    "BACKEND",
    "COMM",
    "DRAFTER",
    "GRAMMAR",
    "RANKS",
    "RECURRENT",
    "SAMPLER",
    "Ground",
    "Nonconformance",
    "Promise",
    "Promises",
    "check_attention",
    "check_backend",
    "check_comm",
    "check_drafter",
    "check_grammar",
    "check_ranks",
    "check_recurrent",
    "check_sampler",
]
