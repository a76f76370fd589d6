"""Programs that draw random numbers. Which numbers is no law; that they are fresh, in range and re-seedable is."""

from __future__ import annotations

from tests.fidelity.builder import Builder
from tests.fidelity.choices import chance, pick
from tests.fidelity.kinds.scenes import capture, inputs, pool

DRAWS = (
    ('torch.rand(64, device="cuda")', 0, 1), ('torch.randn(64, device="cuda")', -9, 9), ("torch.rand_like(wide)", 0, 1),
    ('torch.randint(0, 1000, (64,), device="cuda")', 0, 999), ("torch.bernoulli(wide * 0 + 0.5)", 0, 1),
    ("F.dropout(wide * 0 + 1, 0.5, training=True)", 0, 2), ("wide.clone().normal_()", -9, 9),
    ("wide.clone().uniform_(2, 3)", 2, 3),
    ("torch.randn_like(wide)", -9, 9), ("wide.clone().exponential_()", 0, 99),
    ("torch.empty_like(wide).random_(0, 100)", 0, 100),
    ("wide.clone().cauchy_().clamp(-5, 5)", -5, 5), ("F.gumbel_softmax(wide.view(8, 8))", 0, 1),
    ("torch.normal(0.0, 1.0, (64,), device=\"cuda\")", -9, 9),
    ("torch.randint_like(wide, 50)", 0, 50), ("wide.clone().bernoulli_(0.5)", 0, 1),
    ("wide.clone().log_normal_().clamp(max=99)", 0, 99),
    ("F.alpha_dropout(wide * 0 + 1, 0.5, training=True).clamp(-9, 9)", -9, 9),
    ("torch.poisson(wide * 0 + 40)", 0, 200), ("wide.clone().geometric_(0.2)", 1, 999),
)  # fmt: skip


def draws(builder: Builder) -> None:
    """One or two draws in a graph, on the default generator."""
    _scene(builder)
    first, second = pick(builder.choices, DRAWS), pick(builder.choices, DRAWS)
    with capture(builder, "g0"):
        builder.line(f"a = {first[0]}")
        if chance(builder.choices, 50):
            builder.line(f"b = {second[0]}")
        builder.line("c = a * 1")
    _laws(builder, first)
    _seeds(builder, "torch.cuda.manual_seed(11)")
    if chance(builder.choices, 50):
        builder.line("torch.cuda.manual_seed(11)")
        builder.line(f"eager = {first[0]}")
        builder.line('fact("as eager", lambda: torch.equal(eager, third))')
    if chance(builder.choices, 50):
        builder.line("state = torch.cuda.get_rng_state()")
        builder.line("g0.replay()")
        builder.line("fifth = a.clone()")
        builder.line("torch.cuda.set_rng_state(state)")
        builder.line("g0.replay()")
        builder.line('fact("restored", lambda: torch.equal(a, fifth))')
    builder.line(f"eager = {second[0]}")
    builder.line("g0.replay()")
    builder.line("before = a.clone()")
    builder.line(f"other = {first[0]}")
    builder.line('fact("eager moves on", lambda: torch.equal(other, before))')


def generators(builder: Builder) -> None:
    """A generator of one's own, registered or not; two graphs that draw from one generator."""
    _scene(builder)
    builder.line('mine = torch.Generator("cuda").manual_seed(5)')
    pool(builder, "p0")
    builder.line("g0 = torch.cuda.CUDAGraph()")
    if chance(builder.choices, 70):
        builder.line("g0.register_generator_state(mine)")
    with capture(builder, "g0", ", pool=p0", new=False):
        builder.line('a = torch.rand(64, device="cuda", generator=mine)')
        builder.line('b = torch.rand(64, device="cuda")')
        builder.line("c = a * 1")
    with builder.block('with attempt("laws") as at:'):
        _laws(builder, DRAWS[0])
        _seeds(builder, "mine.manual_seed(11)")


def two_graphs(builder: Builder) -> None:
    """Two graphs draw from the default generator: neither repeats the other."""
    _scene(builder)
    draw = pick(builder.choices, DRAWS)
    for name, made in (("g0", "a"), ("g1", "b")):
        with capture(builder, name):
            builder.line(f"{made} = {draw[0]}")
    builder.line("torch.cuda.manual_seed(3)")
    for number in range(builder.choices.number(2, 4)):
        graph = builder.choices.number(0, 1)
        builder.line(f"g{graph}.replay()")
        builder.line(f"r{number} = {'ab'[graph]}.clone()")
        for other in range(number):
            builder.line(f'fact("equal", lambda: torch.equal(r{other}, r{number}))')
    builder.line("torch.cuda.manual_seed(3)")
    builder.line("g1.replay()")
    builder.line('fact("as the first", lambda: torch.equal(b, r0))')


def _scene(builder: Builder) -> None:
    inputs(builder, ("x",))
    builder.line('wide = torch.linspace(-2, 2, 64, device="cuda")')


def _laws(builder: Builder, draw: tuple[str, int, int]) -> None:
    builder.line("g0.replay()")
    builder.line("first = a.clone()")
    builder.line("g0.replay()")
    builder.line("second = a.clone()")
    builder.line('fact("fresh", lambda: not torch.equal(first, second))')
    builder.line('fact("kept", lambda: torch.equal(c, second))')
    builder.line(f'fact("in range", lambda: bool(((a >= {draw[1]}) & (a <= {draw[2]})).all()))')
    builder.line('fact("various", lambda: len(set(a.flatten().tolist())) > 1)')
    builder.line('fact("made", lambda: (str(a.dtype), a.shape))')


def _seeds(builder: Builder, seed: str) -> None:
    builder.line(seed)
    builder.line("g0.replay()")
    builder.line("third = a.clone()")
    builder.line(seed)
    builder.line("g0.replay()")
    builder.line('fact("re-seeded", lambda: torch.equal(a, third))')
    builder.line("g0.replay()")
    builder.line('fact("fresh after seed", lambda: not torch.equal(a, third))')
