"""Kernels on trial: their declarations, the arrays that a call is given, and one call."""
