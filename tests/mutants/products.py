"""Products that are wrong on purpose in what they add, in the direction they read, and with NaN and infinities.

Written without the library of mistakes at hand: decode, add in float32, scale, add, cast.
"""

import ml_dtypes
import numpy as np

import fp4ref

MUTANTS, CORRECT = [], []  # of quantizers: none here
F, BF16 = np.float32, ml_dtypes.bfloat16
KINDS = {"float32": F, "bfloat16": BF16, "float16": np.float16}
E2M1 = F([0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6])
ROWS = ("nvfp4-row-scaled",)  # amaxes of rows
FORMATS = {  # decoder of elements, decoder of scales, width of a block, amaxes
    "nvfp4": (None, ml_dtypes.float8_e4m3fn, 16, True),
    "nvfp4-row-scaled": (None, ml_dtypes.float8_e4m3fn, 16, True),
    "mxfp4": (None, ml_dtypes.float8_e8m0fnu, 32, False),
    "mxfp8-e4m3": (ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e8m0fnu, 32, False),
    "mxfp8-e5m2": (ml_dtypes.float8_e5m2, ml_dtypes.float8_e8m0fnu, 32, False),
}
PARTS = "a_data a_scales b_data b_scales".split()


def elements(data, depth, kind):
    if kind is not None:
        return data.view(kind).astype(F)
    return E2M1[np.stack([data & 15, data >> 4], axis=-1).reshape(len(data), -1)[:, :depth]]


def operand(spec, data, scales, rows, depth, fix=lambda q, s: (q, s)):
    kind, of_scales, width, _ = FORMATS[spec]
    q, s = fix(elements(data, depth, kind), np.ascontiguousarray(scales).view(of_scales).astype(F))
    return (q, s[:, np.arange(depth) // width])


def summed(a, b):
    """float32 sums, one product after the other; scales are powers of two, or products are exact anyway."""
    (qa, sa), (qb, sb) = a, b
    total = np.zeros((len(qa), len(qb)), F)
    for left, right in zip((qa * sa).T.copy(), (qb * sb).T.copy(), strict=True):
        total += np.multiply.outer(left, right)
    return total


def plain(y, alpha, **of):
    return y * alpha


def product(spec, end=plain, to="float32", fix=lambda q, s: (q, s), fix_b=None, pick=lambda of: of, **settings):
    """A kernel; end(sums, alpha, bias, c, to) makes the result. pick: which of the inputs are read as a and b."""
    more = settings.pop("more", ())
    amaxes = ("a_amax", "b_amax") if FORMATS[spec][3] else ()
    names = (*settings.pop("parts", PARTS), *amaxes, *more, "rows", "columns", "depth")

    @fp4ref.kernel(operation="gemm", inputs=names, outputs=("values",), to=to, **settings)
    def gemm(*given, out=None):
        of = pick(dict(zip(names, given, strict=True)))
        m, n, k = of["rows"], of["columns"], of["depth"]
        c = of.get("accumulate", out[0] if out else None)
        with np.errstate(all="ignore"):
            a = operand(spec, of["a_data"], of["a_scales"], m, k, fix)
            b = operand(spec, of["b_data"], of["b_scales"], n, k, fix_b or fix)
            sums = summed(a, b)
            if spec in ROWS:
                sums = sums * (F(1) / F(7225344)) * of["a_amax"][:, None]
                alpha = of["b_amax"][None]
            else:
                alpha = of["a_amax"][0] * of["b_amax"][0] * (F(1) / F(7225344)) if amaxes else F(1)
            c = None if c is None else c.astype(F)
            y = np.asarray(end(sums, alpha, bias=of.get("bias"), c=c, to=KINDS[to])).astype(KINDS[to])
        if out is None:
            return y
        out[0][...] = y
        return out[0]

    return gemm


def bf16(x):
    return x.astype(BF16).astype(F)


# What is added

BIAS = {"more": ("bias",)}
C = {"more": ("accumulate",)}
BOTH = {"more": ("bias", "accumulate")}
BUFFER = {"out_buffers": True, "in_place": True}


def right(y, alpha, bias=None, c=None, to=F):
    y = y * alpha
    y = y if c is None else y + c
    return y if bias is None else y + bias


def bias_first(y, alpha, bias=None, c=None, to=F):
    return (y * alpha + bias) + (0 if c is None else c)


def fused(y, alpha, bias=None, c=None, to=F):
    return (y.astype(np.float64) * alpha + (0 if c is None else c) + (0 if bias is None else bias)).astype(F)


def chopped(y, alpha, bias=None, c=None, to=F):
    """Every addition truncated."""
    y = y * alpha
    for part in (c, bias):
        if part is not None:
            wide = y.astype(np.float64) + part
            near = wide.astype(F)
            y = np.where(np.abs(near.astype(np.float64)) > np.abs(wide), np.nextafter(near, F(0)), near)
    return y


ADDED = {
    "bias missing": (product("nvfp4", plain, **BIAS), "the bias is not added"),
    "bias missing, mx": (product("mxfp8-e4m3", plain, **BIAS), "the bias is not added"),
    "bias twice": (product("nvfp4", lambda y, s, bias, **_: y * s + bias + bias, **BIAS), "the bias is added twice"),
    "bias before alpha": (
        product("nvfp4", lambda y, s, bias, **_: (y + bias) * s, **BIAS),
        "the bias is added before alpha",
    ),
    "bias in bfloat16": (
        product("nvfp4", lambda y, s, bias, **_: y * s + bf16(bias), **BIAS),
        "the bias is rounded to bfloat16",
    ),
    "bias in bfloat16, result too": (
        product("mxfp4", lambda y, s, bias, **_: y + bf16(bias), to="bfloat16", **BIAS),
        "the bias is rounded to bfloat16",
    ),
    "bias missing, amaxes of rows": (product("nvfp4-row-scaled", plain, **BIAS), "the bias is not added"),
    "bias in bfloat16, amaxes of rows": (
        product("nvfp4-row-scaled", lambda y, s, bias, **_: y * s + bf16(bias), to="bfloat16", **BIAS),
        "the bias is rounded to bfloat16",
    ),
    "C ignored, amaxes of rows": (
        product("nvfp4-row-scaled", plain, to="bfloat16", **C),
        "C is not added: it is ignored, or overwritten",
    ),
    "bias by rows": (
        product("mxfp4", lambda y, s, bias, **_: y + (bias[:, None] if len(y) == len(bias) else bias), **BIAS),
        "the bias is added by rows",
    ),
    "C ignored": (product("nvfp4", plain, **C), "C is not added: it is ignored, or overwritten"),
    "C overwritten in its buffer": (product("mxfp8-e5m2", plain, **BUFFER), "C is not added: it is ignored, or overwr"),
    "C scaled": (product("nvfp4", lambda y, s, c, **_: (y + c) * s, **C), "C is scaled by alpha"),
    "C subtracted": (product("mxfp4", lambda y, s, c, **_: y - c, **C), "C is subtracted"),
    "only C": (product("mxfp4", lambda y, s, c, **_: c, **BUFFER), "the product is lost, the result is C"),
    "C transposed": (
        product("nvfp4", lambda y, s, c, **_: y * s + (c.T if c.shape[0] == c.shape[1] else c), **C),
        "C is added transposed",
    ),
    "rounded before C": (
        product("nvfp4", lambda y, s, c, to, **_: (y * s).astype(to).astype(F) + c, to="bfloat16", **C),
        "the product is rounded to the result's type before C is added",
    ),
    "rounded before C, float16": (
        product("mxfp4", lambda y, s, c, to, **_: y.astype(to).astype(F) + c, to="float16", **C),
        "the product is rounded to the result's type before C is added",
    ),
    "bias twice and C ignored": (
        product("nvfp4", lambda y, s, bias, c, **_: y * s + bias + bias, **BOTH),
        "the bias is added twice and C is not added",
    ),
    "no amax of B, bias missing": (
        product("nvfp4", lambda y, s, bias, **_: y * s, pick=lambda of: {**of, "b_amax": F([1])}, **BIAS),
        "the amax of B is left out and the bias is not added",
    ),
}
ADD_RIGHT = {
    "bias": product("nvfp4", right, **BIAS),
    "C, then bias": product("nvfp4", right, **BOTH),
    "bias, then C": product("nvfp4", bias_first, **BOTH),
    "fused": product("mxfp8-e4m3", fused, **BOTH),
    "truncated": product("nvfp4", chopped, to="float32", **BOTH),
    "in its buffer, bfloat16": product("mxfp4", right, to="bfloat16", **BUFFER),
    "amaxes of rows": product("nvfp4-row-scaled", right, to="bfloat16", **BOTH),
    "float16": product("nvfp4", right, to="float16", **BOTH),
}

# Directions

GRADIENTS = {"dgrad": ("row", "column"), "wgrad": ("column", "column")}


def both_forms(side):
    return tuple(f"{side}_{direction}_{part}" for direction in ("row", "column") for part in ("data", "scales"))


def taking(**reads):
    """a and b from the forms that a kernel is given; bytes are read one after the other, wherever they belong."""

    def pick(of):
        found = dict(of)
        for side, count in (("a", "rows"), ("b", "columns")):
            for part in ("data", "scales"):
                direction = reads[f"{side}_{part}"]
                meant = of[f"{side}_{reads[side]}_{part}"]
                assert len(meant) == of[count]
                found[f"{side}_{part}"] = np.resize(of[f"{side}_{direction}_{part}"], meant.shape)
        return found

    return pick


def gradient(spec, kind, **wrong):
    of_a, of_b = directions = GRADIENTS[kind]
    reads = {"a": of_a, "b": of_b, "a_data": of_a, "a_scales": of_a, "b_data": of_b, "b_scales": of_b}
    pick = taking(**{**reads, **wrong})
    return product(spec, pick=pick, parts=(*both_forms("a"), *both_forms("b")), directions=directions)


TURNED = {
    "dgrad reads w by rows": (
        gradient("nvfp4", "dgrad", b_data="row", b_scales="row"),
        "the bytes of B are those of its tensor's other direction",
    ),
    "dgrad reads dy by columns": (
        gradient("mxfp8-e4m3", "dgrad", a_data="column", a_scales="column"),
        "the bytes of A are those of its tensor's other direction",
    ),
    "wgrad reads both by rows": (
        gradient("nvfp4", "wgrad", a_data="row", a_scales="row", b_data="row", b_scales="row"),
        "the bytes of A and B are those of its tensor's other direction",
    ),
    "wgrad takes the scales of rows": (
        gradient("mxfp4", "wgrad", b_scales="row"),
        "the scales of B are those of its tensor's other direction",
    ),
    "wgrad takes the data of rows": (
        gradient("mxfp8-e5m2", "wgrad", a_data="row"),
        "the data of A are those of its tensor's other direction",
    ),
}


def stored(spec, turn):
    """wgrad of 8-bit operands that lie as [K, rows]; turn makes [rows, K] of them."""

    def pick(of):
        scales = {f"{side}_scales": of[f"{side}_scales"].T for side in "ab"}
        return {**of, **{f"{side}_data": turn(of[f"{side}_data"]) for side in "ab"}, **scales}

    return product(spec, pick=pick, directions=("column", "column"), transposed=True)


TURNED["wgrad without a transposition"] = (
    stored("mxfp8-e4m3", lambda data: data.reshape(data.shape[::-1])),
    "the transposed data of A and B are read as if they were not",
)
TURNED_RIGHT = {f"{kind} of {spec}": gradient(spec, kind) for kind in GRADIENTS for spec in ("nvfp4", "mxfp8-e4m3")}
TURNED_RIGHT["wgrad as it lies"] = stored("mxfp8-e5m2", lambda data: np.ascontiguousarray(data.T))


# NaN and infinities


def nan_scales(value):
    return lambda q, s: (q, np.where(np.isnan(s), F(value), s))


def infinite(value):
    return lambda q, s: (np.where(np.isinf(q), np.copysign(F(value), q), q), s)


def nan_elements(value):
    return lambda q, s: (np.where(np.isnan(q), np.copysign(F(value), q), q), s)


def skipping_zeros(q, s):
    width = q.shape[1] // s.shape[1]
    zero = (q[:, : s.shape[1] * width].reshape(len(q), -1, width) == 0).all(axis=2)
    return q, np.where(zero, F(0), s)


def as_it_is(q, s):
    return q, s


SPECIAL = {
    "NaN scales dropped": (product("nvfp4", fix=nan_scales(0)), "NaN scales of A and B count as 0"),
    "NaN scales as 480": (product("nvfp4", fix=nan_scales(480)), "NaN scales of A and B are read as the number after"),
    "NaN scales of B as 1": (
        product("mxfp4", fix=as_it_is, fix_b=nan_scales(1)),
        "NaN scales of B count as 1",
    ),
    "NaN scales as infinity": (product("mxfp8-e4m3", fix=nan_scales(np.inf)), "NaN scales of A and B are read as the"),
    "zero blocks skipped": (product("mxfp8-e4m3", fix=skipping_zeros), "blocks of zeros of A and B are skipped"),
    "NaN elements dropped": (product("mxfp8-e5m2", fix=nan_elements(0)), "NaN elements of A and B count as 0"),
    "NaN elements saturate": (product("mxfp8-e4m3", fix=nan_elements(448)), "NaN elements of A and B saturate"),
    "infinities saturate": (product("mxfp8-e5m2", fix=infinite(57344)), "infinities of A and B saturate"),
    "infinities of A become NaN": (
        product("mxfp8-e5m2", fix=infinite(np.nan), fix_b=as_it_is),
        "infinities of A become NaN",
    ),
    "NaN results dropped": (
        product("mxfp8-e4m3", lambda y, s, **_: np.nan_to_num(y, nan=0)),
        "NaN results become 0",
    ),
    "infinite results saturate": (
        product("mxfp8-e5m2", lambda y, s, **_: np.clip(y, -65504, 65504), to="float16"),
        "infinite results saturate",
    ),
}
