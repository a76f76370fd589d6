"""A receipt with something in every part, made by hand."""

from __future__ import annotations

from typing import Any

import attrs

from tsgraph.receipts.receipt import (
    Baked,
    CaptureReceipt,
    Draw,
    Escape,
    External,
    HostFunction,
    Kernel,
    Once,
    Opaque,
    Output,
)


def external(name: str = "ids", **changes: Any) -> External:
    """A buffer of four rows that is read."""
    made = External(
        kind="buffer",
        name=name,
        declared=True,
        place="device",
        shape=(4,),
        stride=(1,),
        dtype="int64",
        address=4096,
        bytes=32,
        read=True,
        written=False,
        writable=True,
        operators=("aten.add.Tensor",),
        line="/engine/step.py:7",
    )
    return attrs.evolve(made, **changes)


def receipt(**changes: Any) -> CaptureReceipt:
    """One with something in every part."""
    unknown = external("", kind="unknown", declared=False, writable=False, address=8192)
    made = CaptureReceipt(
        slot="default/4",
        spec="decode",
        backend="cuda",
        device="cuda:0",
        externals=(external(), unknown, external("kv", kind="state", written=True)),
        outputs=(
            Output(name="['ids']", shape=(4,), stride=(1,), dtype="int64", address=4096, bytes=32, alias="buffer ids"),
        ),
        baked=(
            Baked(
                operator="aten.div.Tensor", argument="other", line="/engine/step.py:8", values=(("2.0", 2), ("nan", 1))
            ),
        ),
        once=(Once(operator="aten.add_.Tensor", line="/engine/step.py:9", times=3),),
        draws=(Draw(operator="aten.rand.default", line="/engine/step.py:10", generator="default", times=1),),
        functions=(HostFunction(name="Masks.build", line="/engine/step.py:11"),),
        opaque=(Opaque(kind="Triton kernel", name="scale_rows", line="/engine/step.py:12", times=2),),
        escapes=(
            Escape(
                operator="aten.ones.default",
                line="/engine/step.py:13",
                shape=(2, 3),
                dtype="float32",
                bytes=24,
                holder="attribute table",
            ),
        ),
        unread=("adapter",),
        nodes={"kernel": 3, "host": 1},
        kernels=(Kernel(name="add_kernel", grid=(1, 2, 3), times=2), Kernel(name="", grid=None, times=1)),
        pool_bytes=2048,
        seconds=0.25,
        kept=(object(),),
    )
    return attrs.evolve(made, **changes)
