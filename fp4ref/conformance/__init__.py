"""Conformance: whether foreign bytes are the right ones, and if not, which known mistake explains them."""
