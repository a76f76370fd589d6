"""Receipts: what a recording really reads, writes and has baked in, compared and judged."""
