"""The work behind the steps: the collector around captures, and specs whose steps nothing does."""

import gc
import weakref

import attrs
import pytest

from tsgraph.capture.pipeline import Engine, Pipeline, SessionWork, check_steps
from tsgraph.errors import InternalError, SpecError
from tsgraph.spec.load import load_spec
from tsgraph.spec.model import COLLABORATORS, Step

SPEC = load_spec("decode")


@pytest.fixture
def restored_gc():
    """Nothing is frozen in the test; afterwards the collector is as before."""
    enabled = gc.isenabled()
    gc.unfreeze()
    yield
    (gc.enable if enabled else gc.disable)()
    gc.freeze()


@pytest.mark.parametrize("enabled", [True, False])
def test_objects_are_frozen_while_capturing(restored_gc, enabled):
    """Between the steps everything alive is out of the collector's reach; afterwards all is as before (R43)."""
    (gc.enable if enabled else gc.disable)()
    work = SessionWork()
    work.freeze_gc()
    frozen, running = gc.get_freeze_count(), gc.isenabled()
    work.thaw_gc()
    assert frozen > 0
    assert not running
    assert (0, enabled) == (gc.get_freeze_count(), gc.isenabled())


class Cycle:
    """What only the collector can free."""

    def __init__(self):
        self.itself = self


@pytest.mark.parametrize("collect", ["all", "young"])
def test_garbage_is_collected_before_anything_is_frozen_or_frozen_with_the_rest(restored_gc, collect):
    """An old graph in a reference cycle never ends inside a recording, whoever collects there (fault K1).

    It is gone before or, where only young garbage is collected and this has grown old, stays until everything is over.
    """
    gc.disable()
    cycle = Cycle()
    gone = weakref.ref(cycle)
    gc.collect(1)
    del cycle
    work = SessionWork(collect=collect)
    work.freeze_gc()
    before = gone() is None
    gc.collect()
    meanwhile = gone() is None
    work.thaw_gc()
    gc.collect()
    assert before or collect == "young"
    assert (before, True) == (meanwhile, gone() is None)


@pytest.mark.parametrize("frozen_by_application", [False, True])
def test_garbage_of_the_run_itself_is_collected_at_its_end(restored_gc, frozen_by_application):
    """What captures left in cycles is gone once they are over, though only what is young is looked at then."""
    if frozen_by_application:
        gc.freeze()
    work = SessionWork(collect="young")
    work.freeze_gc()
    gone = weakref.ref(Cycle())
    alive = gone() is not None
    work.thaw_gc()
    assert (True, None) == (alive, gone())


@pytest.mark.parametrize("enabled", [True, False])
def test_objects_that_the_application_froze_stay_frozen(restored_gc, enabled):
    """Where the application froze objects itself, the collector is off meanwhile, and its objects stay frozen."""
    gc.freeze()
    (gc.enable if enabled else gc.disable)()
    before = gc.get_freeze_count()
    work = SessionWork()
    work.freeze_gc()
    during = gc.isenabled()
    work.thaw_gc()
    assert (False, before, enabled) == (during, gc.get_freeze_count(), gc.isenabled())


def test_every_step_of_the_shipped_specs_has_its_work():
    """Each declared step, with all collaborators, is one that the pipeline can do."""
    check_steps(SPEC.restricted_to(frozenset(COLLABORATORS)))


def test_a_step_that_nothing_does_is_refused():
    """A spec with an unknown step is a SpecError that names it, when the runtime is built."""
    strange = attrs.evolve(SPEC, steps={**SPEC.steps, "polish": Step(name="polish", event=("polished",))})
    with pytest.raises(SpecError, match=r"steps\.polish: no work has this name"):
        check_steps(strange)


def test_a_step_without_its_collaborator_says_what_to_declare():
    """A step that uses an absent part, because its `needs` was forgotten, ends in an error that says so."""
    absent = dict.fromkeys(("step", "backend", "arena", "guard", "marks", "audit", "addresses", "recorder"))
    engine = Engine(**absent)
    with pytest.raises(InternalError, match='declare needs = "sampler"'):
        Pipeline(engine=engine, slot=None).reset_sampler()
