"""Widths of texts: upper estimates over DejaVu Sans, Liberation Sans (as wide as Arial and Helvetica) and Noto Sans."""

from __future__ import annotations

MONO = 0.603  # width of a character of a monospaced font, regular or bold, in units of its size

# Hundredths of the font's size: the characters whose advance is at most that in every one of the three fonts.
REGULAR = {
    28: "'ijl",
    32: " ,.·",
    34: ":;I",
    36: "f",
    38: "-/\\",
    40: "()[]t",
    42: "!r",
    46: '"',
    50: "J`",
    54: "sz",
    56: "*?L_c|–",
    58: "k",
    60: "vxy",
    62: "FTaeo",
    64: "$0123456789bdghnpqu{}",
    68: "EKPSY",
    70: "ABVXZ",
    74: "CRU",
    76: "HN",
    78: "&DG",
    80: "OQ",
    82: "w",
    84: "#+<=>^~±×↓−≤≥",
    92: "M",
    96: "%",
    98: "m½",
    100: "W—…→",
}
BOLD = {
    32: "'",
    36: " ijl",
    38: ",.·",
    40: ":;I",
    42: "-/\\",
    44: "f",
    46: "!()[]",
    48: "t",
    50: "`r",
    54: '"',
    56: "*J_|–",
    60: "csz",
    62: "?",
    64: "L",
    66: "vxy",
    68: "aek",
    70: "$0123456789EFTo",
    72: "bdghnpqu{}",
    74: "CPSYZ",
    78: "ABKRVX",
    82: "U",
    84: "#+<=>DGHN^~±×↓−≤≥",
    86: "OQ",
    88: "&",
    94: "w",
    100: "@M—…→",
    102: "%",
    104: "½",
    106: "m",
}
WIDEST = 112  # of any other character
_OF = [{c: width for width, listed in table.items() for c in listed} for table in (REGULAR, BOLD)]


def text_width(text: str, size: float, mono: bool = False, bold: bool = False) -> float:
    """Return an upper estimate of the width of a text, for any common font."""
    if mono:
        return len(text) * MONO * size
    return size * sum(_OF[bold].get(c, WIDEST) for c in text) / 100


def fitting(text: str, width: float, size: float, least: float = 7) -> float:
    """Return the size at which a monospaced text fits a width: `size` if it does, and never less than `least`."""
    return max(min(size, width / max(len(text) * MONO, MONO)), least)


def wrap(text: str, width: float, size: float, mono: bool = False, bold: bool = False) -> list[str]:
    """Lines of a text that fit a width; a word that is too long alone is cut."""
    lines: list[str] = [""]
    for word in text.split():
        joined = f"{lines[-1]} {word}".strip()
        if text_width(joined, size, mono, bold) <= width:
            lines[-1] = joined
            continue
        rest = word
        while text_width(rest, size, mono, bold) > width:
            fit = next(n for n in range(len(rest) - 1, 0, -1) if text_width(rest[:n], size, mono, bold) <= width)
            lines.append(rest[:fit])
            rest = rest[fit:]
        lines.append(rest)
    return [line for line in lines if line] or [""]
