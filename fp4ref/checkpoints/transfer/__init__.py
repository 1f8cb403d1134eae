"""Quantized weights from one convention to another: one value in the middle, a reader, writers, and what runs them."""
