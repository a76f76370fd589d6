"""One setting, ready to be called in every way whose host time is compared."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import attrs

from tsgraph.bench import costs
from tsgraph.bench.report import Data
from tsgraph.bench.seed_model import SeedEngine
from tsgraph.bench.settings import SIZES, Setting, differing, sources_of, static_tensors
from tsgraph.bench.turns import Action
from tsgraph.protocols.backend import Backend
from tsgraph.runtime import GraphRuntime

RAW = "raw"
FROM_HOST, FROM_HOST_AHEAD, FROM_DEVICE = "tsgraph, host", "tsgraph, host, device reads", "tsgraph, device"
SEED_FROM_HOST, SEED, SEED_CALL = "seed, host", "seed, device", "seed, call alone"
OURS, THEIRS = (FROM_HOST, FROM_HOST_AHEAD, FROM_DEVICE), (SEED_FROM_HOST, SEED, SEED_CALL)

AGAINST = {
    "from host": (SEED_FROM_HOST, FROM_HOST),
    "from device": (SEED, FROM_DEVICE),
    "call alone": (SEED_CALL, FROM_HOST),
}
"""What of the seed is held against what of tsgraph: like with like, and the wrapper alone against all of the work."""


@attrs.frozen(eq=False)
class Subject:
    """A setting, its seed model, and a runtime for each way: what calls of one are like, another's need not be.

    Of `from_host` only the graph reads buffers; of the others the device does so before it.
    """

    setting: Setting
    backend: Backend
    seed: SeedEngine
    from_host: GraphRuntime
    from_host_ahead: GraphRuntime
    from_device: GraphRuntime

    @classmethod
    def of(cls, setting: Setting, backend: Backend) -> Subject:
        """Captured, all of it."""
        runtimes = (setting.runtime(backend, device_reads=reads) for reads in (False, True, True))
        return cls(setting, backend, SeedEngine.of(setting, backend), *runtimes)

    def ways(self, live: int) -> dict[str, Action]:
        """Every way to serve the same `live` rows."""
        fields, seed = self.setting.fields(), self.seed
        host = sources_of(fields, live, self.backend, host=True)
        device = sources_of(fields, live, self.backend, host=False)
        return {
            RAW: seed.raw(SIZES[-1]),
            FROM_HOST: partial(self.from_host, rows=live, **host),
            FROM_HOST_AHEAD: partial(self.from_host_ahead, rows=live, **host),
            FROM_DEVICE: partial(self.from_device, rows=live, **device),
            SEED_FROM_HOST: partial(seed.serve_from_host, live, host),
            SEED: partial(seed.serve, live, device),
            SEED_CALL: partial(seed.call, live, device),
        }

    def unequal(self, ways: Mapping[str, Action]) -> list[str]:
        """Buffers in which seed and tsgraph differ after the same rows: there must be none, or they do unlike work."""
        wrong: set[str] = set()
        runtimes = (self.from_host, self.from_host_ahead, self.from_device)
        ways[SEED]()
        for way, runtime in zip(OURS, runtimes, strict=True):
            ways[way]()
            self.backend.synchronize()
            wrong.update(differing(self.seed.tensors, static_tensors(runtime)))
        return sorted(wrong)


def against(ratio: Callable[[str, str], float]) -> dict[str, float]:
    """The seed's time for each second of tsgraph's."""
    return {name: ratio(*pair) for name, pair in AGAINST.items()}


def costs_of(ways: Mapping[str, Action]) -> dict[str, Data]:
    """What a call costs beside time, for each way."""
    return {
        way: {
            "launches": _launches(action),
            "device allocations": costs.device_allocations(action),
            "tensors made": costs.tensors_made(action),
            "blocks kept": costs.blocks_kept(action),
        }
        for way, action in ways.items()
    }


def _launches(action: Action) -> dict[str, float] | None:
    """Those of a call; None where there is no device, or no profiler runs there: times are worth having without."""
    try:
        return costs.launches(action)
    except Exception:  # noqa: BLE001 - whatever ails the profiler
        return None
