"""What differs between two receipts: by names and lines, part by part."""

import attrs
import pytest

from tests.receipts.parts import external, receipt
from tsgraph.receipts.compare import Difference, compare
from tsgraph.receipts.receipt import Baked, Escape, HostFunction, Kernel, Opaque, Output


def test_the_same_recording_in_another_process_is_the_same():
    """Addresses, seconds and bytes of the pool are no difference."""
    moved = tuple(attrs.evolve(each, address=each.address + 512) for each in receipt().externals)
    assert () == compare(receipt(), receipt(externals=moved, seconds=9.0, kept=()))


def test_in_one_process_it_is_told_what_moved():
    """By name, with both addresses; what came or went is told once."""
    moved = (external(address=512), external("new"))
    told = compare(receipt(externals=(external(),)), receipt(externals=moved), addresses=True)
    assert [Difference("moved", "buffer ids", "0x1000", "0x200")] == [each for each in told if each.part == "moved"]
    assert ["buffer new"] == [each.what for each in told if each.part == "memory"]


KV = external("kv", kind="state")
OUTPUT = Output(name="", shape=(4,), stride=(1,), dtype="int64", address=0, bytes=32)
DIV = Baked(operator="aten.div.Tensor", argument="other", line="s.py:8", values=(("2.0", 1),))
ESCAPE = Escape(operator="aten.ones.default", line="s.py:3", shape=(2,), dtype="int64", bytes=16, holder="attribute t")
CHANGES = {
    "memory that came": (
        {"externals": ()},
        {"externals": (KV,)},
        ("memory", "state kv", "—", "int64 (4) stride (1,), read"),
    ),
    "memory of another shape": (
        {"externals": (KV,)},
        {"externals": (attrs.evolve(KV, shape=(8,)),)},
        ("memory", "state kv", "int64 (4) stride (1,), read", "int64 (8) stride (1,), read"),
    ),
    "memory that is written": (
        {"externals": (KV,)},
        {"externals": (attrs.evolve(KV, written=True),)},
        ("memory", "state kv", "int64 (4) stride (1,), read", "int64 (4) stride (1,), read written"),
    ),
    "memory that lost its declaration": (
        {"externals": (KV,)},
        {"externals": (attrs.evolve(KV, declared=False, place="host"),)},
        ("memory", "state kv", "int64 (4) stride (1,), read", "int64 (4) stride (1,) on the host, read, undeclared"),
    ),
    "an output's memory": (
        {"outputs": (OUTPUT,)},
        {"outputs": (attrs.evolve(OUTPUT, alias="buffer ids"),)},
        ("outputs", "output", "int64 (4) stride (1,)", "int64 (4) stride (1,), memory of buffer ids"),
    ),
    "a value": (
        {"baked": (DIV,)},
        {"baked": (attrs.evolve(DIV, values=(("3.0", 2),)),)},
        ("baked", "aten.div.Tensor other at s.py:8", "2.0", "3.0 (×2)"),
    ),
    "a host function": (
        {"functions": ()},
        {"functions": (HostFunction(name="build", line="s.py:2"),)},
        ("host functions", "build", "—", "at s.py:2"),
    ),
    "an opaque part": (
        {"opaque": (Opaque(kind="compiled region", name="r", line="s.py:2", times=1),)},
        {"opaque": ()},
        ("opaque", "compiled region r at s.py:2", "×1", "—"),
    ),
    "what escaped": (
        {"escapes": ()},
        {"escapes": (ESCAPE,)},
        ("escaped", "aten.ones.default at s.py:3", "—", "int64 (2) attribute t"),
    ),
    "an untouched buffer": (
        {"unread": ()},
        {"unread": ("adapter",)},
        ("not touched", "buffer adapter", "—", "declared"),
    ),
    "nodes": ({"nodes": {"kernel": 2}}, {"nodes": {"kernel": 3}}, ("nodes", "kernel", "×2", "×3")),
    "nodes that are not told": ({"nodes": {"kernel": 2}}, {"nodes": None}, ("nodes", "kernel", "×2", "—")),
    "a grid": (
        {"kernels": (Kernel(name="k", grid=(1, 1, 1), times=1),)},
        {"kernels": (Kernel(name="k", grid=(8, 1, 1), times=1),)},
        ("kernels", "k grid (1, 1, 1)", "×1", "—"),
    ),
}


@pytest.mark.parametrize("kind", CHANGES)
def test_each_part_is_compared(kind):
    """By name, with how it was and how it is."""
    first, second, told = CHANGES[kind]
    differences = compare(receipt(**first), receipt(**second))
    assert Difference(*told) == differences[0]
    assert f"{told[0]}: {told[1]}: {told[2]} → {told[3]}" == str(differences[0])


def test_things_of_one_name_are_told_apart_by_their_order():
    """Two unnamed tensors of one shape at one line are two."""
    unknown = external("", kind="unknown")
    one, two = receipt(externals=(unknown,)), receipt(externals=(unknown, unknown))
    for first, second in ((one, two), (two, one)):
        (difference,) = compare(first, second)
        assert f"{unknown.label} (2)" == difference.what
