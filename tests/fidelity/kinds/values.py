"""Programs about what a graph computes: chains of operators, modes, rebound inputs, graphed callables."""

from __future__ import annotations

from tests.fidelity.builder import Builder, literal
from tests.fidelity.choices import chance, pick, some
from tests.fidelity.kinds.scenes import (
    capture,
    chain,
    facts,
    inputs,
    look,
    pool,
    renewed,
    replay_with_updates,
    update,
)  # fmt: skip

STEMS = [
    ("x", "x", "i", "b"), ("x", "x"), ("x", "i", "i"), ("x", "f", "f"), ("x", "q", "q", "b"), ("x", "x", "n", "n"),
    ("i", "i", "b"), ("x", "x", "x", "b", "b"), ("f", "f", "i"),
]  # fmt: skip


def operators(builder: Builder) -> None:
    """A chain of operators, replayed while inputs change in place."""
    fed = inputs(builder, pick(builder.choices, STEMS), special=8)
    with capture(builder, "g0"):
        made = chain(builder, builder.choices.number(4, 9))
    facts(builder, made)
    replay_with_updates(builder, "g0", [*fed, builder.values["rows"]], [*some(builder.choices, fed, 30), *made], 2)


def modes(builder: Builder) -> None:
    """The same with modes of torch around or inside the capture."""
    fed = inputs(builder, ("x", "x", "b"))
    mode = pick(builder.choices, ["torch.no_grad()", "torch.inference_mode()", "torch.enable_grad()"])
    inside = chance(builder.choices, 50)
    if inside:
        with capture(builder, "g0"), builder.block(f"with {mode}:"):
            made = chain(builder, builder.choices.number(2, 6))
    else:
        with builder.block(f"with {mode}:"), capture(builder, "g0"):
            made = chain(builder, builder.choices.number(2, 6))
    for value in made[-2:]:
        builder.line(f'fact("kind", lambda: ({value.name}.is_inference(), {value.name}.requires_grad))')
    replay_with_updates(builder, "g0", fed, made, 2)


def autocast(builder: Builder) -> None:
    """Operators under autocast: which dtype they compute in is the device's list to say."""
    fed = inputs(builder, ("x", "x"))
    dtype = pick(builder.choices, ["torch.float16", "torch.bfloat16"])
    with capture(builder, "g0"), builder.block(f'with torch.autocast("cuda", dtype={dtype}):'):
        made = chain(builder, builder.choices.number(1, 4), ("products", "norms", "elementwise", "reductions"), 0)
    for value in made:
        value.half = True
        builder.line(f'fact("dtype", lambda: str({value.name}.dtype))')
    replay_with_updates(builder, "g0", fed, made, 2)


def rebinding(builder: Builder) -> None:
    """An input by the same name is another tensor: the graph does not know of it. The old one is kept alive."""
    fed = inputs(builder, ("x", "x", "i"))
    with capture(builder, "g0"):
        made = chain(builder, builder.choices.number(2, 6), changes=0)
    builder.line("g0.replay()")
    look(builder, made)
    rebound = pick(builder.choices, fed)
    builder.line(f"kept = {rebound.name}")
    fresh = literal(renewed(builder.choices, rebound))
    builder.line(f'{rebound.name} = torch.tensor({fresh}, dtype={rebound.tensor.dtype}, device="cuda")')
    if chance(builder.choices, 50):
        builder.line(f"kept.copy_({rebound.name})")
    builder.line("g0.replay()")
    look(builder, made)


def host_numbers(builder: Builder) -> None:
    """Numbers of the host are baked into what was captured: Python's, and those of zero-dimensional tensors."""
    inputs(builder, ("x", "x"))
    builder.line("size, host = 2, torch.tensor(3.0)")
    lines = [
        "x0 * size", "x0 + host", "x0[:size]", "x0.clamp(max=size)", "torch.add(x0, x1, alpha=size)",
        "x0 - host * 2", 'torch.full((2,), float(size), device="cuda")', "x0 ** size",
        "torch.where(x0 > 0, x0, host)", "x0.masked_fill(x1 > 0, host)", "torch.pow(x0, host)", "x0.fill_(host)",
        "x0 / host", "torch.maximum(x0, host)", "x0.roll(size, 1)", "host.expand(3) + 1", "x0.mul_(host)",
        "torch.clamp(x0, max=host)", "x0[0] + host", "torch.lerp(x0, x1, host)", "x0 > host",
        "x0.add(host, alpha=size)",
    ]  # fmt: skip
    with capture(builder, "g0", pool(builder, "p0")):
        for number in range(builder.choices.number(1, 3)):
            builder.line(f"v{number} = {pick(builder.choices, lines)}")
    builder.line("size = 4")
    builder.line("host.fill_(5.0)")
    with builder.block('with attempt("replay") as at:'):
        builder.line("g0.replay()")
    for number in range(3):
        builder.line(f'see("v{number}", "float")')


def callables(builder: Builder) -> None:
    """`make_graphed_callables` of a function without gradients: its outputs are the graph's own."""
    fed = inputs(builder, ("x", "x"))
    body = pick(
        builder.choices,
        ["(a @ w).relu()", "a.softmax(-1) * x1", "(a + 1, a * x1)", "F.layer_norm(a, (6,))", "a.sum(0)"],
    )
    with builder.block('with attempt("make") as at:'):
        builder.line(f"call = torch.cuda.make_graphed_callables(lambda a: {body}, (x0.clone(),))")
    with builder.block('with attempt("call") as at:'):
        builder.line("first = call(x0)")
        builder.line("first = first[0] if isinstance(first, tuple) else first")
    builder.line('see("first", "float")')
    with builder.block('with attempt("call") as at:'):
        builder.line("second = call(x1)")
    update(builder, fed)
    builder.line('see("first", "float")')
