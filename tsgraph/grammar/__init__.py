"""Grammars in the graph: which tokens each row may draw, worked out by host functions beside the forward."""
