"""Every property, with the rules that it holds the library to: what finds a fault is looked up by these."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, Generic, TypeVar

import attrs
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.faults import call_checks, capture_checks, lazy_checks, queue_checks, standing_checks
from tests.faults.call_checks import Call, Intake, Route
from tests.faults.capture_checks import Misbehaviour
from tests.faults.histories import SHAPES, History, Turn, histories
from tests.faults.lazy_checks import Lazy
from tests.faults.oracle import serve_history
from tests.faults.rig import Rig
from tests.faults.shape import Shape
from tests.faults.standing_checks import WEIGHTS, Move
from tsgraph.keys import Mode
from tsgraph.testing.faults import Fault

T = TypeVar("T")

MOST = 100
"""Examples of one search of the stage, at most; a property that takes long has fewer."""


@attrs.frozen
class Find:
    """An example for which a property does not hold, and how long it took to come by."""

    error: BaseException
    example: Any
    examples: int
    seconds: float


@attrs.frozen(eq=False)
class Property(Generic[T]):
    """`check` raises for an example that breaks it. `telling`: examples, by fault. `most`: of one search."""

    name: str
    holds: tuple[str, ...]
    strategy: st.SearchStrategy[T]
    check: Callable[[T], None]
    telling: Mapping[str, T]
    most: int = MOST

    def concerns(self, fault: Fault) -> bool:
        """Whether it holds the library to a rule that `fault` breaks."""
        return bool(set(self.holds) & set(fault.breaks))

    def search(self, most: int | None = None) -> Find | int:
        """Run it derandomised, on fresh engines: the first find, or how many examples found nothing."""
        forget_engines()
        tried, finds, began = 0, list[Find](), time.perf_counter()

        @settings(
            max_examples=most or self.most,
            derandomize=True,
            database=None,
            deadline=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
            report_multiple_bugs=False,
        )
        @given(self.strategy)
        def run(example: T) -> None:
            nonlocal tried
            tried += 1
            try:
                self.check(example)
            except Exception as error:
                finds.append(Find(error, example, tried, time.perf_counter() - began))
                raise

        try:
            run()
        except BaseException:
            if not finds:
                raise
        finally:
            forget_engines()
        return finds[0] if finds else tried


RIGS: dict[tuple[Shape, bool], Rig] = {}
"""Engines that earlier examples captured. A fault may be in how they were captured: whoever plants one empties this."""


def forget_engines() -> None:
    """Have every engine captured anew."""
    RIGS.clear()
    call_checks.RUNTIMES.clear()


def check_history(history: History) -> None:
    """Live rows get eager's numbers, live state is written by live rows alone, pad rows reach nothing but sinks."""
    serve_history(_rig(history.shape, captured=True), history)


def check_staging(history: History) -> None:
    """The same of eager steps through the static buffers, which need no capture and so take little time."""
    serve_history(_rig(history.shape, captured=False), history)


def _rig(shape: Shape, *, captured: bool) -> Rig:
    if (shape, captured) not in RIGS:
        RIGS[shape, captured] = Rig.build(shape, capture=captured)
    return RIGS[shape, captured]


TURNS = (Turn((1, 2, 3), (8, 5, 2)), Turn((3,), (4,)), Turn((2, 1), (6, 2)), Turn(), Turn((2,), (8,)))
DECODE, SPECULATIVE, SIZES = (History(shape=shape, turns=TURNS) for shape in SHAPES[:3])
LITTERED = attrs.evolve(DECODE, garbage=3)
SLOT = Shape(spec="speculative", sizes=(2,))
GREEDY = Call(call_checks.SHAPES[0], Turn((1, 2, 3), (1, 1, 1), "greedy"))


HELD_BY_CAPTURES = ("R5", "R7", "R8", "R9", "R10", "R11", "R12", "R13", "R17", "R18", "R19", "R20")
HELD_BY_REPLAYS = ("R28", "R30", "R31", "R32", "R33", "R34", "R35", "R36", "R37", "R38", "R39", "R40", "R41", "R42")


def _one(example: T, *faults: str) -> dict[str, T]:
    """The same telling example for each of `faults`."""
    return dict.fromkeys(faults, example)


PROPERTIES: tuple[Property[Any], ...] = (
    Property(
        "where a step goes",
        ("R26", "R27", "R28", "R29"),
        call_checks.routes(),
        call_checks.check_route,
        {
            "graph_for_extend_mode": Route(sizes=(2, 4), rows=3, mode=Mode.EXTEND),
            "graph_while_disabled": Route(sizes=(2, 4), rows=3, enabled=False),
            "padding_when_off": Route(sizes=(2, 4), rows=3, padding=False),
            "wasteful_size": Route(sizes=(2, 4), rows=1),
            "misrouted_size": Route(sizes=(2, 4), rows=3),
            "rank_local_size": Route(sizes=(2, 4), rows=1, ranks=2, counts=(1, 3)),
            "other_ranks_ignored": Route(sizes=(2, 4), rows=1, ranks=2),
            "counts_rounded_down": Route(sizes=(2, 4), rows=1, ranks=2, counts=(2, 5), tokens_per_request=2),
        },
    ),
    Property(
        "sizes",
        ("R1",),
        call_checks.size_lists,
        call_checks.check_sizes,
        {"unsorted_sizes": ([4, 2], 9), "largest_batch_unserved": ([2, 4], 67)},
    ),
    Property(
        "what a call refuses",
        ("R28", "R37"),
        call_checks.intakes,
        call_checks.check_intake,
        {
            "group_dropped": Intake("group missing", 3, "flat_tables"),
            "one_row_for_all": Intake("one row", 3, "seq_lens"),
            "unknown_source_ignored": Intake("name unknown", 3, "input_idz"),
        },
    ),
    Property(
        "pads, without a graph",
        ("R30", "R31", "R32", "R33", "R34", "R35", "R37"),
        histories(),
        check_staging,
        {
            **_one(DECODE, "stale_tail", "zero_pads", "empty_length_pad", "stale_length_pad", "live_pool_row_as_pad"),
            **_one(DECODE, "live_state_row_as_pad", "reserved_state_row_as_pad", "stale_mirror", "live_page_as_pad"),
            **_one(DECODE, "live_recurrent_slot_as_pad", "live_recurrent_track_as_pad", "stale_offset_as_pad"),
            **_one(DECODE, "live_cache_slot_as_pad"),
            **_one(LITTERED, "stale_column_tail", "idle_step_unpadded"),
        },
        most=50,
    ),
    Property(
        "a captured runtime's calls",
        ("R4", "R26"),
        call_checks.calls(),
        call_checks.check_call,
        _one(GREEDY, "variant_ignored"),
    ),
    Property(
        "the default variant",
        ("R4",),
        capture_checks.shapes,
        capture_checks.check_default,
        _one(Shape(), "missing_default_slot"),
        most=5,
    ),
    Property(
        "what a recording pretends of other ranks",
        ("R14", "R15"),
        capture_checks.shapes,
        capture_checks.check_context,
        _one(Shape(sizes=(1, 2)), "one_ranks_counts", "other_collectives_recorded"),
        most=5,
    ),
    Property(
        "what a runtime is set up with",
        ("R2", "R3"),
        st.booleans(),
        capture_checks.check_setup,
        _one(False, "metadata_not_made", "unequal_indices_shared"),
        most=4,
    ),
    Property(
        "slots and what they share",
        ("R4", "R5", "R6", "R7", "R8", "R10", "R20", "R22", "R23", "R43", "C3"),
        capture_checks.shapes,
        capture_checks.check_capture,
        {
            **_one(SLOT, "forgotten_drain", "forgotten_grammar_reset", "mode_left_on", "mode_not_entered"),
            **_one(
                SLOT, "push_skipped", "prepare_skipped", "sampler_not_reset", "comm_not_armed", "metadata_not_bound"
            ),
            **_one(SLOT, "garbage_not_frozen", "garbage_left_frozen", "lengths_not_filled", "unfilled_warm_up"),
            **_one(Shape(sizes=(1, 2)), "pool_for_each_slot"),
        },
        most=6,
    ),
    Property(
        "memory given back",
        ("R26", "P17"),
        capture_checks.lives,
        capture_checks.check_release,
        _one(Shape(sizes=(2,)), "replay_after_invalidation", "graph_not_released"),
        most=10,
    ),
    Property(
        "a capture between two steps",
        ("R41",),
        capture_checks.lives,
        capture_checks.check_undisturbed,
        _one(Shape(sizes=(2,)), "caller_disturbed"),
        most=10,
    ),
    Property(
        "what is never published",
        ("R6", "R12", "R19", "R20", "R21", "R23", "R25", "P17"),
        capture_checks.misbehaviours,
        capture_checks.check_refusal,
        {
            "guard_blind": Misbehaviour(SLOT, "live row", "warming"),
            "audit_blind": Misbehaviour(SLOT, "undeclared", "warming"),
            "address_check_blind": Misbehaviour(SLOT, "moved", "recording"),
            "views_check_blind": Misbehaviour(SLOT, "copied", "never"),
            "vote_ignored": Misbehaviour(SLOT, "outvoted", "never"),
            "entry_orphaned": Misbehaviour(SLOT, "raises", "warming"),
        },
        most=20,
    ),
    Property(
        "grammar entries",
        ("R18", "R22", "R23", "R24", "R25"),
        queue_checks.histories,
        queue_checks.check_queue,
        {
            "double_push": (("serve", 2),),
            "slot_entry_behind": (("recapture, waiting", 2),),
            "forwards_not_asked": (("half captured", 2),),
            "drain_of_all": (("recapture, waiting", 2),),
            "swallowed_underflow": (("take of none", 2),),
            "cancel_forgotten": (("cancel", 2),),
            "eager_mask_unbound": (("serve", 3),),
        },
        most=40,
    ),
    Property(
        "recorded memory",
        ("S1",),
        standing_checks.moves(),
        standing_checks.check_move,
        {
            "guard_skips_parts": Move("sampler"),
            "sweep_stuck": Move(WEIGHTS - 1),
            "refresh_unchecked": Move("refresh"),
        },
        most=20,
    ),
    Property(
        "outputs that are kept",
        ("S2",),
        st.sampled_from(sorted(standing_checks.USES)),
        standing_checks.check_kept,
        {"lease_never_ends": "whole", "views_unleased": "view"},
        most=6,
    ),
    Property(
        "one call at a time",
        ("S3",),
        st.sampled_from(sorted(standing_checks.CALLS)),
        standing_checks.check_alone,
        _one("wake", "way_barred_by_errors", "calls_inside_calls", "replay_inside_recording"),
        most=6,
    ),
    Property(
        "recordings without warm-ups",
        ("S4",),
        lazy_checks.lazy_steps,
        lazy_checks.check_lazy,
        {
            "lazy_work_unseen": Lazy("keeps"),
            "reach_unseen": Lazy("touches", receipts="warmed"),
            "workspace_unseen": Lazy("keeps much", receipts="warmed"),
        },
        most=16,
    ),
    Property(
        "rows, pads and state",
        (*HELD_BY_CAPTURES, *HELD_BY_REPLAYS),
        histories(),
        check_history,
        {
            **_one(DECODE, "warm_up_writes_live_state", "refresh_after_replay", "restore_skipped", "sampler_refilled"),
            **_one(DECODE, "recurrent_update_with_pads", "recurrent_update_early", "recurrent_update_skipped"),
            **_one(DECODE, "uncut_outputs", "outputs_not_held", "mask_not_bound", "prepare_inside_recording"),
            **_one(DECODE, "copied_views", "full_hidden_wrong", "caller_tensor_written"),
            **_one(SPECULATIVE, "draft_before_target", "draft_from_before", "bind_skipped"),
            **_one(SIZES, "smallest_first"),
        },
    ),
)
