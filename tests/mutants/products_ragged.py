"""Products that are wrong in ragged tails, in one row or column, or by one bit of alpha: what whole tiles hide.

Each was written without the library of mistakes at hand; the text is a regular expression of the cause and the place.
"""

import runpy
from pathlib import Path

import ml_dtypes
import numpy as np

_BASE = runpy.run_path(str(Path(__file__).parent / "products.py"))
product, right, BIAS, C, BOTH = (_BASE[name] for name in ("product", "right", "BIAS", "C", "BOTH"))
MUTANTS, CORRECT = [], []  # of quantizers: none here
F, BF16 = np.float32, ml_dtypes.bfloat16
R, Q = F(1) / F(7225344), F(1) / F(2688)


def tail(count, tile):
    """Return the mask of the rows or columns that fill no tile."""
    return np.arange(count) >= count // tile * tile


def without_bias(where):
    """No bias where a mask of [M, 1] or [1, N] says so; where(m, n)."""
    return lambda y, s, bias, **_: y * s + np.where(where(*y.shape), F(0), bias)


def without_c(where):
    return lambda y, s, c, **_: y * s + np.where(where(*y.shape), F(0), c)


def scaled(formula, spec="nvfp4", to="float32"):
    """Sums by an alpha of another order: the kernel sees 1 as both amaxes, and alpha comes by hand."""
    seen = []

    def pick(of):
        seen[:] = [(of["a_amax"], of["b_amax"])]
        return of

    def end(y, alpha, **_):
        a, b = seen[0]
        return y * formula(a[0], b[0])

    return product(spec, end, pick=pick, to=to)


def even_blocks(q, s):
    """Without the last block where the number of blocks is odd and more than one."""
    s = s.copy()
    if s.shape[1] % 2 and s.shape[1] > 1:
        s[:, -1] = 0
    return q, s


def saturating(where, most):
    return lambda y, s, **_: np.where(where(*y.shape), np.clip(y * s, -most, most), y * s)


def numbers_only(where):
    return lambda y, s, **_: np.where(where(*y.shape) & np.isnan(y), F(0), y * s)


def amax_of_tile(name, tile):
    """Rows that fill no tile take the amax of the first of these."""

    def pick(of):
        own = of[name].copy()
        whole = len(own) // tile * tile
        own[whole:] = own[whole : whole + 1] if whole < len(own) else own[whole:]
        return {**of, name: own}

    return pick


def of_row(y, s, bias, **_):
    return y * s + np.resize(bias, len(y))[:, None]


def rows_past_8(m, n):
    return rows(m, 8)


def as_it_is(q, s):
    return q, s


def columns(n, tile):
    return tail(n, tile)[None]


def rows(m, tile):
    return tail(m, tile)[:, None]


def bias_clamped(y, s, bias, **_):
    """Columns that fill no tile of 8 take the last bias before them."""
    index = np.arange(len(bias))
    whole = len(bias) // 8 * 8
    return y * s + bias[np.where((index >= whole) & (whole > 0), whole - 1, index)]


def c_of_whole_rows(y, s, c, **_):
    """C with the row stride of whole tiles of 8."""
    m, n = np.indices(c.shape)
    return y * s + c.ravel()[m * max(n.shape[1] // 8 * 8, 1) + n]


def with_depth(end, **of):
    """An end of a product that is also given K."""
    seen = []

    def pick(given):
        seen[:] = [given["depth"]]
        return given

    return {"end": lambda y, s, bias=None, c=None, to=F: end(y, s, bias, c, seen[0]), "pick": pick, **of}


def through_float16(y, s, **_):
    y = y * s
    return np.where(columns(y.shape[1], 8), y.astype(np.float16).astype(F), y)


def first_scale_of_one_row(q, s):
    return q, np.repeat(s[:, :1], s.shape[1], axis=1) if len(s) == 1 else s


RAGGED = {
    **{
        f"bias, columns past {tile}s, {to}": (
            product("nvfp4", without_bias(lambda m, n, tile=tile: columns(n, tile)), to=to, **BIAS),
            rf"bias is not added, in columns past the last multiple of {tile}",
        )
        for tile, to in ((8, "float32"), (16, "bfloat16"), (64, "float16"))
    },
    "bias of the last tile": (
        product("nvfp4", without_bias(lambda m, n: columns(n, 128) & (n > 128)), **BIAS),
        r"bias is not added, .*(128|tile)",
    ),
    "bias, rows past 8s": (
        product("mxfp4", without_bias(lambda m, n: rows(m, 8)), **BIAS),
        r"bias is not added, .*rows past the last multiple of 8",
    ),
    "bias of one row": (product("nvfp4", without_bias(lambda m, n: m == 1), **BIAS), r"bias is not added, .*"),
    "bias in bfloat16, tail": (
        product(
            "nvfp4",
            lambda y, s, bias, **_: y * s + np.where(tail(len(bias), 4), bias.astype(BF16).astype(F), bias),
            **BIAS,
        ),
        r"bias is rounded to bfloat16, in columns past the last multiple of 4",
    ),
    "bias clamped": (product("nvfp4", bias_clamped, **BIAS), r"wrong: .*bias"),
    "bias twice where K is ragged": (
        product("nvfp4", **with_depth(lambda y, s, bias, c, k: y * s + bias * F(1 + (k % 16 > 0)), **BIAS)),
        r"the bias is added twice",
    ),
    "bias past column 128, in whole tiles": (
        product("nvfp4", without_bias(lambda m, n: (np.arange(n) >= 128)[None]), multiple=(16, 64), **BIAS),
        r"bias is not added, in columns from 128 on",
    ),
    "bias of the tail, both": (
        product(
            "nvfp4",
            lambda y, s, bias, c, **_: y * s + c + np.where(tail(len(bias), 32), F(0), bias),
            to="float16",
            **BOTH,
        ),
        r"bias is not added, in columns past the last multiple of 32",
    ),
    "bias of the tail, amaxes of rows": (
        product("nvfp4-row-scaled", without_bias(lambda m, n: columns(n, 8)), to="bfloat16", **BIAS),
        r"bias is not added, in columns past the last multiple of 8",
    ),
    "C of whole rows": (product("mxfp4", c_of_whole_rows, **C), r"wrong: .*C"),
    "C of the tail, amaxes of rows": (
        product("nvfp4-row-scaled", without_c(lambda m, n: columns(n, 8)), to="bfloat16", **C),
        r"C is not added.*columns past the last multiple of 8",
    ),
    "tail not written": (
        product(
            "mxfp8-e4m3",
            lambda y, s, c, **_: np.where(columns(y.shape[1], 8), c, y + c),
            to="bfloat16",
            out_buffers=True,
            in_place=True,
        ),
        r"(result is C|not written).*columns past the last multiple of 8",
    ),
    "tail through float16": (
        product("nvfp4", through_float16),
        r"rounded to float16, in columns past the last multiple of 8",
    ),
    "scales of one row": (product("mxfp4", fix=as_it_is, fix_b=first_scale_of_one_row), r"scale"),
    "mx saturates": (
        product("mxfp4", saturating(lambda m, n: True, 65504), to="float16"),
        r"infinite results saturate",
    ),
    "mx saturates in the tail": (
        product("mxfp8-e4m3", saturating(rows_past_8, 65504), to="float16"),
        r"infinite results saturate, in rows past the last multiple of 8",
    ),
    "-0 lost in the tail": (
        product("nvfp4", lambda y, s, **_: np.where(rows(len(y), 8), y * s + F(0), y * s)),
        r"results of -0 become 0, in rows past the last multiple of 8",
    ),
    "bias of rows": (product("nvfp4", of_row, **BIAS), r"bias is added by rows"),
    "rounded before the bias": (
        product("nvfp4", lambda y, s, bias, **_: (y * s).astype(BF16).astype(F) + bias, to="bfloat16", **BIAS),
        r"results are rounded to bfloat16 before the bias is added",
    ),
    "rounded before the bias, float16": (
        product("mxfp4", lambda y, s, bias, **_: y.astype(np.float16).astype(F) + bias, to="float16", **BIAS),
        r"results are rounded to float16 before the bias is added",
    ),
    "C past column 128": (
        product("nvfp4", without_c(lambda m, n: (np.arange(n) >= 128)[None]), to="bfloat16", **C),
        r"C is not added.*128",
    ),
    "C of one column": (product("mxfp4", without_c(lambda m, n: n == 1), **C), r"C is not added.*"),
    "C, rows past 4s": (
        product("nvfp4", without_c(lambda m, n: rows(m, 4)), to="float16", **C),
        r"C is not added.*rows past the last multiple of 4",
    ),
    "C column by column": (
        product("nvfp4", lambda y, s, c, **_: y * s + c.reshape(c.shape[::-1]).T, **C),
        r"C is added transposed",
    ),
    "alpha twice in odd rows": (
        product("nvfp4", lambda y, s, **_: y * s * np.where(np.arange(len(y)) % 2 == 1, s, F(1))[:, None]),
        r"alpha is applied twice, where row % 2 == 1",
    ),
    "no alpha in one column": (
        product("nvfp4", lambda y, s, **_: y if y.shape[1] == 1 else y * s),
        r"amaxes and the factor are left out",
    ),
    "amax of the first row in the tail": (
        product("nvfp4-row-scaled", pick=amax_of_tile("a_amax", 8)),
        r"wrong: .*amax",
    ),
    "last block of odd counts": (product("nvfp4", fix=even_blocks), r"last block"),
    "float16 saturates in the tail": (
        product("nvfp4", saturating(lambda m, n: columns(n, 8), 65504), to="float16"),
        r"infinite results saturate, in columns past the last multiple of 8",
    ),
    "NaN lost in the last rows": (
        product("nvfp4", numbers_only(lambda m, n: rows(m, 16))),
        r"NaN",
    ),
    "NaN lost in one column": (product("mxfp4", numbers_only(lambda m, n: n == 1)), r"NaN"),
    "-0 lost": (product("nvfp4", lambda y, s, **_: y * s + F(0)), r"wrong: results of -0 become 0;"),
    **{
        f"alpha: {name}, {to}": (scaled(formula, to=to), says)
        for to in ("float32", "bfloat16", "float16")
        for name, (formula, says) in {
            "(a r) b": (
                lambda a, b: (a * R) * b,
                "multiplies the amax of A before|each amax multiplies the sum by itself",
            ),
            "(b r) a": (lambda a, b: (b * R) * a, "multiplies the amax of B before"),
            "(a / f) b": (lambda a, b: a / F(7225344) * b, "divides the amax of A before"),
            "(b / f) a": (lambda a, b: b / F(7225344) * a, "divides the amax of B before"),
            "(a / 2688) (b / 2688)": (lambda a, b: (a / F(2688)) * (b / F(2688)), "each operand has its own factor"),
            "(a q) (b q)": (lambda a, b: (a * Q) * (b * Q), r"each amax is multiplied by 1 / \(6 \* 448\)"),
            "1 / ((2688 / a) (2688 / b))": (
                lambda a, b: F(1) / (F(2688) / a * (F(2688) / b)),
                "reciprocal of the two encode scales' product",
            ),
            "1 / (f / (a b))": (lambda a, b: F(1) / (F(7225344) / (a * b)), "reciprocal of factor"),
            "once": (lambda a, b: F(np.float64(a) * np.float64(b) / 7225344), "alpha is rounded once"),
        }.items()
    },
}
