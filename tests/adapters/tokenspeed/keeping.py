"""A target whose kernels read lengths of its own, which binds and refreshes make."""

from __future__ import annotations

from tests.adapters.tokenspeed.engine import FakeAttention


class KeepingAttention(FakeAttention):
    """One that keeps lengths for its kernels, and makes them anew at each refresh once it `remakes`."""

    kept = None
    remakes = False

    def init_forward_metadata_capture_cuda_graph(self, bs, pool, lengths, mode, **words):
        super().init_forward_metadata_capture_cuda_graph(bs, pool, lengths, mode, **words)
        self.kept = lengths + 0
        self.adopts([self.kept])

    def init_forward_metadata_replay_cuda_graph(self, bs, pool, lengths, **words):
        super().init_forward_metadata_replay_cuda_graph(bs, pool, lengths, **words)
        self.kept = self.kept.clone() if self.remakes else self.kept
        self.kept[:bs] = lengths

    def init_forward_metadata(self, *, bs, seq_lens, **words):
        super().init_forward_metadata(bs=bs, seq_lens=seq_lens, **words)
        self.kept = seq_lens.clone()


def keep_lengths(engine, kind=KeepingAttention):
    """Give `engine` such a target, and a forward that reads what it keeps."""
    engine.target = engine.trace.name("target", kind("target", engine.trace, engine.configuration.target))
    engine.target.adopts = engine.backend.adopt
    engine.answer = lambda rows: (engine.target.kept[:rows] * 2, engine.target.kept[:rows] + 0, None)
