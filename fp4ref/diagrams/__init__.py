"""Figures, drawn from the objects that the code runs."""
