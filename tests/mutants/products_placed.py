"""Products that are wrong somewhere only: in some rows, columns, blocks of K, or in what they add there.

Each was written without the library of mistakes at hand; the text is a regular expression of the cause and the place.
"""

import runpy
from pathlib import Path

import ml_dtypes
import numpy as np

_BASE = runpy.run_path(str(Path(__file__).parent / "products.py"))
product, FORMATS, bf16 = (_BASE[name] for name in ("product", "FORMATS", "bf16"))
BIAS, C = _BASE["BIAS"], _BASE["C"]
MUTANTS, CORRECT = [], []  # of quantizers: none here
F, BF16 = np.float32, ml_dtypes.bfloat16


def ended(change):
    """An end of a product that changes the scaled sums."""

    def end(y, alpha, **_):
        return change(y * alpha)

    return end


def rows_of(y, rows, what):
    """Results with those of a mask of rows replaced."""
    out = y.copy()
    out[rows] = np.broadcast_to(what, y.shape)[rows]
    return out


def shifted(y, by):
    return y[np.clip(np.arange(len(y)) + by, 0, len(y) - 1)]


def index(y):
    return np.arange(len(y))


def depth_of(keep):
    """Elements of A outside of a mask of depth are zero."""

    def fix(q, s):
        return np.where(keep(np.arange(q.shape[1]), q.shape[1]), q, F(0)), s

    return fix


def scales_of(change):
    def fix(q, s):
        return q, change(s)

    return fix


def as_it_is(q, s):
    return q, s


def swapped_in(rows):
    """Elements 2k and 2k + 1 exchanged in the rows of a mask."""

    def fix(q, s):
        q, whole = q.copy(), q.shape[1] // 2 * 2
        pairs = q[:, :whole].reshape(len(q), -1, 2)[:, :, ::-1].reshape(len(q), whole)
        q[rows(index(q)), :whole] = pairs[rows(index(q))]
        return q, s

    return fix


def signless_in(rows):
    return lambda q, s: (np.where(rows(index(q))[:, None], np.abs(q), q), s)


def fragments(y):
    """Rows 8 to 15 of every 16 exchanged with rows 0 to 7."""
    taken = index(y) ^ 8
    return y[np.where(taken < len(y), taken, index(y))]


def bias_at(place):
    """The bias of another column."""
    return lambda y, s, bias, **_: y * s + bias[place(np.arange(len(bias)))]


def bias_where(columns):
    return lambda y, s, bias, **_: y * s + np.where(columns(np.arange(len(bias))), bias, F(0))


def nan_scale_of_row(q, s):
    return q, np.where(np.isnan(s), s[:, :1], s)


def last_scale_before(q, s):
    """A last block that is not full takes the scale before."""
    width = {True: 16, False: 32}[-(-q.shape[1] // 16) == s.shape[1]]
    s = s.copy()
    if q.shape[1] % width and s.shape[1] > 1:
        s[:, -1] = s[:, -2]
    return q, s


def last_scale_of_the_block_before(q, s):
    return q, np.concatenate([s[:, :-1], s[:, -2:-1]], axis=1) if s.shape[1] > 1 else s


def signless_in_odd_blocks(q, s):
    width = {True: 16, False: 32}[-(-q.shape[1] // 16) == s.shape[1]]
    return np.where(np.arange(q.shape[1]) // width % 2 == 1, np.abs(q), q), s


def deep_bias_twice(depth):
    """The bias, twice where K is at least a depth, as if each of two splits added it. pick, end: of a product."""
    seen = []

    def pick(of):
        seen[:] = [of["depth"]]
        return of

    return {"pick": pick, "end": lambda y, s, bias, **_: y * s + bias * F(1 + (seen[0] >= depth)), **BIAS}


PLACED = {
    # results
    "columns past 64 lost": (
        product("nvfp4", ended(lambda y: np.where(np.arange(y.shape[1]) < 64, y, F(0)))),
        r"(columns? from 64|column >= 64|columns past 64)",
    ),
    "columns past 64 doubled": (
        product("mxfp8-e4m3", ended(lambda y: np.where(np.arange(y.shape[1]) < 64, y, 2 * y))),
        r"(columns? from 64|column >= 64|columns past 64)",
    ),
    "columns past the last 64": (
        product("nvfp4", ended(lambda y: np.where(np.arange(y.shape[1]) < max(y.shape[1] // 64 * 64, 1), y, F(0)))),
        r"last multiple of 64",
    ),
    "rows from 128 on lost": (
        product("nvfp4", ended(lambda y: rows_of(y, index(y) >= 128, 0))),
        r"(rows? from 128|row >= 128|rows past 128)",
    ),
    "row 127 is row 126": (
        product("nvfp4", ended(lambda y: rows_of(y, index(y) % 128 == 127, shifted(y, -1)))),
        r"row (% 128 == )?127.*(row - 1|row before)|(row - 1|row before).*row (% 128 == )?127",
    ),
    "rows 32 i + 31 repeat": (
        product("mxfp4", ended(lambda y: rows_of(y, index(y) % 32 == 31, shifted(y, -1)))),
        r"row % 32 == 31.*(row - 1|row before)|(row - 1|row before).*row % 32 == 31",
    ),
    "last row repeats": (
        product("mxfp8-e5m2", ended(lambda y: rows_of(y, (index(y) == len(y) - 1) & (len(y) > 1), shifted(y, -1)))),
        r"last row",
    ),
    "halves of fragments": (
        product("nvfp4", ended(fragments)),
        r"row ?\^ ?8|rows? .* 8.*exchanged|exchanged.*8|moved|order",
    ),
    "columns in pairs": (
        product("mxfp4", ended(lambda y: y[:, np.minimum(np.arange(y.shape[1]) ^ 1, y.shape[1] - 1)])),
        r"columns? .*(exchanged|swapped)|column ?\^ ?1",
    ),
    "rounded twice": (
        product("nvfp4", lambda y, s, **_: (y * s).astype(np.float16).astype(F), to="bfloat16"),
        r"float16",
    ),
    "odd columns truncated": (
        product(
            "mxfp4",
            ended(
                lambda y: np.where(
                    np.arange(y.shape[1]) % 2 == 1, (y.view(np.uint32) & 0xFFFF0000).view(F), y.astype(BF16).astype(F)
                )
            ),
            to="bfloat16",
        ),
        r"truncated.*column % 2 == 1|column % 2 == 1.*truncated",
    ),
    "negative results clamped": (
        product("nvfp4", ended(lambda y: np.where(y < 0, F(0), y))),
        r"negative",
    ),
    # depth
    "K of whole 64": (
        product("nvfp4", fix=depth_of(lambda k, depth: (k < depth // 64 * 64) | (depth < 64))),
        r"last multiple of 64",
    ),
    "K of whole 128": (
        product("mxfp8-e4m3", fix=depth_of(lambda k, depth: (k < depth // 128 * 128) | (depth < 128))),
        r"last multiple of 128",
    ),
    "partial block of K lost": (
        product("nvfp4", fix=depth_of(lambda k, depth: k < depth // 16 * 16)),
        r"last.*(partial|not full)|last multiple of 16",
    ),
    "depth past 2048": (product("mxfp4", fix=depth_of(lambda k, depth: k < 2048)), r"depth past 2048"),
    "first split lost": (
        product("nvfp4", fix=depth_of(lambda k, depth: (k >= 1024) | (depth <= 1024))),
        r"(first|before|up to|overwrit).*1024|1024.*(first|overwrit)",
    ),
    # operands
    "A swapped in odd rows": (
        product("nvfp4", fix=swapped_in(lambda i: i % 2 == 1), fix_b=as_it_is),
        r"nibble.*A.*row % 2 == 1|row % 2 == 1.*nibble.*A",
    ),
    "signs of B lost in rows 64 on": (
        product("mxfp4", fix=as_it_is, fix_b=signless_in(lambda i: i >= 64)),
        r"signs of B.*(column >= 64|columns? from 64|columns? past 64)|(column >= 64|from 64|past 64).*signs of B",
    ),
    "scales of A before, at borders": (
        product("nvfp4", fix=scales_of(lambda s: rows_of(s, index(s) % 128 == 0, shifted(s, -1))), fix_b=as_it_is),
        r"scales of A.*row % 128 == 0|row % 128 == 0.*scales of A|row == 128|rows? 128",
    ),
    "scales of B of the row before": (
        product("nvfp4", fix=as_it_is, fix_b=scales_of(lambda s: shifted(s, -1))),
        r"scales of B.*(row before|row - 1|previous|neighbour)",
    ),
    "NaN scales of the first": (
        product("nvfp4", fix=nan_scale_of_row),
        r"NaN or infinities are not handled",
    ),
    "scale of the last partial block": (
        product("mxfp4", fix=last_scale_before),
        r"last.*(block|scale)",
    ),
    "scale of the last block": (
        product("nvfp4", fix=as_it_is, fix_b=last_scale_of_the_block_before),
        r"scale of B of the block before, in the last block",
    ),
    "signs lost in odd blocks": (
        product("mxfp8-e4m3", fix=signless_in_odd_blocks, fix_b=as_it_is),
        r"signs of A are lost, where block % 2 == 1",
    ),
    "elements of A before": (
        product("nvfp4", fix=lambda q, s: (rows_of(q, index(q) % 16 == 15, shifted(q, -1)), s), fix_b=as_it_is),
        r"elements of A.*row before.*row % 16 == 15",
    ),
    "byte 0 of E8M0": (
        product("mxfp8-e4m3", fix=scales_of(lambda s: np.where(s == F(2.0**-127), F(0), s))),
        r"byte 0",
    ),
    # what is added
    "bias of the next column": (
        product("nvfp4", bias_at(lambda n: np.minimum(n + 1, len(n) - 1)), **BIAS),
        r"bias.*(next|column \+ 1|another column)",
    ),
    "bias twice from a depth of 256 on": (
        product("nvfp4", **deep_bias_twice(256)),
        r"bias is added twice, in products of a depth of 272 and more only",
    ),
    "bias in 16 columns": (
        product("mxfp4", bias_where(lambda n: n < 16), **BIAS),
        r"bias is not added, in columns from 16 on",
    ),
    "bias of whole eights": (
        product("mxfp8-e4m3", bias_where(lambda n: n % 8 != 7), **BIAS),
        r"bias is not added.*column % 8 == 7",
    ),
    "C missing in odd rows": (
        product("nvfp4", lambda y, s, c, **_: y * s + np.where(index(y)[:, None] % 2 == 1, F(0), c), **C),
        r"C is not added.*row % 2 == 1",
    ),
    "C rounded twice": (
        product("nvfp4", lambda y, s, c, **_: y * s + c + c, **C),
        r"C is added twice",
    ),
    # amaxes
    "amax of A of the row before": (
        product(
            "nvfp4-row-scaled",
            pick=lambda of: {**of, "a_amax": shifted(of["a_amax"], -1)},
        ),
        r"amax.*A.*(row before|row - 1|previous)",
    ),
    "amaxes of B in 8": (
        product(
            "nvfp4-row-scaled",
            pick=lambda of: {**of, "b_amax": of["b_amax"][np.arange(len(of["b_amax"])) // 8 * 8]},
        ),
        r"amax.*B.*8",
    ),
}
