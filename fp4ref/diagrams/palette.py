"""Colours of figures and of the explorer: tints and strokes of the Okabe-Ito set, for light and dark pages."""

from __future__ import annotations

from fp4ref.errors import DomainError

PREFIX = "fp"
THEMES = ("auto", "light", "dark")
SANS = "Helvetica, Arial, 'Liberation Sans', 'DejaVu Sans', sans-serif"
MONOSPACE = "Menlo, Consolas, 'Liberation Mono', 'DejaVu Sans Mono', monospace"

# Name: (light, dark). a to d are fills under ink, of lightness that tells them apart without hue; A to D go with them.
COLOURS = {
    "paper": ("#ffffff", "#15181d"),
    "ink": ("#1b1b1b", "#ececec"),
    "muted": ("#565656", "#bcbcbc"),
    "edge": ("#6b6b6b", "#8f8f8f"),
    "faint": ("#d4d4d4", "#3b4048"),
    "hatch": ("#a8a8a8", "#5b616b"),
    "mark": ("#c04a00", "#ff9a4d"),
    "a": ("#bde2f6", "#253f4f"),
    "b": ("#f7e0ac", "#544114"),
    "c": ("#98d8c7", "#0c5444"),
    "d": ("#f7eaf1", "#332834"),
    "A": ("#0072b2", "#56b4e9"),
    "B": ("#9c6b00", "#e69f00"),
    "C": ("#00795a", "#3fd0a5"),
    "D": ("#a03f76", "#e39ac3"),
}
FILLS = "abcd"


def css(theme: str = "auto") -> str:
    """Return the style sheet of a figure; auto follows the reader's preference, which PNG renderers ignore."""
    if theme not in THEMES:
        raise DomainError("diagram", f"theme {theme!r}", f"one of {', '.join(THEMES)}")
    # Without this, a browser that hints rounds the width of each letter to pixels, and text outgrows a scaled figure.
    rules = ["text{text-rendering:geometricPrecision}"]
    rules += [f".{PREFIX}-sans{{font-family:{SANS}}}", f".{PREFIX}-mono{{font-family:{MONOSPACE}}}"]
    rules += [f".{PREFIX}-fill-none{{fill:none}}", f".{PREFIX}-line-none{{stroke:none}}"]
    rules += [f".{PREFIX}-fill-pad{{fill:url(#{PREFIX}-hatch)}}", f".{PREFIX}-line-mark{{stroke-width:3}}"]
    rules += _colour_rules(theme == "dark")
    if theme == "auto":
        rules.append(f"@media (prefers-color-scheme:dark){{{''.join(_colour_rules(dark=True))}}}")
    return "".join(rules)


def _colour_rules(dark: bool) -> list[str]:
    rules = []
    for name, pair in COLOURS.items():
        colour = pair[dark]
        rules.append(f".{PREFIX}-fill-{name}{{fill:{colour}}}.{PREFIX}-line-{name}{{stroke:{colour}}}")
    texts = ("ink", "muted", "mark", *FILLS.upper())
    return rules + [f".{PREFIX}-{name}{{fill:{COLOURS[name][dark]}}}" for name in texts]
