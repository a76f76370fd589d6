"""Programs about memory: graphs that share a pool, lifetimes, and copies between host and device."""

from __future__ import annotations

from tests.fidelity.builder import Builder, Value, literal
from tests.fidelity.choices import chance, pick, some
from tests.fidelity.kinds.scenes import (
    COLUMNS,
    ROWS,
    capture,
    chain,
    inputs,
    look,
    numbers,
    pool,
    update,
)  # fmt: skip


def pools(builder: Builder) -> None:
    """Several graphs in one pool; outputs kept or dropped; replayed in any order."""
    fed = inputs(builder, ("x", "x", "i"))
    options = pool(builder, "p0")
    made: list[list[Value]] = []
    for number in range(builder.choices.number(2, 3)):
        with capture(builder, f"g{number}", options):
            outputs = chain(builder, builder.choices.number(2, 5), changes=0)
        dropped = some(builder.choices, outputs, 40)
        builder.forget(dropped)
        made.append([value for value in outputs if value not in dropped])
    for _ in range(builder.choices.number(2, 4)):
        number = builder.choices.number(0, len(made) - 1)
        update(builder, fed, 30)
        builder.line(f"g{number}.replay()")
        look(builder, made[number], 2)
        look(builder, made[builder.choices.number(0, len(made) - 1)], 1)


def in_order(builder: Builder) -> None:
    """Graphs that share a pool and read each other's outputs, replayed in the order of their captures: a whole step."""
    fed = inputs(builder, ("x", "x", "i"))
    options = pool(builder, "p0") if chance(builder.choices, 70) else ""
    kept: list[Value] = []
    count = builder.choices.number(2, 3)
    for number in range(count):
        with capture(builder, f"g{number}", options or (", pool=g0.pool()" if number else "")):
            kept += chain(builder, builder.choices.number(1, 4), changes=0)
    for turn in range(2):
        if turn:
            update(builder, fed)
        for number in range(count):
            builder.line(f"g{number}.replay()")
    look(builder, kept, 5)


def reuse(builder: Builder) -> None:
    """Blocks that were freed while recording, and by whom they are used again: either is legal."""
    inputs(builder, ("x", "x"))
    options = pool(builder, "p0")
    with capture(builder, "g0", options):
        builder.line("a = x0 + x1")
        builder.line("at_a = a.data_ptr()")
        if chance(builder.choices, 50):
            builder.line("b = a * 2")
        builder.line("del a")
        builder.line("c = x0 - x1")
    builder.line('fact("may reuse", lambda: c.data_ptr() == at_a)')
    if chance(builder.choices, 50):
        builder.line("at_c = c.data_ptr()")
        if chance(builder.choices, 50):
            builder.line("del c")
    with capture(builder, "g1", options):
        builder.line("d = x0 * x1")
    builder.line('fact("may reuse", lambda: d.data_ptr() == at_a)')
    builder.line('fact("apart", lambda: "c" not in globals() or d.data_ptr() != c.data_ptr())')
    builder.line("g0.replay()")
    builder.line("g1.replay()")
    builder.line('see("d", "exact")')
    if chance(builder.choices, 50):
        builder.line("g0.replay()")
        builder.line('see("d", "exact")')


def lifetimes(builder: Builder) -> None:
    """Outputs outlive their graph; graphs are reset, replayed too late, captured again."""
    fed = inputs(builder, ("x", "x"))
    with capture(builder, "g0"):
        made = chain(builder, builder.choices.number(2, 4), changes=0)
    builder.line("g0.replay()")
    look(builder, made, 2)
    ending = pick(builder.choices, ["g0.reset()", "del g0", "g0 = torch.cuda.CUDAGraph()"])
    builder.line(ending)
    look(builder, made, 2)
    if ending != "del g0":
        with builder.block('with attempt("late") as at:'):
            builder.line("g0.replay()")
        look(builder, made, 1)
    if ending == "g0.reset()" and chance(builder.choices, 70):
        with capture(builder, "g0", new=False):
            again = chain(builder, builder.choices.number(1, 3), changes=0)
        update(builder, fed)
        with builder.block('with attempt("again") as at:'):
            builder.line("g0.replay()")
        look(builder, [*made[-1:], *again])


def pinned(builder: Builder) -> None:
    """Copies from and to pinned memory: a replay reads the host's address again."""
    inputs(builder, ("x", "x"))
    shape, choices = (ROWS, COLUMNS), builder.choices
    first, second = (literal(numbers(choices, shape, builder.values["x0"].tensor.dtype)) for _ in range(2))
    builder.line(f"page = torch.tensor({first}).pin_memory()")
    builder.line("back = torch.zeros(4, 6).pin_memory()")
    ways = [
        "x0.copy_(page, non_blocking=True)",
        'v = page.to("cuda", non_blocking=True)',
        "v = page.cuda(non_blocking=True)",
        "x0[1].copy_(page[2], non_blocking=True)",
        "x0.view(-1).copy_(page.view(-1), non_blocking=True)",
    ]
    with capture(builder, "g0", pool(builder, "p0")):
        builder.line(pick(choices, ways))
        builder.line("out = x0 * 2 + x1")
        if chance(choices, 60):
            builder.line(
                pick(choices, ["back.copy_(out, non_blocking=True)", "back[0].copy_(out[1], non_blocking=True)"])
            )
    for _ in range(2):
        builder.line("g0.replay()")
        builder.line("torch.cuda.synchronize()")
        for name in ("out", "v", "back"):
            builder.line(f'see("{name}", "exact")')
        builder.line(
            pick(choices, [f"page.copy_(torch.tensor({second}))", "page.fill_(7)", "page[2] = 5", "page += 1"])
        )
    builder.line('fact("pinned", lambda: (page.is_pinned(), page.device.type, back.is_cuda))')
