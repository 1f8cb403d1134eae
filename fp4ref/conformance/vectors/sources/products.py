"""Products of small operands: sums worked out by hand, and aimed operands with the oracle's results."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fp4ref.conformance.oracle import gemm as gemm_oracle
from fp4ref.conformance.oracle import quantizer as oracle
from fp4ref.conformance.vectors.sources.layouts import stored
from fp4ref.conformance.vectors.sources.parts import (
    ORACLE,
    STATED,
    WORKED,
    Json,
    bits,
    floats,
    group,
    named,
    record,
    refused,
    test,
)
from fp4ref.conformance.vectors.sources.tensors import spread
from fp4ref.conformance.vectors.text import format_rows, format_words, pattern_words
from fp4ref.quantized import Direction, DirectionData, Quantized
from fp4ref.spec import Hadamard, Spec
from fp4ref.specs import (
    MXFP4,
    MXFP8_E4M3,
    MXFP8_E5M2,
    NVFP4,
    NVFP4_2D,
    NVFP4_4OVER6,
    NVFP4_RHT,
    NVFP4_ROW_SCALED,
)

BARE = NVFP4.replace(name="nvfp4 without a global scale", global_scale="none")  # alpha is 1: results are sums
ONE, ONE_E8M0 = "38", "7f"


def side(spec: Spec, columns: int, data: str, scales: str, amax: str = "") -> Json:
    """Return an operand from hex rows and decimals, each separated by spaces."""
    rows = data.split()
    made = {"spec": named(spec), "shape": [len(rows), columns], "data": rows, "scales": scales.split()}
    return {**made, "amax": format_words(floats(amax))} if amax else made


def blocks(*contents: str) -> str:
    """Return a row of NVFP4 blocks of 16, each from the hex of its first bytes."""
    return "".join(content.ljust(16, "0") for content in contents)


def product(flags: str, comment: str, a: Json, b: Json, expected: str | Json, mode: str = "exact", **more: Any) -> Json:
    """Return a test; expected: words of the rows, separated by commas, or an error."""
    answer = {"values": [row.strip() for row in expected.split(",")]} if isinstance(expected, str) else expected
    return test(flags, comment, mode=mode, a=a, b=b, **more, expected=answer)


def sums() -> list[Json]:
    """Return sums whose contributions can be seen. Rules: GEM-1, GEM-2, GEM-4."""
    a = side(BARE, 16, "27" * 8, ONE)
    both = side(BARE, 16, f"{'f2' * 8} {'45' * 8}", f"{ONE} {ONE}")
    large = "66" * 8, "78"  # 16 elements of 4 under 256: with itself 2^24
    three = [side(BARE, 48, blocks(large[0], "02", "02"), f"{large[1]}{ONE}{ONE}")] * 2
    tie = [side(BARE, 32, blocks(large[0], "02"), f"{large[1]}{ONE}")] * 2
    above = [side(BARE, 48, blocks(large[0], "02", "01"), f"{large[1]}{ONE}01")] * 2  # (2^-1 * 2^-9)^2 = 2^-20
    last = [side(BARE, 48, blocks("02", "02", large[0]), f"{ONE}{ONE}{large[1]}")] * 2
    tests = [product("WorkedProduct", "6 - 6 + ..., and 18 + 2 eight times", a, both, "00000000 43200000", "exact")]
    for comment, pair, exact, blockwise in (
        ("2^24 + 1 + 1", three, "4b800001", "4b800000"),
        ("2^24 + 1, a tie", tie, "4b800000", "4b800000"),
        ("2^24 + 1 + 2^-20", above, "4b800001", "4b800000"),
        ("1 + 1 + 2^24", last, "4b800001", "4b800001"),
    ):
        for mode, want in (("exact", exact), ("blockwise", blockwise)):
            tests.append(product("OrderOfSums TieToEven", f"{comment}, {mode}", pair[0], pair[1], want, mode))
    return tests


def specials() -> list[Json]:
    """NaN and infinite terms. Rules: GEM-3."""
    row = blocks("7c3c").ljust(64, "0")  # Inf and 1
    inf = side(MXFP8_E5M2, 32, row, ONE_E8M0)
    tests = []
    for comment, start, want in (
        ("Inf * 1 + 1 * 1", "3c3c", "7f800000"),
        ("Inf * 0 + 1 * 1", "003c", "nan"),
        ("Inf * -1 + 1 * 1", "bc3c", "ff800000"),
        ("Inf * -Inf + 1 * 1", "fc3c", "ff800000"),
    ):
        other = side(MXFP8_E5M2, 32, start.ljust(64, "0"), ONE_E8M0)
        tests += [product("Infinity", comment, inf, other, want, mode) for mode in ("exact", "blockwise")]
    nan = side(MXFP8_E4M3, 32, "38".ljust(64, "0"), "ff")
    zero = side(MXFP8_E4M3, 32, "00" * 32, ONE_E8M0)
    nothing = side(NVFP4, 16, "77" * 8, "7e", "0")
    some = side(NVFP4, 16, "7f" * 8, "7e", "3")
    nan_rows = side(BARE, 16, f"{'22' * 8} {'22' * 8}", f"7f {ONE}")
    return [
        *tests,
        product("NaN", "a NaN scale times zeros", nan, zero, "nan"),
        product("GlobalScale", "amax 0", nothing, some, "00000000"),
        product("NaN", "a NaN scale stays in its row", nan_rows, side(BARE, 16, "22" * 8, ONE), "nan, 41800000"),
        product("NaN", "the positive quiet NaN", nan, zero, "7fc0", to="bfloat16"),
        product("NaN", "the positive quiet NaN", nan, zero, "7e00", to="float16"),
    ]


def alphas() -> list[Json]:
    """Return sums of 1 or 1000 times amaxes. Rules: GEM-5, GEM-6, GEM-7."""

    def unit(amax: str, spec: Spec = NVFP4) -> Json:
        return side(spec, 16, blocks("02"), ONE, amax)

    def thousand(of_a: Spec, of_b: Spec) -> tuple[Json, Json]:
        return side(of_a, 16, blocks("27"), "62", "1.1"), side(of_b, 16, blocks("26"), ONE, "1.3")

    tenth = {"alpha": format_words(floats("0.1"))}
    row = NVFP4_ROW_SCALED
    return [
        product("Alpha", "amaxes 4 and 0.5", unit("4"), unit("0.5"), "34949b93"),
        product("Alpha", "amaxes 1.1 and 1.3, alpha 0.1", unit("1.1"), unit("1.3"), "32aa01da", **tenth),
        product("Alpha", "times the reciprocal", unit("9.8125"), unit("0.6171875"), "3560ff6c"),
        product("Alpha", "divided", unit("9.8125"), unit("0.6171875"), "3560ff6b", alpha_rule="division"),
        product("Alpha", "sum 1000", *thousand(NVFP4, NVFP4), "394f8741"),
        product("Alpha RowScale", "sum 1000, A by rows", *thousand(row, NVFP4), "394f8742"),
        product("Alpha RowScale", "sum 1000, B by rows", *thousand(NVFP4, row), "394f8742"),
        product("Alpha RowScale", "sum 1000, both by rows", *thousand(row, row), "394f8743"),
    ]


def added() -> list[Json]:
    """Return tests of 1 and 1.00390625 plus C and a bias, whose order and type show in the bytes. Rules: GEM-8."""
    one = side(BARE, 16, blocks("02"), ONE)
    more = side(BARE, 32, blocks("02", "02"), f"{ONE}18")  # with itself 1 + 2^-4 * 2^-4
    c: Json = {"accumulate": ["4380"], "to": "bfloat16"}  # 256
    bias: Json = {"bias": {"dtype": "float32", "values": format_words(floats("1"))}}
    half: Json = {"bias": {"dtype": "bfloat16", "values": format_words(floats("0.5", "bfloat16"))}}
    return [
        product("Epilogue", "1 + 256 + 1", one, one, "4381", **c, **bias),
        product("Epilogue", "1.00390625 + 256", more, more, "4381", **c),
        product("Epilogue", "1 + 256: a tie of bfloat16", one, one, "4380", **c),
        product("Epilogue", "1 and a bias of another type", one, one, "3fc00000", **half),
        product("Epilogue", "float16", one, one, "3c00", to="float16"),
    ]


# By the oracle

PAIRS = (
    (NVFP4, NVFP4),
    (NVFP4, NVFP4_2D),
    (NVFP4_ROW_SCALED, NVFP4_4OVER6),
    (NVFP4_ROW_SCALED, NVFP4_ROW_SCALED),
    (MXFP4, MXFP8_E5M2),
    (MXFP8_E4M3, MXFP8_E4M3),
    (MXFP8_E5M2, MXFP8_E5M2),
)


def quantized(spec: Spec, x: NDArray[Any], direction: Direction = "row", scale_layout: str = "linear") -> Quantized:
    """Return the oracle's bytes of one direction."""
    part = oracle.quantize(x, spec, direction)
    part = part._replace(scales=stored(part.scales, scale_layout))
    pair = (part, None) if direction == "row" else (None, part)
    return Quantized(spec, x.shape, x.dtype.name, scale_layout, *pair)


def recorded(q: Quantized) -> Json:
    """Return a quantized tensor of one direction as a test holds it."""
    direction: Direction = "row" if q.row is not None else "column"
    data: DirectionData = q.direction(direction)[0]
    made = {"spec": named(q.spec), "shape": list(q.shape), "data": format_rows(data.data)}
    made["scales"] = format_rows(data.scales)
    if data.amax is not None:
        made["amax"] = format_words(data.amax)
    if direction != "row":
        made["direction"] = direction
    return made if q.scale_layout == "linear" else {**made, "scale_layout": q.scale_layout}


def by_oracle(
    flags: str, comment: str, a: Quantized, b: Quantized, mode: str, to: str = "float32", **more: Any
) -> Json:
    """Return a test with the oracle's result."""
    directions = ["row" if q.row is not None else "column" for q in (a, b)]
    values = gemm_oracle.expected(a, b, mode, to, directions=directions, **more)
    fields: Json = {} if to == "float32" else {"to": to}
    if "alpha" in more:
        fields["alpha"] = format_words(floats([more["alpha"]]))
    if "rule" in more:
        fields["alpha_rule"] = more["rule"]
    if "bias" in more:
        fields["bias"] = {"dtype": more["bias"].dtype.name, "values": format_words(more["bias"])}
    if "accumulate" in more:
        fields["accumulate"] = [format_words(row) for row in more["accumulate"]]
    answer = {"values": [pattern_words(row) for row in values]}
    return test(flags, comment, mode=mode, a=recorded(a), b=recorded(b), **fields, expected=answer)


def pairs() -> list[Json]:
    """Pairs of formats with ragged ends, in both modes, with all that can be added."""
    tests = []
    for i, (of_a, of_b) in enumerate(PAIRS):
        a, b = quantized(of_a, spread((3, 70), "float32", 60 + i)), quantized(of_b, spread((2, 70), "float32", 80 + i))
        names = f"{of_a.name} and {of_b.name}"
        to = ("float32", "bfloat16", "float16")[i % 3]
        more = {
            "alpha": float(np.float32(0.1)),
            "bias": spread((2,), "bfloat16", 90 + i),
            "accumulate": spread((3, 2), to, 95 + i),
        }
        tests.append(by_oracle("SumOfProducts", f"{names}, exact", a, b, "exact"))
        tests.append(by_oracle("SumOfProducts OrderOfSums", f"{names}, blockwise", a, b, "blockwise"))
        tests.append(by_oracle("Epilogue Alpha", f"{names}, all added", a, b, "exact", to, **more))
    return tests


def places() -> list[Json]:
    """Directions, layouts, scales that span every exponent, and operands without elements."""
    x, w = spread((16, 40), "float32", 101), spread((40, 18), "float32", 102)
    dx = quantized(NVFP4, x), quantized(NVFP4, w, "column", "tiled_128x4")
    y = spread((16, 3), "bfloat16", 103), spread((16, 5), "bfloat16", 104)
    turned = quantized(NVFP4_RHT, y[0], "column"), quantized(NVFP4_RHT, y[1], "column")
    wide = bits("7f000000 00800000 3f800000 00000000 33800000 4b000000 c0400000 80000001")
    far = np.repeat(wide, 32)[None]
    spans, nothing = quantized(MXFP8_E4M3, far), quantized(NVFP4, np.zeros((2, 0), np.float32))
    return [
        by_oracle("ColumnDirection LayoutOrder Padding", "rows of x, columns of w in tiles", *dx, "exact"),
        by_oracle("ColumnDirection", "columns of both, transformed", *turned, "exact"),
        *(
            by_oracle("WideRange", f"scales of all exponents, {mode}", spans, spans, mode)
            for mode in ("exact", "blockwise")
        ),
        by_oracle("EmptyTensor", "K = 0: sums of +0", nothing, nothing, "exact"),
    ]


def refusals() -> list[tuple[str, list[Json]]]:
    """Operands that do not fit, by rule. Rules: GEM-9, GEM-10, GEM-22, GEM-58, GEM-59."""
    nv, mx = side(NVFP4, 32, "22" * 16, ONE * 2, "6"), side(MXFP4, 32, "22" * 16, ONE_E8M0)
    shorter = side(NVFP4, 16, "22" * 8, ONE, "6")
    other = NVFP4_RHT.replace(name="nvfp4-rht signs 1", hadamard=Hadamard(1))
    turned, plain, signed = (
        {**side(spec, 1, "22" * 8, ONE, "6"), "shape": [16, 1], "direction": "column"}
        for spec in (NVFP4_RHT, NVFP4, other)
    )
    multiplier = {**nv, "spec": "compressed_tensors.nvfp4"}
    bare = {key: value for key, value in nv.items() if key != "amax"} | {"spec": record(BARE)}

    def ask(comment: str, a: Json, b: Json, error: str, rule: str) -> Json:
        return product("Refused", comment, a, b, refused(error, rule))

    return [
        ("GEM-22", [ask("another K", nv, shorter, "ShapeError", "GEM-22")]),
        ("GEM-9", [ask("E4M3 scales and E8M0 scales", nv, mx, "DomainError", "GEM-9")]),
        ("GEM-59", [ask("a global scale that is no amax", nv, multiplier, "DomainError", "GEM-59")]),
        ("GEM-58", [ask("a global scale and none", nv, bare, "DomainError", "GEM-58")]),
        (
            "GEM-10",
            [
                ask("one side transformed", turned, plain, "DomainError", "GEM-10"),
                ask("other signs", turned, signed, "DomainError", "GEM-10"),
            ],
        ),
    ]


def gemm_groups() -> list[Json]:
    """All products."""
    return [
        group("GEM-1 GEM-2 GEM-4", WORKED, sums()),
        group("GEM-3 GEM-23", STATED, specials()),
        group("GEM-5 GEM-6 GEM-7", WORKED, alphas()),
        group("GEM-8", STATED, added()),
        group("GEM-1 GEM-2 GEM-4 GEM-5 GEM-7 GEM-8", ORACLE, pairs()),
        group("GEM-1 GEM-2 GEM-4 GEM-10", ORACLE, places()),
        *(group(rule, STATED, tests) for rule, tests in refusals()),
    ]
