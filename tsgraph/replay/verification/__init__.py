"""Verification: the proof, on a user's own engine, that replays are right. `GraphRuntime.verify` is its door."""
