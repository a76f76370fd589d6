"""Tensors that objects hold: found by the shortest path, and found again by it."""

import functools
import types
from typing import NamedTuple

import attrs
import pytest
import torch

from tsgraph.buffers import holders
from tsgraph.buffers.holders import finder, held_by, held_by_modules


@attrs.define
class Slotted:
    """Slots instead of a dict."""

    inner: object


class Named(NamedTuple):
    """A tuple with names."""

    first: object


class Lazy:
    """A property that must not be run."""

    @property
    def made(self):
        raise AssertionError("a walk runs no code")


def found(root, **words):
    """Name → tensor of everything in `root`, which is called `it`."""
    return {held.name: held.tensor for held in held_by(root, "kind", "it", **words)}


def test_attributes_containers_and_modules_are_walked():
    """Dicts, lists, tuples, slots, named tuples, nested objects, and what modules hold."""
    a, b, c, d, e, f = (torch.ones(1) for _ in range(6))
    module = torch.nn.Sequential(torch.nn.Linear(1, 1, bias=False))
    module.register_buffer("table", e)
    module.plain = f
    root = types.SimpleNamespace(a=a, tables={"full": b, 3: c}, inner=[Slotted(Named(d)), (module,)])
    walked = found(root)
    assert {
        "it.a": a,
        "it.tables['full']": b,
        "it.tables[3]": c,
        "it.inner[0].inner.first": d,
        "it.inner[1][0].table": e,
        "it.inner[1][0].plain": f,
        "it.inner[1][0].0.weight": module[0].weight,
    } == walked
    assert all(walked[held.name] is held.find() for held in held_by(root, "kind", "it"))


def test_a_tensor_has_the_shortest_path():
    """However deep it is held besides."""
    table = torch.ones(1)
    assert ["it.table"] == list(found(types.SimpleNamespace(deep=[[{"x": table}]], table=table)))


def test_cycles_end_and_no_code_is_run():
    """Objects that hold each other are opened once; properties are not asked."""
    one, two = types.SimpleNamespace(table=torch.ones(1)), types.SimpleNamespace(lazy=Lazy())
    one.other, two.other = two, one
    assert ["it.table"] == list(found(one))


def test_what_is_foreign_is_not_opened():
    """Numbers, texts, arrays, devices, functions, and objects of torch's own."""
    generator = torch.Generator()
    root = types.SimpleNamespace(n=1, s="x", f=lambda: generator, d=torch.device("cpu"), g=generator, t=torch)
    assert {} == found(root)


def test_a_walk_has_bounds(monkeypatch):
    """In depth, in the elements of a container, and in all: a graph of objects without end is no trouble."""
    monkeypatch.setattr(holders, "DEEPEST", 2)
    monkeypatch.setattr(holders, "MOST_ELEMENTS", 3)
    deep = [[[torch.ones(1)]]]
    wide = [torch.ones(1) for _ in range(5)]
    assert ({}, 3) == (found(deep), len(found(wide)))
    monkeypatch.setattr(holders, "MOST_OBJECTS", 2)
    assert len(found(wide)) < 3


# -- functions --------------------------------------------------------------------------------------------------------

GLOBAL = torch.ones(1)


class Engine:
    """A step that is a method."""

    def __init__(self):
        self.cache = [torch.ones(1)]

    def step(self):
        return self.cache[0] + GLOBAL


def held_by_step(step):
    """Kind and name of everything that a step holds."""
    return [f"{held.kind} {held.name}" for held in held_by(step, "step", "step", functions=True)]


def test_a_function_holds_closures_globals_and_defaults():
    """Through functions that it closes over, too; its own names are dropped on the way."""
    table = torch.ones(1)

    def inner(x, given=torch.ones(1), *, named=torch.ones(1)):  # noqa: B008 - defaults that are tensors
        return x + table + GLOBAL + given + named

    def outer(x):
        return inner(x)

    assert {"step closure table", "step global GLOBAL", "step default [0]", "step default named"} == set(
        held_by_step(outer)
    )


def test_a_method_holds_its_object():
    """By the name that it has inside."""
    assert {"step self self.cache[0]", "step global GLOBAL"} == set(held_by_step(Engine().step))


def test_a_partial_holds_its_arguments():
    """By position and by name, and what its function holds."""
    held = held_by_step(functools.partial(Engine().step, torch.ones(1), scale=torch.ones(1)))
    assert {"step argument[0]", "step argument['scale']", "step self self.cache[0]"} <= set(held)


def test_an_empty_cell_holds_nothing():
    """A name that is bound later."""

    def step():
        return later

    assert [] == held_by_step(step)
    later = 1


def test_functions_inside_objects_are_opened_only_for_a_step():
    """A collaborator's callbacks are its own business."""
    table = torch.ones(1)
    root = types.SimpleNamespace(call=lambda: table)
    assert ({}, ["table"]) == (found(root), list(found(root, functions=True)))


# -- looking again ----------------------------------------------------------------------------------------------------


def test_a_finder_follows_what_was_replaced():
    """A tensor, or an object on the way; None where there is no tensor any more."""
    root = types.SimpleNamespace(metadata=types.SimpleNamespace(table=torch.ones(1)), tables=[{"a": torch.ones(1)}])
    by_name = finder(root, [(False, "metadata"), (False, "table")])
    by_item = finder(root, [(False, "tables"), (True, 0), (True, "a")])
    for find in (by_name, by_item):
        assert isinstance(find(), torch.Tensor)
    root.metadata, root.tables[0] = types.SimpleNamespace(table=torch.zeros(2)), {"a": torch.zeros(2)}
    assert [(2,), (2,)] == [tuple(find().shape) for find in (by_name, by_item)]
    root.metadata, root.tables = None, []
    assert [None, None] == [by_name(), by_item()]
    root.metadata, root.tables = types.SimpleNamespace(table=3), [{"a": "text"}]
    assert [None, None] == [by_name(), by_item()]


@pytest.mark.parametrize("rebind", [lambda m: setattr(m, "table", torch.zeros(2)), lambda m: delattr(m, "table")])
def test_what_a_module_holds_is_looked_up_in_it(rebind):
    """Registered or not, rebound or gone."""
    module = torch.nn.Module()
    module.register_buffer("table", torch.ones(1))
    (held,) = held_by_modules([module])
    assert ("module buffer", "table", True) == (held.kind, held.name, held.find() is module.table)
    rebind(module)
    assert held.find() is getattr(module, "table", None)
