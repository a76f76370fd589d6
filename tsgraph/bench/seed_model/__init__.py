"""How a production engine serves a decode step by hand: TokenSpeed's wrapper, its sequence of calls in our own words.

It is what tsgraph is measured against, so it is faithful where that costs the original and mild where it does not:
the same pads, concatenations, copies and refreshes, in the same order and with the same kinds of temporaries, on
collaborators that do nothing but the copies without which the graph would read nothing. What the original does beside
(ranges for a profiler, a communication buffer that it looks for in a module) is left out. Each function names the
paragraph of `CONTRACT.md`, the description of that system, that it follows.

`buffers`: what the engine fills before the call. `padding`: pads, each out of place. `collaborators`: metadata,
sampler, communication. `wrapper`: one call. `engine`: all of it together, on any backend.
"""

from __future__ import annotations

from tsgraph.bench.seed_model.engine import SeedEngine

__all__ = ["SeedEngine"]
