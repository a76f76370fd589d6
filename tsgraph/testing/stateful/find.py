"""Running machines: as a search that hands back what it found, or as a test that raises it."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from tsgraph.spec.model import Spec
from tsgraph.testing.stateful.lives import machine_for
from tsgraph.testing.stateful.machine import ProgramMachine
from tsgraph.testing.stateful.serving import MakeRuntime, runtime_machine
from tsgraph.testing.stateful.shrink import Find, Shrinker
from tsgraph.testing.strategies.batches import Values

_SEARCHED = (Phase.explicit, Phase.reuse, Phase.generate)


def find(machine: type[ProgramMachine], how: settings | None = None, *, shrink: bool = True) -> Find | None:
    """Run `machine` as `how` (None: the profile in force) says, up to its first find; None where there is none.

    `shrink`: make its program short, which takes up to some seconds.
    """
    found: list[Find] = []

    def note(run: ProgramMachine, error: Exception) -> None:
        found.append(Find(error, str(run.program), tuple(run.actions)))

    watched = type(machine.__name__, (machine,), {"on_error": note, "__doc__": machine.__doc__})
    searching = settings(
        how, phases=_SEARCHED, report_multiple_bugs=False, deadline=None, suppress_health_check=list(HealthCheck)
    )
    machine.warm_up()
    with _little_garbage():
        try:
            run_state_machine_as_test(watched, settings=searching)
        except Exception:
            if not found:
                raise
            return Shrinker(machine, found[-1]).shrink() if shrink else found[-1]
    return None


@contextmanager
def _little_garbage() -> Iterator[None]:
    """Everything alive is frozen once, so that the collections around each capture have little to walk."""
    frozen = gc.get_freeze_count()
    if not frozen:
        gc.collect()
        gc.freeze()
    try:
        yield
    finally:
        if not frozen:
            gc.unfreeze()


def check(machine: type[ProgramMachine], how: settings | None = None) -> None:
    """As `find`; prints the program of a find and raises its error."""
    found = find(machine, how)
    if found is not None:
        print(found)  # noqa: T201  to be pasted; pytest shows it as captured output
        raise found.error


def fuzz_spec(spec: Spec | str, how: settings | None = None) -> None:
    """Hold the lifecycle of `spec`, whole, against an oracle. Prints the program of a find and raises its error."""
    check(machine_for(spec), how)


def fuzz(
    make_runtime: MakeRuntime,
    values: Mapping[str, Values | tuple[float, float]] | None = None,
    how: settings | None = None,
    *,
    alike: bool = True,
) -> None:
    """Fuzz a step of your own, behind the runtime that `make_runtime` makes anew at each call (emulated, uncaptured).

    `values`, `alike`: see `runtime_machine`. `how`: hypothesis's settings; None is the profile in force.

    Raises: what was found, after its program was printed.
    """
    check(runtime_machine(make_runtime, values, alike=alike), how)
