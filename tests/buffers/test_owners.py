"""Names for addresses: what a tensor that turns up somewhere belongs to."""

import pytest
import torch

from tsgraph.buffers.contract import State
from tsgraph.buffers.owners import Owners, storage_address


class Counting(torch.nn.Module):
    """A module with a parameter, a registered buffer, and a tensor that is merely an attribute."""

    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Linear(2, 2)
        self.register_buffer("table", torch.zeros(3))
        self.inner.count = torch.zeros(1)


@pytest.fixture
def module():
    """A small module."""
    return Counting()


@pytest.fixture
def arena(field, arena_of):
    """An arena of two buffers, one of them of a group."""
    return arena_of(field("ids"), field("tables", group="full", shape=(2,)))


def test_every_kind_of_owner_is_named(arena, module):
    """Static buffers, states, fixed tensors, parameters, module buffers and bare attributes, by dotted path."""
    kv, scale = torch.zeros(4, 2), torch.ones(1)
    owners = Owners(arena, {"kv": State(kv, sink=0)}, [module], {"scale": scale})
    named = {
        "buffer ids": arena.views(2)["ids"],
        "buffer tables[full]": arena.views(2)["tables"]["full"],
        "state kv": kv[2],
        "fixed scale": scale,
        "parameter inner.weight": module.inner.weight.detach(),
        "module buffer table": module.table[1:],
        "attribute inner.count": module.inner.count,
    }
    assert list(named) == [str(owners.find(tensor)) for tensor in named.values()]
    assert owners.find(torch.zeros(1)) is None


def test_only_buffers_and_states_may_be_written(arena, module):
    """What replays refresh and what is declared may be written by a warm-up; all else may not."""
    kv, scale = torch.zeros(4, 2), torch.ones(1)
    owners = Owners(arena, {"kv": State(kv, sink=0)}, [module], {"scale": scale})
    tensors = (arena.tensors()["ids"], kv, scale, module.inner.weight, module.table, torch.zeros(1))
    assert [True, True, False, False, False, False] == [owners.may_write(tensor) for tensor in tensors]


def test_what_parts_say_that_steps_write_may_be_written(arena):
    """Memory of a collaborator's own, on the device or the host, under its name."""
    mask = torch.zeros(4, 2)
    owners = Owners(arena, {}, written={"grammar mask": mask})
    assert (True, "memory grammar mask") == (owners.may_write(mask[1:]), str(owners.find(mask)))


def test_a_module_tensor_declared_as_state_may_be_written(arena, module):
    """Declaring is by memory: the module's own name for it does not matter."""
    owners = Owners(arena, {"table": State(module.table, restore=True)}, [module])
    assert (True, "state table") == (owners.may_write(module.table), str(owners.find(module.table)))


def test_parts_of_one_storage_keep_their_own_names(arena):
    """Tensors packed into one storage are told apart by where they start."""
    whole = torch.zeros(8)
    owners = Owners(arena, {"a": State(whole[:3], restore=True), "b": State(whole[3:6], restore=True)})
    assert ["state a", "state b", "state a"] == [str(owners.find(whole[at:])) for at in (1, 4, 7)]


def test_several_modules_are_told_apart(arena):
    """With more than one module each path says which."""
    modules = [Counting(), Counting()]
    owners = Owners(arena, {}, modules)
    found = [str(owners.find(tensor)) for tensor in (modules[0].table, modules[1].inner.count)]
    assert ["module buffer modules[0].table", "attribute modules[1].inner.count"] == found


def test_refresh_follows_modules_that_move(arena, module):
    """A tensor that a module made or rebound since is found after a refresh."""
    owners = Owners(arena, {}, [module])
    module.table = torch.ones(3)
    module.late = torch.ones(1)
    assert owners.find(module.table) is None
    owners.refresh()
    assert ["module buffer table", "attribute late"] == [str(owners.find(t)) for t in (module.table, module.late)]


def test_tensors_without_memory_have_no_address():
    """Empty, meta and sparse tensors belong to nobody, and asking is no error."""
    tensors = (torch.empty(0), torch.empty(2, device="meta"), torch.zeros(2).to_sparse())
    assert [0, 0, 0] == [storage_address(tensor) for tensor in tensors]
