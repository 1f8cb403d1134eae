"""Write the chapter on how public implementations differ, and on what to verify against.

    python docs/generate/differences.py OUT.md

Everything but the advice comes from the specifications themselves, or is measured with the golden model.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

import numpy as np

import fp4ref
from fp4ref import packing
from fp4ref.conformance.explain import difference, formulas, table
from fp4ref.conformance.explain.mixed import PAIRS, Mixed, mixed, weights

ACROSS = 8  # inputs side by side, as many as a page is wide for

INTRO = """# How the public implementations differ

The name NVFP4 fixes the formats, not the bits. Implementations agree on a block of 16 E2M1 elements with one E4M3
scale and a global scale, and MX ones on 32 elements with an E8M0 scale; they differ in the order of the float32
operations that lead to a scale, in what they do at a tie, and with zeros, NaN and infinities. Every implementation
below is a *profile*: a specification that reproduces its bytes. This page is generated from the profiles; `fp4ref
profiles diff A B` compares two of them, and prints the smallest inputs on which they differ.
"""

ADVICE_INTRO = """## Which profile to verify against

A kernel that only has to be decoded correctly may use any of these. A kernel that must produce the bytes of another
one verifies against that one's profile, with the layout and the convention for the global scale that its consumer
expects. "Encode" scales multiply the input (about 2688 / amax), "decode" scales are their reciprocals.
"""


class Advice(NamedTuple):
    """The profiles, layouts and conventions that a consumer expects."""

    consumer: str
    profiles: tuple[str, ...]
    scales: str
    convention: str


ADVICE = (
    Advice(
        "cuBLAS and Transformer Engine",
        ("nvfp4", "nvfp4-2d", "nvfp4-rht", "mxfp8-e4m3"),
        "tiled_128x4 at the GEMM",
        "amax kept beside the bytes; alpha is amax_A * amax_B / (6 * 448)^2",
    ),
    Advice("CUTLASS, operands", ("nvfp4", "mxfp8-e4m3"), "tiled_128x4", "decode scales in alpha"),
    Advice("CUTLASS, quantizing epilogue", ("cutlass.nvfp4_epilogue",), "tiled_128x4", "encode scale as norm constant"),
    Advice(
        "torchao, two-level NVFP4",
        ("torchao.nvfp4_2lvl",),
        "linear, or tiled_128x4 by to_blocked",
        "decode scale, amax / 2688",
    ),
    Advice(
        "torchao 0.18, MX",
        ("torchao.mxfp8_e4m3_rceil@0.18.0", "torchao.mxfp4_floor@0.18.0"),
        "linear, or tiled_128x4",
        "none",
    ),
    Advice("vLLM", ("vllm.nvfp4_kernel", "flashinfer.ref_nvfp4"), "tiled_128x4", "encode scale, fp32(1/amax) * 2688"),
    Advice(
        "FlashInfer, default",
        ("flashinfer.nvfp4_kernel", "flashinfer.ref_nvfp4"),
        "tiled_128x4, tiled_8x4 for few rows, or linear",
        "encode scale, given by the caller",
    ),
    Advice(
        "FlashInfer, exact mode",
        ("flashinfer.ref_nvfp4_te", "flashinfer.ref_nvfp4_te_pertoken"),
        "tiled_128x4, tiled_8x4 or linear",
        "encode scale, 2688 / amax",
    ),
    Advice(
        "DeepGEMM",
        ("deepgemm.mxfp8_ue8m0", "deepgemm.mxfp4_ue8m0"),
        "four scale bytes in an int32, rows fastest",
        "none",
    ),
    Advice(
        "compressed-tensors, llm-compressor",
        ("compressed_tensors.nvfp4", "compressed_tensors.mxfp4"),
        "linear",
        "encode scale in the model's dtype",
    ),
    Advice("ModelOpt", ("modelopt.nvfp4", "modelopt.mxfp4"), "linear", "decode scale, amax / 2688"),
    Advice("JAX and Qwix", ("jax.nvfp4", "qwix.nvfp4", "jax.mxfp8"), "linear", "jax: decode scale; Qwix: none"),
)


def main(target: Path) -> None:
    """Write the chapter."""
    target.write_text("\n".join(chapter()) + "\n", encoding="utf-8")


def chapter() -> Iterator[str]:
    """Lines of the chapter."""
    yield INTRO
    yield ADVICE_INTRO
    rows = [(a.consumer, ", ".join(f"`{name}`" for name in a.profiles), a.scales, a.convention) for a in ADVICE]
    yield from markdown(("consumer", "profile", "scale layout", "global scale"), rows)
    yield "\nCodes are packed low nibble first by all of them.\n"
    yield from mixed_pairs()
    for title, base, members in groups():
        yield f"## {title}\n"
        yield from settings(members)
        yield from scale_formulas(members)
        yield from special_cases(members)
        yield from measured(base, members)


MIXED_INTRO = """## Pairs that are often mixed

A checkpoint that one project wrote is requantized, compared or continued in another. Below, both quantize the same
weights: 256 x 1024 normal numbers of deviation 0.02, rounded to bfloat16. Codes, scale bytes and decoded values that
differ are in percent; the error of each is its root mean square over that of the weights. Where only values differ, the
bytes are equal and the factors by which they are decoded are rounded otherwise. The witness is the smallest input found
that gives different bytes.
"""


def mixed_pairs() -> Iterator[str]:
    """Yield what differs between two projects on ordinary weights."""
    yield MIXED_INTRO
    x = weights()
    heads = ("profiles", "codes", "scale bytes", "values", "error of each", "witness")
    for title, pairs in PAIRS.items():
        yield f"### {title}\n"
        yield from markdown(heads, [mixed_row(mixed(a, b, x)) for a, b in pairs])
        yield ""


def mixed_row(found: Mixed) -> tuple[str, ...]:
    """Return the cells of one pair of profiles."""
    count, witness = found.count, found.witness
    parts = ((count.codes, count.elements), (count.scales, count.blocks), (count.values, count.elements))
    shares = [f"{100 * (part or 0) / whole:.3g}" for part, whole in parts]
    told = "none found"
    if witness is not None:
        each = (f"byte {o.scale:02x}, code {o.code:x}, value {o.value:g}" for o in witness.outcomes)
        told = f"`{witness.command(fp4ref.profiles[found.a]).removeprefix('fp4ref explain ')}`: {' and '.join(each)}"
    return (f"`{found.a}`, `{found.b}`", *shares, " and ".join(f"{100 * e:.4g} %" for e in found.errors), told)


def groups() -> Iterator[tuple[str, fp4ref.Spec, list[fp4ref.Spec]]]:
    """Profiles of one pair of formats, with the standard's own, if it has one, as the base; equal ones once."""
    titles = {("e2m1", "e4m3"): ("NVFP4", fp4ref.NVFP4), ("e2m1", "e8m0"): ("MXFP4", fp4ref.MXFP4)}
    titles |= {("e4m3", "e8m0"): ("MXFP8 E4M3", fp4ref.MXFP8_E4M3), ("e5m2", "e8m0"): ("MXFP8 E5M2", fp4ref.MXFP8_E5M2)}
    titles |= {("e2m3", "e8m0"): ("MXFP6 E2M3", fp4ref.MXFP6_E2M3), ("e3m2", "e8m0"): ("MXFP6 E3M2", fp4ref.MXFP6_E3M2)}
    titles |= {("int8", "e8m0"): ("MXINT8", fp4ref.MXINT8)}
    titles |= {("e4m3", "e4m3"): ("FP8 E4M3 with one scale", fp4ref.profiles["te.fp8_current"])}
    titles |= {("e5m2", "e4m3"): ("FP8 E5M2 with one scale", fp4ref.profiles["te.fp8_current_e5m2"])}
    for formats, (title, base) in titles.items():
        found: list[fp4ref.Spec] = []
        for name in fp4ref.profiles:
            spec = fp4ref.profiles[name]
            alike = (spec.element.format.name, spec.scale.format.name) == formats and not spec.stochastic
            if alike and spec not in found:
                found.append(spec)
        yield title, base, found


def settings(members: Sequence[fp4ref.Spec]) -> Iterator[str]:
    """Yield what the records say: block, global scale, rounding, signs, NaN."""
    yield "### Settings\n"
    yield "Ties, sign and NaN are those of the element's codec (E2M1-6 defines the words); NaN codes are of a NaN with"
    yield "sign bit 0 and 1.\n"
    rows = []
    for spec in members:
        element = spec.element
        digits = element.format.digits
        nan = "/".join(f"{code:0{digits}x}" for code in element.nan)
        block = f"{spec.block.rows}x{spec.block.columns}"
        extra = [note for note in table.others(spec) if not note.startswith("element ") or "max" in note]
        rows.append(
            (f"`{spec.name}`", block, str(spec.global_scale), element.rounding, element.sign, nan, "; ".join(extra))
        )
    yield from markdown(("profile", "block", "global scale", "ties", "sign", "NaN", "other settings"), rows)


def scale_formulas(members: Sequence[fp4ref.Spec]) -> Iterator[str]:
    """Yield the arithmetic, a row per one that differs, each operation rounded to float32."""
    yield "\n### Arithmetic\n"
    yield "Each operation is rounded to float32, in the order written; g, or S_enc, is the global scale.\n"
    rows, users = [], []
    by_arithmetic = sorted(members, key=lambda spec: spec.arithmetic.name)
    for name, some in groupby(by_arithmetic, key=lambda spec: spec.arithmetic.name):
        specs = list(some)
        arithmetic = specs[0].arithmetic
        slots = [
            formulas.formula(getattr(arithmetic, slot))
            for slot in ("global_scale", "block_scale", "scaled", "dequantized")
        ]
        if specs[0].global_scale is fp4ref.Granularity.NONE:
            slots[0] = "none"
        rows.append((f"`{name}`", *slots))
        users.append((f"`{name}`", ", ".join(f"`{spec.name}`" for spec in specs)))
    yield from markdown(("arithmetic", "global scale", "block scale", "element", "dequantized"), rows)
    yield ""
    yield from markdown(("arithmetic", "used by"), users)


def special_cases(members: Sequence[fp4ref.Spec]) -> Iterator[str]:
    """Scale byte and codes of blocks without ordinary numbers, measured."""
    yield "\n### Zero, underflow, NaN and infinity\n"
    yield "Scale byte, then the codes of the first two elements; the tensor's other block holds 6, 5, -4 and 0.5.\n"
    heads = ("profile", "zero block", "-0 and +0", "underflow", "zero tensor", "NaN, 1", "Inf, 1")
    yield from markdown(
        heads,
        [(f"`{spec.name}`", *(_special(spec, name) for name in SPECIAL)) for spec in members if not spec.hadamard],
    )


SPECIAL = {
    "zero": (0.0, 0.0),
    "signed": (-0.0, 0.0),
    "tiny": (1e-9, -1e-9),
    "all": None,
    "nan": (np.nan, 1.0),
    "inf": (np.inf, 1.0),
}


def _special(spec: fp4ref.Spec, name: str) -> str:
    """Bytes of one special block."""
    width, tall = max(16, spec.block.columns), max(1, spec.block.rows)
    x = np.zeros((2 * tall, width), np.float32)
    values = SPECIAL[name]
    if values is not None:
        x[tall, :4] = [6, 5, -4, 0.5]
        x[:1, :2] = values
    q = difference.quantize(x, spec, "row")
    assert q.row is not None
    codes = packing.unpack(q.row.data, width, spec.element.format)[0, :2]
    digits = spec.element.format.digits
    return f"{q.row.scales[0, 0]:02x}: " + " ".join(f"{code:0{digits}x}" for code in codes)


def measured(base: fp4ref.Spec, members: Sequence[fp4ref.Spec]) -> Iterator[str]:
    """Shares of codes and scale bytes that differ from the standard's, on named inputs."""
    yield f"\n### Bytes that differ from `{base.name}`\n"
    yield "Codes / scale bytes in percent, on the inputs of `fp4ref profiles diff` with any difference."
    yield f"{ACROSS} inputs to a table; a profile that is not in a table has no difference on its inputs.\n"
    others = [s for s in members if s != base and difference.same_bytes(base, s) and not s.hadamard]
    counts: dict[str, dict[str, difference.Count]] = {spec.name: {} for spec in others}
    for name, direction, x in difference.inputs(base, base) if others else ():
        if direction == "row":
            ours = difference.quantize(x, base, "row")
            for spec in others:
                theirs = difference.quantize(x, spec, "row")
                counts[spec.name][name] = difference.counted(ours, theirs, x.dtype, "row", name)
    names = list(dict.fromkeys(name for found in counts.values() for name, count in found.items() if count.differs))
    for part in (names[start : start + ACROSS] for start in range(0, len(names), ACROSS)):
        rows = [(f"`{spec}`", *(_share(found[name]) for name in part)) for spec, found in counts.items()]
        yield from markdown(("profile", *part), [row for row in rows if set(row[1:]) != {"0"}])
        yield ""


def _share(count: difference.Count) -> str:
    if not count.differs:
        return "0"
    return f"{100 * (count.codes or 0) / count.elements:.3g} / {100 * (count.scales or 0) / count.blocks:.3g}"


def markdown(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Yield a table; bars in a cell are escaped."""
    yield "| " + " | ".join(heads) + " |"
    yield "|" + " --- |" * len(heads)
    for row in rows:
        yield "| " + " | ".join(str(cell).replace("|", "\\|") for cell in row) + " |"


if __name__ == "__main__":
    main(Path(sys.argv[1]))
