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


# -- collaborators, the step, and looking again -----------------------------------------------------------------------


class Part:
    """A collaborator with metadata, tables by name, and memory that steps write."""

    def __init__(self):
        self.metadata = type("Metadata", (), {})()
        self.metadata.table = torch.zeros(2)
        self.tables = {"full": torch.zeros(2)}
        self.notes = torch.zeros(2)


@pytest.fixture
def part():
    """A collaborator."""
    return Part()


def test_tensors_of_collaborators_have_dotted_paths(arena, part):
    """They are declared, and a step may not write them unless their part says that it does."""
    owners = Owners(arena, {}, written={"attention notes": part.notes}, parts={"attention": part})
    tensors = (part.metadata.table, part.tables["full"], part.notes)
    assert [
        ("collaborator attention.metadata.table", True, False),
        ("collaborator attention.tables['full']", True, False),
        ("memory attention notes", True, True),
    ] == [(str(owners.find(each)), owners.find(each).declared, owners.may_write(each)) for each in tensors]


def test_a_view_of_a_static_buffer_is_the_buffers_wherever_it_is_held(arena, part):
    """Metadata alias the engine's lengths: the buffer's name comes first."""
    part.metadata.table = arena.views(2)["ids"]
    owners = Owners(arena, {}, parts={"attention": part})
    assert "buffer ids" == str(owners.find(part.metadata.table))


def test_what_the_step_holds_has_a_name_and_no_declaration(arena, part):
    """It is not found as declared, only located; who holds a storage is told by its address, too."""
    table = torch.zeros(2)
    owners = Owners(arena, {}, parts={"attention": part}, step=lambda: table)
    located = owners.locate(table)
    assert (None, "step closure table", False) == (owners.find(table), str(located), located.declared)
    assert located == owners.holder(storage_address(table))
    assert "collaborator attention.notes" == str(owners.holder(storage_address(part.notes)))
    assert owners.holder(1) is None
    assert owners.locate(torch.zeros(1)) is None


def test_a_path_leads_to_what_is_there_now(arena, module, part):
    """Of each kind: the same tensor while nothing moved, another once it did, None when it is gone."""
    kv, scale, table = torch.zeros(4), torch.ones(1), torch.zeros(2)
    step = lambda: table  # noqa: E731 - a closure that can be rebound
    owners = Owners(arena, {"kv": State(kv, sink=0)}, [module], {"scale": scale}, parts={"attention": part}, step=step)
    there = {
        "buffer ids": arena.tensors()["ids"],
        "state kv": kv,
        "fixed scale": scale,
        "parameter inner.weight": module.inner.weight,
        "module buffer table": module.table,
        "attribute inner.count": module.inner.count,
        "collaborator attention.metadata.table": part.metadata.table,
        "step closure table": table,
    }
    finds = {path: owners.resolve(path) for path in there}
    assert all(finds[path]() is tensor for path, tensor in there.items())
    module.inner.weight = torch.nn.Parameter(torch.ones(3))
    module.inner.count = torch.ones(3)
    part.metadata = type("Metadata", (), {"table": torch.ones(3)})()
    table = torch.ones(3)
    moved = ("parameter inner.weight", "attribute inner.count", "collaborator attention.metadata.table")
    assert [(3,)] * 4 == [tuple(finds[path]().shape) for path in (*moved, "step closure table")]
    part.metadata = None
    assert finds["collaborator attention.metadata.table"]() is None


def test_a_path_that_names_nothing_is_none(arena):
    """Nobody is asked for it later."""
    assert Owners(arena, {}).resolve("parameter nowhere") is None


def test_memory_can_be_declared_besides(arena):
    """By a way to find it, which is asked again at each refresh; a second declaration replaces the first."""
    owners, memory = Owners(arena, {}), {"tray": torch.zeros(2)}
    owners.declare("staging", "tray", lambda: memory.get("tray"))
    assert ("staging tray", True) == (str(owners.find(memory["tray"])), owners.may_write(memory["tray"]))
    before, memory["tray"] = memory["tray"], torch.zeros(2)
    owners.refresh()
    assert (None, "staging tray") == (owners.find(before), str(owners.find(memory["tray"])))
    other = torch.zeros(2)
    owners.declare("staging", "tray", lambda: other, writable=False)
    owners.refresh()
    assert (None, False) == (owners.find(memory["tray"]), owners.may_write(other))
    owners.declare("staging", "gone", lambda: None)
    assert owners.resolve("staging gone") is None
