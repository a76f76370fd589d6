"""Proofs about specs: every order of events that the machine permits, under a pipeline that does its worst.

`prove(spec)` explores all of them, for every combination of collaborators and policies, and says which properties hold.
`refute(spec)` stops at the first that does not.
"""

from __future__ import annotations

from tsgraph.proving.proof import prove, refute
from tsgraph.proving.values import Combination, Counterexample, Finding, Proof

__all__ = ["Combination", "Counterexample", "Finding", "Proof", "prove", "refute"]
