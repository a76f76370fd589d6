"""Live state around a warm-up: put back, or found changed, to the bit, on every exit."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tsgraph.buffers.contract import State
from tsgraph.buffers.state import StateGuard, bits, row_sums
from tsgraph.errors import ContractViolation, OutOfBudget

DTYPES = [
    torch.bool,
    torch.uint8,
    torch.int16,
    torch.int64,
    torch.bfloat16,
    torch.float32,
    torch.float64,
    torch.complex64,
    torch.complex128,
    torch.float8_e4m3fn,
]

EXACT, SUMMED = 1 << 40, 0
"""Free memory that a copy of any state fits in, and that none does."""


def raw(tensor):
    """All bits of a tensor, as a list of lists of bytes, one per row."""
    return [bytes(row.contiguous().clone().untyped_storage()) for row in tensor.detach()]


def flip(tensor):
    """Change every element of a tensor, in its lowest bit."""
    words = bits(tensor)
    words.copy_(words ^ 1)


def random_bits(shape, dtype, seed):
    """A tensor of any bits that its dtype can have, NaNs among them."""
    generator = torch.Generator().manual_seed(seed)
    if dtype is torch.bool:
        return torch.randint(0, 2, shape, generator=generator).bool()
    size = (*shape[:-1], shape[-1] * dtype.itemsize)
    return torch.randint(0, 256, size, generator=generator, dtype=torch.uint8).view(dtype)


@pytest.fixture
def guard(fake_backend):
    """Makes a guard of some states on a device with so much free memory."""

    def make(free=EXACT, **states):
        return StateGuard(states, fake_backend(free))

    return make


# -- restored states --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_restored_state_is_bitwise_as_before(guard, dtype):
    """Whatever a warm-up does to it, every bit comes back, NaN or not (faults J1, J3)."""
    state = random_bits((3, 4), dtype, 1)
    before = raw(state)
    with guard(s=State(state, restore=True)).protected():
        state.copy_(random_bits((3, 4), dtype, 2))
        assert before != raw(state)
    assert before == raw(state)


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_a_restored_state_comes_back_when_the_warm_up_fails(guard, error):
    """The step's own error goes on, and the state is as before it."""
    state = torch.arange(4)

    def step():
        state.zero_()
        raise error("the step")

    with pytest.raises(error, match="the step"), guard(s=State(state, restore=True)).protected():
        step()
    assert [0, 1, 2, 3] == state.tolist()


def test_a_scalar_state_is_restored(guard):
    """A counter without dimensions is state like any other (fault J3)."""
    count, phase = torch.tensor(4), torch.tensor(1j, dtype=torch.complex128)
    with guard(count=State(count, restore=True), phase=State(phase, restore=True)).protected():
        count.add_(2)
        phase.mul_(2)
    assert (4, 1j) == (count.item(), phase.item())


def test_a_state_too_large_to_restore_is_refused_before_the_warm_up(guard):
    """What could not be undone is not done: the error says how large it is and what is left."""
    state, ran = torch.zeros(100, dtype=torch.int64), []
    with (
        pytest.raises(
            OutOfBudget, match="state 's' is to be restored after warm-ups, but 800 bytes do not fit in the 700"
        ),
        guard(free=1400, s=State(state, restore=True)).protected(),
    ):
        ran.append(True)
    assert [] == ran


@pytest.mark.parametrize("inference", [False, True])
def test_states_of_either_kind_are_protected_in_either_mode(guard, inference):
    """Parameters, ordinary and inference tensors are all copied and put back (fault R3)."""
    with torch.inference_mode():
        made_inside = torch.ones(2, 2)
    states = {"i": made_inside, "o": torch.ones(2, 2), "p": torch.nn.Parameter(torch.ones(2, 2))}
    protection = guard(**{name: State(tensor, restore=True) for name, tensor in states.items()})
    with torch.inference_mode(mode=inference), protection.protected(), torch.inference_mode():
        for tensor in states.values():
            tensor.fill_(math.nan)
    assert all(tensor.eq(1).all() for tensor in states.values())


# -- sink states ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("free", [EXACT, SUMMED])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_sinks_may_be_written_and_are_put_back(guard, dtype, free):
    """Writes to sinks only are no fault; what they held comes back, so that no NaN stays behind (fault B6)."""
    state = random_bits((4, 3), dtype, 1)
    before = raw(state)
    with guard(free, s=State(state, sink=(0, 2))).protected():
        flip(state[::2])
        assert before != raw(state)
    assert before == raw(state)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_write_to_a_live_row_is_refused_and_undone(guard, dtype):
    """A row that is no sink was written: the state and the row are named, and every bit is back (rule R12)."""
    state = random_bits((4, 3), dtype, 1)
    before = raw(state)
    with pytest.raises(ContractViolation) as error, guard(kv=State(state, sink=0)).protected():
        flip(state[::3])
    expected = "State.kv: expected a warm-up that writes sink rows 0 only, got writes to rows 3; they are restored"
    assert expected in str(error.value)
    assert before == raw(state)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_state_too_large_to_copy_is_watched(guard, dtype):
    """Sums find the row that changed, and the error says that nothing could put it back; sinks still are."""
    state = random_bits((4, 3), dtype, 1)
    before = raw(state)
    with pytest.raises(ContractViolation) as error, guard(SUMMED, kv=State(state, sink=0)).protected():
        flip(state[::3])
    assert "got writes to rows 3; they cannot be restored, for the state is too large to copy" in str(error.value)
    assert before[:3] == raw(state)[:3]


def test_an_error_lists_the_first_rows_only(guard):
    """Eight rows are enough to find the fault by."""
    state = torch.zeros(100, 1)
    with pytest.raises(ContractViolation) as error, guard(kv=State(state, sink=(0, 99))).protected():
        state.add_(1)
    assert "sink rows 0, 99 only, got writes to rows 1, 2, 3, 4, 5, 6, 7, 8 and 90 more;" in str(error.value)


def test_a_state_without_sinks_may_not_be_written(guard):
    """An empty tuple of sinks declares that a warm-up writes no row."""
    state = torch.zeros(2)
    refusal = pytest.raises(ContractViolation, match="writes no row only, got writes to rows 1")
    with refusal, guard(s=State(state, sink=())).protected():
        state[1] = 1
    assert [0, 0] == state.tolist()


@pytest.mark.parametrize("free", [EXACT, SUMMED])
def test_values_that_compare_equal_or_unequal_do_not_mislead(guard, free):
    """Bits count: a NaN that stays is no write, and 0.0 that becomes -0.0 is one."""
    state = torch.tensor([[0.0], [math.nan], [0.0]])
    protection = guard(free, s=State(state, sink=0))
    with protection.protected():
        pass
    with pytest.raises(ContractViolation, match="writes to rows 2"), protection.protected():
        state[2] = -0.0


@pytest.mark.parametrize("free", [EXACT, SUMMED])
def test_a_write_beside_a_failure_is_noted_on_it(guard, free):
    """The step's error is the one to tell; that it left a row changed is added to it."""
    state = torch.zeros(3)

    def step():
        state[1] = 1
        raise ValueError("the step")

    with pytest.raises(ValueError, match="the step") as error, guard(free, kv=State(state, sink=0)).protected():
        step()
    (note,) = error.value.__notes__
    assert "beside it, when states were restored: State.kv: " in note
    assert "writes to rows 1" in note


def test_the_device_is_waited_for_before_rows_are_judged(fake_backend):
    """A write that is still queued when the warm-up returns must not escape."""
    state = torch.zeros(3)

    class Late(fake_backend):
        def synchronize(self):
            state[1] = 1

    late = StateGuard({"kv": State(state, sink=0)}, Late())
    with pytest.raises(ContractViolation, match="writes to rows 1"), late.protected():
        pass


def test_overlapping_states_are_judged_one_by_one(guard):
    """The same memory under several names: restored parts are no writes, whoever declared them first."""
    pages = torch.zeros(4, 2)
    sinks, part = State(pages, sink=0), State(pages[2:], restore=True)
    with guard(a=sinks, b=part, c=State(pages, sink=(0, 1))).protected():
        pages[0] = 1
        pages[3] = 1
    assert not pages.any()
    with pytest.raises(ContractViolation, match=r"State\.a: .* rows 1;"), guard(a=sinks, b=part).protected():
        pages[1:3] = 1
    assert not pages.any()


def test_copies_are_made_while_half_of_the_free_memory_lasts(guard):
    """Restored states come first; sink states that no longer fit are watched."""
    small, large, last = torch.zeros(10).double(), torch.zeros(10).double(), torch.zeros(5).double()
    states = {"small": State(small, sink=0), "large": State(large, restore=True), "last": State(last, sink=0)}
    for written, fate in ((last, r"State\.last: .* they are restored"), (small, r"State\.small: .* they cannot be")):
        with pytest.raises(ContractViolation, match=fate), guard(240, **states).protected():
            large[1] = written[1] = 1
    assert (0, 0, 1) == (large[1].item(), last[1].item(), small[1].item())


def test_state_that_is_not_dense_keeps_its_neighbours_out(guard):
    """Rows of a strided view are its own elements only: what lies between them is another's (keys beside values)."""
    both = torch.zeros(4, 2, 3, dtype=torch.bfloat16)
    keys, values = both[:, 0], both[:, 1]
    for free in (EXACT, SUMMED):
        with guard(free, keys=State(keys, sink=0)).protected():
            keys[0] = 1
            values[2] = 1
        with (
            pytest.raises(ContractViolation, match="writes to rows 2"),
            guard(free, keys=State(keys, sink=0)).protected(),
        ):
            keys[2] = 1
        keys.zero_()


def test_empty_states_are_fine(guard):
    """A state of no rows, or of rows of nothing, has nothing to protect."""
    for free in (EXACT, SUMMED):
        with guard(free, a=State(torch.zeros(0, 3), sink=()), b=State(torch.zeros(3, 0), sink=1)).protected():
            pass


# -- bits and sums ----------------------------------------------------------------------------------------------------


@given(st.sampled_from(DTYPES), st.lists(st.integers(1, 6), min_size=1, max_size=3), st.integers(0, 99), st.data())
def test_bits_are_the_same_memory_in_rows(dtype, shape, seed, data):
    """Integers of any dtype, shape and stride: as many rows, all of the memory, and writes go through."""
    whole = random_bits((*shape, 4), dtype, seed)
    tensor = data.draw(st.sampled_from([whole, whole[..., 1:], whole[..., 0], whole.mT, whole[1:], whole[..., ::2]]))
    before, words = raw(tensor), bits(tensor)
    assert not words.dtype.is_floating_point
    assert before == raw(words)
    words.zero_()
    assert not any(any(row) for row in raw(tensor))


@given(st.integers(1, 6), st.integers(1, 9), st.integers(0, 99), st.data())
def test_sums_tell_every_changed_row(rows, width, seed, data):
    """One changed bit, or two elements exchanged, changes the sums of its row and of no other."""
    state = torch.randint(-(2**63), 2**63 - 1, (rows, width), generator=torch.Generator().manual_seed(seed))
    before, row = row_sums(state), data.draw(st.integers(0, rows - 1))
    column, bit = data.draw(st.integers(0, width - 1)), data.draw(st.integers(0, 63))
    state[row, column] ^= torch.tensor(1).bitwise_left_shift(bit)
    changed = row_sums(state).ne(before)
    assert [[index == row] * 2 for index in range(rows)] == changed.tolist()
    if width > 1:
        middle = row_sums(state)
        state[row] = state[row].roll(1)
        assert state[row].roll(1).equal(state[row]) or row_sums(state).ne(middle)[row].all()


def test_no_bit_of_any_position_is_lost_in_either_sum():
    """The topmost bit times an even number would vanish: every position counts by an odd one."""
    for column in range(64):
        state = torch.zeros(1, 64, dtype=torch.int64)
        state[0, column] = -(2**63)
        assert [[True, True]] == row_sums(state).ne(0).tolist()


def test_sums_do_not_depend_on_how_they_are_cut(monkeypatch):
    """Chunks keep temporaries small and change nothing, neither in rows nor in columns."""
    state = torch.randint(-100, 100, (7, 11), generator=torch.Generator().manual_seed(1))
    whole = row_sums(state)
    for words in (1, 4, 11, 23):
        monkeypatch.setattr("tsgraph.buffers.state.CHUNK_WORDS", words)
        assert torch.equal(whole, row_sums(state))
