"""Figures, drawn from the objects that the code runs: `draw(name, ...)` is a figure as SVG text."""

from fp4ref.diagrams.catalogue import FIGURES, all_figures, draw, text

__all__ = ["FIGURES", "all_figures", "draw", "text"]
