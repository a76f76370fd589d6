"""Capture: which slots in which order, and the pipeline that walks each along the spec."""
