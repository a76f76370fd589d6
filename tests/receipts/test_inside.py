"""What a recording made: told as long as it lives, and not held."""

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from tsgraph.receipts.inside import Inside


def add(inside, tensor, operator="aten.add.Tensor", line="step.py:1", on_device=True):
    """Say that `tensor` was made; gives its address."""
    address = tensor.untyped_storage().data_ptr()
    inside.add(tensor, address, operator, line, on_device=on_device)
    return address


def test_what_lives_is_told_with_what_it_was_at_first():
    """Operator, line, shape, dtype and place, in the order in which it was made; what has died is not there."""
    inside, kept, host = Inside(), torch.ones(2, 3), torch.ones(4, dtype=torch.int32)
    addresses = [add(inside, kept), add(inside, host, "aten.arange.default", "step.py:2", on_device=False)]
    add(inside, torch.ones(1000))
    told = [(at, m.operator, m.line, tuple(m.shape), m.dtype, m.on_device) for at, m in inside.living()]
    assert [
        (addresses[0], "aten.add.Tensor", "step.py:1", (2, 3), torch.float32, True),
        (addresses[1], "aten.arange.default", "step.py:2", (4,), torch.int32, False),
    ] == told


def test_it_holds_no_memory_and_its_references_are_good_beyond_it():
    """What is added dies as if nobody had seen it; a reference that was given away tells so later."""
    inside, tensor = Inside(), torch.ones(3)
    seen, address = StorageWeakRef(tensor.untyped_storage()), add(inside, tensor)
    reference = inside.get(address).reference
    del inside
    assert (False, False) == (seen.expired(), reference.expired())
    del tensor
    assert (True, True) == (seen.expired(), reference.expired())


def test_a_view_keeps_memory_alive():
    """It is the storage that lives, not the tensor."""
    inside, tensor = Inside(), torch.ones(3)
    address, view = add(inside, tensor), tensor[1:]
    del tensor
    assert (3,) == tuple(inside.get(address).shape)
    del view
    assert inside.get(address) is None


def test_of_what_lay_at_one_address_the_last_counts():
    """Memory that was given back is made anew: the first reference goes, and no count is lost."""
    inside, tensor = Inside(), torch.ones(3)
    address = add(inside, tensor, "first")
    for operator in ("second", "third"):
        assert address == add(inside, tensor, operator)
    assert ["third"] == [made.operator for _, made in inside.living()]
    del inside
    assert 3.0 == tensor.sum().item()


def test_what_nobody_made_is_none():
    """Memory from outside."""
    assert Inside().get(4096) is None
