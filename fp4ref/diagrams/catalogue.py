"""The figures by name: what each shows, which options it takes, and the variants that a manual needs."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from importlib import import_module
from types import ModuleType
from typing import Any

from fp4ref import relayouts
from fp4ref.diagrams.layout_text import WIDTH, layout_text
from fp4ref.diagrams.request import Request
from fp4ref.diagrams.variants import SHOWN, VARIANTS
from fp4ref.errors import BackendError, DomainError, UnknownNameError
from fp4ref.formats import FORMATS
from fp4ref.layout import LAYOUTS, STANDARD_LAYOUTS, TILED_128X4
from fp4ref.layout.arguments import counted
from fp4ref.names import meant, unknown
from fp4ref.rules import CITED
from fp4ref.specs import MXFP8_E4M3, NVFP4_RHT

MATRIX = 2  # axes
SHAPES = {"tiled_8x4": (20, 160)}  # where a smaller tensor shows more
GEOMETRY = ("spec", "shape", "direction", "element", "window")


@dataclass(frozen=True)
class Figure:
    """A figure: the module and function that draw it, what it shows, the options it takes, and its own defaults.

    Where the options change what it shows, the module's function `point` says it of a request.
    """

    where: str
    summary: str
    takes: tuple[str, ...] = ()
    defaults: dict[str, Any] = field(default_factory=dict)
    text: Callable[[Request, int], str] | None = None

    @property
    def options(self) -> tuple[str, ...]:
        """The options that it takes, as the command calls them."""
        return tuple("shape" if option == "sizes" else option for option in self.takes)


def _of_layout(name: str) -> Figure:
    """Return the figure of a layout: tiles and bytes of scales, or for packings and more axes the bytes alone."""
    if name not in LAYOUTS or LAYOUTS[name].unfit_for_scales():
        return dataclasses.replace(FIGURES["memory"], takes=("sizes",), defaults={"layout": relayouts.named(name)})
    defaults = {"layout": LAYOUTS[name], "shape": SHAPES.get(name, (300, 288))}
    return Figure(
        "layouts:scale_layout", f"The byte of scale (m, k) in {name}, and its sum.", GEOMETRY, defaults, layout_text
    )


def _of_format(name: str) -> Figure:
    """Return the figure of a registered format."""
    form = FORMATS[name]
    summary = f"{name} has codes of {form.bits} bits, and reaches {form.max:g}."
    return Figure("element_formats:registered", summary, ("window",), {"format": form})


FIGURES = {
    "overview": Figure("overview:overview", "The rules give every byte, and verify names the mistake of a kernel."),
    "cheat-sheet": Figure("cheat_sheet:cheat_sheet", "Formats, operations, packing, tiles and commands on one page."),
    "e2m1": Figure(
        "element_formats:e2m1", "E2M1 has eight magnitudes up to 6; a tie goes to the even code.", ("window",)
    ),
    "e4m3": Figure(
        "element_formats:e4m3",
        "E4M3 has three bits of mantissa, and reaches 448; a tie goes to the even code.",
        ("window",),
    ),
    "e5m2": Figure(
        "element_formats:e5m2", "E5M2 has two bits of mantissa, and reaches 57344; it has infinities.", ("window",)
    ),
    "e2m3": Figure(
        "element_formats:e2m3", "E2M3 has three bits of mantissa, and reaches 7.5; it has no NaN.", ("window",)
    ),
    "e3m2": Figure(
        "element_formats:e3m2", "E3M2 has two bits of mantissa, and reaches 28; it has no NaN.", ("window",)
    ),
    "int8": Figure("element_formats:int8", "INT8 counts in steps of 2^-6; a tie goes to the even code.", ("window",)),
    "ue4m3": Figure(
        "element_formats:ue4m3",
        "UE4M3, the scales of ggml: E4M3 without a sign; the code of its NaN reads as 0.",
        ("window",),
    ),
    "ue5m3": Figure(
        "element_formats:ue5m3", "UE5M3 has three bits of mantissa and no sign, and reaches 114688.", ("window",)
    ),
    "e8m0": Figure(
        "element_formats:e8m0", "E8M0 is a power of two, and what is between two of them rounds up.", ("window",)
    ),
    "packing": Figure(
        "packing_figure:packing",
        "The first code of a row is in the lowest bits of its first byte.",
        ("spec", "shape", "element", "window"),
    ),
    "blocks": Figure("blocks:blocks", "The elements of a block, in one row or in several, share one scale.", GEOMETRY),
    "directions": Figure(
        "directions_figure:directions",
        "The column direction quantizes x^T; it is not made of the row direction.",
        ("spec", "shape"),
    ),
    "hierarchy": Figure(
        "hierarchy:hierarchy", "A value is its code times the scale of its block, over the global scale.", ("spec",)
    ),
    **{form.name: _of_layout(form.name) for form in STANDARD_LAYOUTS},
    "formats-compared": Figure(
        "compared_formats:compared_formats", "More bits or smaller blocks, less error: one row in four formats."
    ),
    "linear-tiled": Figure(
        "linear_tiled:linear_tiled",
        "In tiles, rows that are 32 apart are neighbours: the same scales in both orders.",
        (*GEOMETRY, "layout"),
    ),
    "tile-offsets": Figure(
        "tile_offsets:tile_offsets",
        "A tile of 128 x 4 scales fills 512 bytes: the byte of each, none left out.",
        ("layout", "window"),
    ),
    "tensor-memory": Figure(
        "tensor_memory:tensor_memory",
        "tcgen05.cp copies 16 bytes to each lane, so rows that are 32 apart are neighbours.",
    ),
    "scale-vectors": Figure(
        "scale_vectors:scale_vectors",
        "One instruction reads one, two or four scale bytes of a row: scale_vec 1X, 2X, 4X.",
    ),
    "mma-fragments": Figure(
        "mma_fragments:mma_fragments",
        "Each lane of mma.m16n8k64 or m16n8k32 holds fixed elements, and a few hold scales.",
        ("spec",),
    ),
    "pitfalls": Figure("pitfalls:pitfalls", "Four ways to read the wrong scales."),
    "memory": Figure(
        "memory_order:memory_order",
        "The index at each byte of any registered layout or packing, and who reads it.",
        ("layout", "sizes"),
        {"layout": TILED_128X4},
    ),
    "mxfp8-scales": Figure(
        "mx_scales:mx_scales",
        "The scales of rows and of columns belong to other blocks of one tensor.",
        ("spec", "shape"),
        {"spec": MXFP8_E4M3},
    ),
    "hadamard": Figure(
        "hadamard_figure:hadamard",
        "Each output is the sum of 16 inputs with signs, over 4.",
        ("spec",),
        {"spec": NVFP4_RHT},
    ),
    "pipeline": Figure(
        "pipeline:pipeline",
        "From x to bytes: every operation rounds, so their order decides the bytes.",
        ("spec", "direction"),
    ),
    "stochastic": Figure("stochastic_figure:stochastic", "From a threshold on, the random byte rounds a magnitude up."),
    "fused": Figure(
        "fused:fused",
        "The fused path reads x twice, and moves fewer bytes than a kernel for each step.",
        ("spec",),
        {"spec": NVFP4_RHT},
    ),
    "weight-cache": Figure(
        "weight_cache:weight_cache",
        "A cached weight is quantized once, and its scales are made where the GEMM reads them.",
    ),
    "gemm": Figure("gemm_figure:gemm", "All three products add along the blocks of both operands.", ("spec",)),
}


def _variant(name: str) -> tuple[str, dict[str, Any]]:
    """Return the figure and the options of a file that `--all` writes."""
    return next(((figure, options) for variant, figure, options in VARIANTS if variant == name), (name, {}))


def _module(found: Figure) -> ModuleType:
    """Return the module that draws a figure."""
    return import_module(f"fp4ref.diagrams.{found.where.split(':')[0]}")


def drawn(name: str) -> bool:
    """Return True if `--all` writes a file of this name."""
    return name in FIGURES or any(name == variant for variant, _, _ in VARIANTS)


def command(name: str) -> str:
    """Return the command that draws a file that `--all` writes."""
    what, options = _variant(name)
    written: dict[str, Callable[[Any], str]] = {
        "spec": lambda spec: spec.name,
        "shape": lambda shape: f"{shape[0]}x{shape[1]}",
        "element": lambda element: f"{element[0]},{element[1]}",
        "layout": lambda layout: layout.name,
    }
    given = "".join(f" --{option} {written.get(option, str)(value)}" for option, value in options.items())
    return f"fp4ref diagram {what}{given} -o {name}.svg"


def drawn_as(name: str) -> str:
    """Return a file of `--all` as SVG text, in the colours of the theme that the reader has."""
    what, options = _variant(name)
    return draw(what, **options)


def point(name: str) -> str:
    """Return the sentence that says what a file of `--all` shows; that of a variant is about its own values."""
    what, options = _variant(name)
    found = figure(what)
    own = getattr(_module(found), "point", None) if options else None
    return str(own(request(what, **options))) if own else found.summary


def cited(name: str) -> tuple[str, ...]:
    """Return the rules that a file of `--all` shows, the first most of all: its own, or what its function cites."""
    if name in SHOWN:
        return SHOWN[name]
    what, _ = _variant(name)
    found = figure(what)
    text = getattr(_module(found), found.where.split(":")[1]).__doc__ or ""
    rules = tuple(rule.strip() for match in CITED.finditer(text) for rule in match[1].split(","))
    form = found.defaults.get("layout")
    return tuple(dict.fromkeys(((form.rule,) if form else ()) + rules))


def figure(name: str) -> Figure:
    """Return the figure of a name, also that of a registered layout or format; an unknown name lists the figures.

    Rules: LAY-13.
    """
    if name in FIGURES:
        return FIGURES[name]
    if name in relayouts.every():
        return _of_layout(name)
    if name in FORMATS:
        return _of_format(name)
    known = [*FIGURES, *relayouts.every(), *FORMATS]
    raise UnknownNameError("diagram", unknown(repr(name)), f"one of {', '.join(FIGURES)}{meant(name, known)}")


def request(name: str, **options: Any) -> Request:
    """Return the request of a figure: its defaults, then the options; one that it does not take is an error."""
    found = figure(name)
    for option in options:
        if option not in (*found.takes, "theme"):
            takes = ", ".join(f"--{other}" for other in found.options)
            drawn = f"one of the options that it takes: {takes}" if takes else "no option, for it takes none"
            form = found.defaults.get("layout")
            kind = f" of a layout with {counted(len(form.axes))}" if form and len(form.axes) != MATRIX else ""
            raise DomainError(f"diagram {name}", f"--{option}{kind}", drawn, "LAY-32" if kind else "")
    return dataclasses.replace(Request(), **{**found.defaults, **options})


def draw(name: str, **options: Any) -> str:
    """Return a figure as SVG text: the same bytes for the same options.

    options: fields of Request that the figure takes, and theme ("auto", "light" or "dark").
    """
    found, asked = figure(name), request(name, **options)
    try:
        drawing = _module(found)
    except ModuleNotFoundError as error:
        if error.name != "drawsvg":
            raise
        raise BackendError(f"diagram {name}", "no drawsvg here", "pip install 'fp4ref[diagrams]'") from None
    svg: str = getattr(drawing, found.where.split(":")[1])(asked)
    return svg


def text(name: str, width: int = WIDTH, **options: Any) -> str:
    """Return a layout as text for a terminal of a width, without any optional library."""
    found, asked = figure(name), request(name, **options)
    if found.text is None:
        named = ", ".join(other for other in FIGURES if FIGURES[other].text)
        raise DomainError(f"diagram {name}", "text", f"a layout ({named}), or a file to draw to")
    return found.text(asked, width)


def all_figures(theme: str = "auto") -> Iterator[tuple[str, str]]:
    """Every figure and every variant: (name, SVG text), in the order of the list."""
    for name in FIGURES:
        yield name, draw(name, theme=theme)
    for variant, name, options in VARIANTS:
        yield variant, draw(name, theme=theme, **options)
