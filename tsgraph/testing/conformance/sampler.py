"""`check_sampler`: whether a sampler keeps its protocol."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import attrs

from tsgraph.buffers.hostile import hostile_value
from tsgraph.keys import DEFAULT_VARIANT, Batch
from tsgraph.protocols.collaborators import Sampler
from tsgraph.testing.conformance.ground import Ground
from tsgraph.testing.conformance.promises import Promises
from tsgraph.testing.conformance.readings import copy_of, difference, moved, places_of, tensors_in

Sight = Callable[[Any], Any]


@attrs.frozen(eq=False)
class SamplerTrial:
    """One sampler on its ground. `fresh` makes further ones from the same seed."""

    fresh: Callable[[], Sampler]
    ground: Ground
    coins: Sight
    counts: Sight
    warm: Callable[[Any, Batch], object]
    part: Sampler = attrs.field(init=False)

    @part.default
    def _make(self) -> Sampler:
        return self.fresh()

    def variants(self) -> list[str]:
        """Every variant that will be captured, the default first."""
        named = self.part.variants(self.ground.tokens_per_request)
        return list(dict.fromkeys((DEFAULT_VARIANT, *named)))

    def batches(self) -> Iterator[Batch]:
        """Every slot's batch, largest first, as a capture prepares them."""
        for variant in self.variants():
            for rows in reversed(self.ground.sizes):
                self.ground.stage(rows, rows, 0)
                yield self.ground.batch(rows, variant)


SAMPLER: Promises[SamplerTrial] = Promises(Sampler)


def check_sampler(
    factory: Callable[[], Sampler], *, ground: Ground, coins: Sight, counts: Sight, warm: Callable[[Any, Batch], object]
) -> None:
    """Check every promise of `Sampler` on what `factory` makes, anew for each, always from the same seed.

    `coins(sampler)`: the tensors that `prepare` fills and recordings read; `counts(sampler)`: what forwards accumulate
    and `reset` clears. Any nesting of tensors; `()` where there are none. `warm(sampler, batch)` does to the sampler
    what one forward of `batch` does.

    Raises: Nonconformance that lists all promises broken.
    """
    SAMPLER.check(lambda: SamplerTrial(factory, ground, coins, counts, warm))


@SAMPLER.promise("variants", "a sequence of names, each once, the same at each call")
def variants_are_names(trial: SamplerTrial) -> str | None:
    """For one token a request and for several."""
    for tokens in (1, 4):
        named: Any = trial.part.variants(tokens)
        again = trial.part.variants(tokens)
        if isinstance(named, str) or not all(isinstance(name, str) and name for name in named):
            return repr(named)
        if len(set(named)) != len(named) or list(named) != list(again):
            return f"{named!r}, then {again!r}"
    return None


@SAMPLER.promise("prepare", 'the "default" variant and every one that it names, at every size')
def prepare_serves_every_slot(trial: SamplerTrial) -> str | None:
    """The default variant is captured whether or not it is named."""
    for batch in trial.batches():
        try:
            trial.part.prepare(batch)
        except Exception as error:  # noqa: BLE001 - whatever it raises is told with the slot it was for
            return f"{type(error).__name__} for {batch.variant}/{batch.rows}: {error}"
    return None


@SAMPLER.promise("prepare", "RNG buffers at the same addresses after every call")
def prepare_keeps_addresses(trial: SamplerTrial) -> str | None:
    """What earlier slots recorded is where they recorded it."""
    before = None
    for batch in trial.batches():
        trial.part.prepare(batch)
        now = places_of(trial.coins(trial.part))
        if before is not None and (told := moved(before, now)):
            return f"{told} for {batch.variant}/{batch.rows}"
        before = now
    return None


@SAMPLER.promise("prepare", "the same numbers from the same seed")
def prepare_is_deterministic(trial: SamplerTrial) -> str | None:
    """Two samplers made alike and prepared alike draw alike."""
    drawn = []
    for sampler in (trial.part, trial.fresh()):
        for batch in trial.batches():
            sampler.prepare(batch)
        drawn.append(copy_of(trial.coins(sampler)))
    return difference(*drawn)


@SAMPLER.promise("prepare", "nothing of it in a recording: it refuses there, or does nothing that a replay repeats")
def prepare_is_not_recorded(trial: SamplerTrial) -> str | None:
    """A replay of a recording in which it was called leaves its numbers alone (R11)."""
    backend, batch = trial.ground.backend, next(trial.batches())
    trial.part.prepare(batch)
    coins = tensors_in(trial.coins(trial.part))
    backend.adopt(coins)
    try:
        with backend.record(backend.pool()) as graph:
            trial.part.prepare(batch)
    except Exception:  # noqa: BLE001 - any refusal is right
        return None
    for tensor in coins:
        tensor.fill_(hostile_value(tensor.dtype))
    before = copy_of(coins)
    graph.replay()
    return difference(before, coins) and "a replay that fills its buffers: the numbers of the recording, frozen"


@SAMPLER.promise("prepare", "to work again after it was called in a recording")
def prepare_recovers(trial: SamplerTrial) -> str | None:
    """What it refused, or did at once on the host, has disturbed nothing."""
    backend, batch = trial.ground.backend, next(trial.batches())
    trial.part.prepare(batch)
    backend.adopt(tensors_in(trial.coins(trial.part)))
    before = places_of(trial.coins(trial.part))
    try:
        with backend.record(backend.pool()):
            trial.part.prepare(batch)
    except Exception:  # noqa: BLE001 - any refusal is right
        backend.synchronize()
    trial.part.prepare(batch)
    return moved(before, places_of(trial.coins(trial.part)))


@SAMPLER.promise("reset", "nothing left of what warm-ups accumulated")
def reset_clears_counts(trial: SamplerTrial) -> str | None:
    """After warm-ups and a reset, counts are those of a sampler that was only reset (R10)."""
    clean = trial.fresh()
    clean.reset()
    expected = copy_of(trial.counts(clean))
    for batch in trial.batches():
        for _ in range(2):
            trial.part.prepare(batch)
            trial.warm(trial.part, batch)
        trial.part.reset()
        if told := difference(expected, copy_of(trial.counts(trial.part))):
            return f"{told} after {batch.variant}/{batch.rows}"
    return None


@SAMPLER.promise("reset", "counts at the addresses that recordings read")
def reset_keeps_addresses(trial: SamplerTrial) -> str | None:
    """It clears in place."""
    before = places_of(trial.counts(trial.part))
    for _ in range(2):
        trial.part.reset()
    return moved(before, places_of(trial.counts(trial.part)))
