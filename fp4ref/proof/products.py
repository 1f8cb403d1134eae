"""Claims about matrix products: products of any two values, the longest sums of 64 bits, and exact operands."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from functools import partial

import numpy as np
from numpy.typing import NDArray

from fp4ref import multiply
from fp4ref.catalogue import resolve
from fp4ref.formats import CUDA_E2M1, CUDA_E4M3, CUDA_E5M2, CUDA_E8M0, Codec, F, Floats
from fp4ref.proof import sources, whole
from fp4ref.proof.blocks import PIPELINES
from fp4ref.proof.claims import ClaimSubject, Method, ProofClaim, Replayed, Tell, formula
from fp4ref.proof.golden_scales import _once
from fp4ref.proof.steps import magnitudes
from fp4ref.quantized import DirectionData, Quantized

LANE = 5  # of the only element of a row that is not zero
UNIT = 2688.0  # a global maximum whose global scale is 1
STEP = Fraction(1, 1 << 10)  # NVFP4 values are multiples of it
LONGEST = 1217394
ROWS = 64  # of the left operand in one call: of each product a backend may keep some kilobytes
EDGES = (0, 1, 2, 3, 10, 126, 127, 128, 246, 252, 253, 254, 255)  # bytes of E8M0
FEW = (0, 1, 127, 128, 254, 255)
SCALES = {"nvfp4": tuple(range(256)), "mxfp4": EDGES, "mxfp8-e4m3": FEW, "mxfp8-e5m2": FEW}
EXACT = (  # elements, scales, and the first and the last byte under which all finite codes are bfloat16
    (CUDA_E2M1, CUDA_E4M3, 0x00, 0x7E),
    (CUDA_E2M1, CUDA_E8M0, 0x00, 0xFC),
    (CUDA_E4M3, CUDA_E8M0, 0x03, 0xF6),
    (CUDA_E5M2, CUDA_E8M0, 0x0A, 0xEF),
)
BACKENDS = {name: whole.BACKENDS[name] for name in (ClaimSubject.GOLDEN, ClaimSubject.CPU, ClaimSubject.TORCH)}
CODE = {
    ClaimSubject.GOLDEN: (
        *("fp4ref.model.gemm:exact", "fp4ref.model.gemm:blockwise", whole.LAYOUTS[0]),
        *("fp4ref.model.backend:gemm_exact", "fp4ref.model.backend:gemm_blockwise"),
    ),
    ClaimSubject.CPU: (f"{whole.CPU}/gemm.h", *whole.FLAGS),
    ClaimSubject.TORCH: (
        *("fp4ref_torch.gemm:exact_sums", "fp4ref_torch.gemm:blockwise", whole.LAYOUTS[0]),
        *("fp4ref_torch.operations:gemm_exact", "fp4ref_torch.operations:gemm_blockwise"),
    ),
}


def operand(spec: str) -> tuple[Quantized, NDArray[np.float64]]:
    """Return rows of one element each, every code under the scale bytes of SCALES; and the values of these elements."""
    pipe = PIPELINES[spec]()
    each = np.arange(1 << pipe.element.format.bits, dtype=np.uint8)
    scales = np.array(SCALES[spec], np.uint8)
    code, byte = (part.ravel() for part in np.meshgrid(each, scales, indexing="ij"))
    codes = np.zeros((len(code), pipe.block), np.uint8)
    codes[:, LANE] = code
    data = (codes[:, ::2] | codes[:, 1::2] << 4).astype(np.uint8) if len(each) == 16 else codes
    amax = None if pipe.largest is None else np.array([UNIT], F)
    q = Quantized(resolve(spec), codes.shape, "float32", "linear", DirectionData(data, byte[:, None], amax))
    with np.errstate(all="ignore"):
        return q, whole._decoded(pipe.element, code) * whole._decoded(pipe.scale, byte)


@np.errstate(all="ignore")
def _scaled(sums: Floats, spec: str) -> Floats:
    """Return sums times alpha. Rules: GEM-5."""
    if PIPELINES[spec]().largest is None:
        return sums
    alpha = _once(UNIT * UNIT * np.float64(_once(1.0 / UNIT**2)))
    return _once(sums.astype(np.float64) * np.float64(alpha))


@np.errstate(all="ignore")
def pairs(spec: str, subject: ClaimSubject, tell: Tell) -> Replayed:
    """Multiply every pair of elements as sums of one product, in modes exact and blockwise, and compare.

    The products are exact in double precision, which has their 8 bits and their exponents.
    """
    q, values = operand(spec)
    count = 0
    for start in range(0, len(values), ROWS):
        some = values[start : start + ROWS]
        product = np.multiply.outer(some, values)
        once = np.where(product == 0, F(0), _once(product))
        of_modes: tuple[tuple[multiply.Mode, Floats], ...] = (("exact", once), ("blockwise", F(0) + once))
        for mode, sums in of_modes:
            want = _scaled(np.where(np.isnan(sums), F(np.nan), sums), spec)
            got = product_of(subject, _rows(q, start, start + ROWS), q, mode)
            wrong = np.flatnonzero(got.view(np.uint32) != want.view(np.uint32))
            count += got.size
            if len(wrong):
                a, b = divmod(int(wrong[0]), len(values))
                said = f"{mode}: {some[a]!s} times {values[b]!s} is {got[a, b]!s}, needs {want[a, b]!s}"
                return Replayed(count, said)
        tell((start + len(some)) / len(values))
    return Replayed(count)


def taken(subject: ClaimSubject, q: Quantized) -> Quantized:
    """Return rows as the subject's backend takes them."""
    parts = q.direction("row")[0].mapped(lambda part: whole._array(part, subject))
    return Quantized(q.spec, q.shape, q.dtype, "linear", parts)


def product_of(subject: ClaimSubject, a: Quantized, b: Quantized, mode: multiply.Mode = "exact") -> Floats:
    """Return a product by the subject's backend."""
    made = multiply.gemm(taken(subject, a), taken(subject, b), mode, backend=whole.BACKENDS[subject])
    return whole._host_values(made)


def _rows(q: Quantized, start: int, stop: int) -> Quantized:
    """Return rows of a tensor of which each has one scale."""
    data, scales, amax = q.direction("row")[0]
    part = DirectionData(data[start:stop], scales[start:stop], amax)
    return replace(q, shape=(len(part.data), q.shape[1]), row=part)


def longest(subject: ClaimSubject, tell: Tell) -> Replayed:
    """Add the longest rows of largest products that 64 bits hold, and rows that are one longer, of both signs."""
    count = 0
    for length in (LONGEST, LONGEST + 1):
        for sign in (0, 8):
            row, other = (np.full((1, -(-length // 2)), code | code << 4, np.uint8) for code in (7, 7 | sign))
            if length % 2:
                row[0, -1], other[0, -1] = 7, 7 | sign
            scales = np.full((1, -(-length // 16)), 0x7E, np.uint8)
            q, negative = (
                Quantized(
                    resolve("nvfp4"), (1, length), "float32", "linear", DirectionData(data, scales, np.array([UNIT], F))
                )
                for data in (row, other)
            )
            exact = length * 2688**2  # below 2^53
            want = _scaled(_once(np.array([-exact if sign else exact], np.float64)), "nvfp4")
            got = product_of(subject, q, negative).ravel()
            count += 1
            tell(count / 4)
            if got.tobytes() != want.tobytes():
                return Replayed(count, f"K = {length}: {got[0]!s}, needs {want[0]!s}")
    return Replayed(count)


def _finite(codec: Codec) -> list[Fraction]:
    return magnitudes(codec.format)[: codec.format.codes]


def limit(tell: Tell) -> Replayed:
    """Find the largest NVFP4 value as an integer of steps, and the longest sum of products that 64 bits hold."""
    from fp4ref.theorems import bounds
    from fp4ref_torch import gemm

    values = [q * s / STEP for q in _finite(CUDA_E2M1) for s in _finite(CUDA_E4M3)]
    fractions = [value for value in values if value.denominator != 1]
    if fractions:
        return Replayed(len(values), f"{fractions[0] * STEP} is no multiple of 2^-10")
    most = max(values) ** 2
    found = int(((1 << 63) - 1) // most)
    for name, stated in (("K", LONGEST), ("LONGEST_SUM", bounds.LONGEST_SUM), ("SMALL_K", gemm.SMALL_K)):
        if stated != found:
            return Replayed(len(values), f"{name} is {stated}, needs {found}")
    return Replayed(len(values))


def contributions(tell: Tell) -> Replayed:
    """Count the bits of a block's sum times two scales: every sum of 16 products under every pair of significands."""
    scales = {int(s / Fraction(2) ** _exponent(s) * 8) for s in _finite(CUDA_E4M3) if s}
    largest = 16 * int(max(_finite(CUDA_E2M1)) * 2) ** 2  # in quarters
    count = 0
    for dot in range(largest + 1):
        for left in scales:
            for right in scales:
                count += 1
                number = dot * left * right
                if number and number >> ((number & -number).bit_length() - 1) >= 1 << 24:
                    return Replayed(count, f"{dot} quarters under significands {left} and {right} of 8")
    return Replayed(count)


def _exponent(value: Fraction) -> int:
    """Return the power of two that begins the binade of a value."""
    power = value.numerator.bit_length() - value.denominator.bit_length()
    return power if Fraction(2) ** power <= value else power - 1


def exact_operands(tell: Tell) -> Replayed:
    """Compare the scales under which all codes are bfloat16 with the table of GEM-11."""
    count = 0
    for element, scale, first, last in EXACT:
        found = []
        for byte, s in enumerate(_finite(scale)):
            count += element.format.codes
            if all(_is_bfloat16(q * s) for q in _finite(element)):
                found.append(byte)
        if found != [*range(first, last + 1)]:
            name = f"{element.format.name} under {scale.format.name}"
            return Replayed(count, f"{name}: exact from {found[0]:02X} to {found[-1]:02X}, {len(found)} bytes")
    return Replayed(count)


def _is_bfloat16(value: Fraction) -> bool:
    if not value:
        return True
    step = Fraction(2) ** (max(_exponent(value), -126) - 7)
    return (value / step).denominator == 1 and value < Fraction(2) ** 128


def claims() -> Iterator[ProofClaim]:
    """Yield the claims about products."""
    for spec, scales in SCALES.items():
        rows = len(scales) << PIPELINES[spec]().element.format.bits
        under = "all scale bytes" if len(scales) == 256 else f"{len(scales)} scale bytes, both ends among them"
        for subject in BACKENDS:
            yield ProofClaim(
                name=f"gemm-pairs-{spec}/{subject}",
                rules=("GEM-1", "GEM-2", "GEM-3", "GEM-4", *(("GEM-5",) if spec == "nvfp4" else ())),
                method=Method.EXHAUSTIVE,
                subject=subject,
                statement=f"The product of two values of {spec} is rounded once, with the zeros, infinities and NaN of "
                "the rules, in modes exact and blockwise.",
                domain=f"all pairs of codes under all pairs of {under}",
                size=2 * rows**2,
                long=subject is ClaimSubject.TORCH and PIPELINES[spec]().element.format.bits == 8,
                decide=partial(pairs, spec, subject),
                covers=(*CODE[subject], *_lowered(spec, subject)),
            )
    for subject in BACKENDS:
        yield ProofClaim(
            name=f"gemm-longest/{subject}",
            rules=("GEM-2",),
            method=Method.ARGUMENT,
            subject=subject,
            statement="Sums of products that 64 bits just hold, and the next ones, are rounded once.",
            domain=f"sums of up to {LONGEST} products and of one more",
            size=4,
            decide=partial(longest, subject),
            covers=(*CODE[subject], *_lowered("nvfp4", subject)),
            reduction="no sum of as many terms is larger than that of the largest products, of either sign",
            rests_on=("gemm-limit/formula",),
        )
    yield formula(
        "gemm-limit",
        ("GEM-2", "THM-11"),
        limit,
        f"64 bits hold every sum of up to {LONGEST} products of NVFP4 values.",
        domain="all magnitudes of codes under all scale bytes",
        size=8 * 127,
        covers=("fp4ref.theorems.bounds:LONGEST_SUM", "fp4ref_torch.gemm:SMALL_K", "fp4ref.formats.codec:CUDA_E4M3"),
        needs="torch",
    )
    yield formula(
        "gemm-contributions",
        ("GEM-4", "THM-11"),
        contributions,
        "A block's sum times its two scales fits a float32.",
        domain="all sums of 16 products of E2M1 under all pairs of significands of scales",
        size=2305 * 64,
        covers=("fp4ref.formats.codec:CUDA_E2M1", "fp4ref.formats.codec:CUDA_E4M3"),
    )
    yield formula(
        "gemm-operands",
        "GEM-11",
        exact_operands,
        "Under the scales of the table, and no others, codes are bfloat16.",
        domain="all finite codes of E2M1, E4M3 and E5M2 under all scales",
        size=8 * 127 + 8 * 255 + 127 * 255 + 124 * 255,
        covers=("fp4ref.formats.codec:CUDA_E2M1", "fp4ref.formats.codec:CUDA_E4M3", "fp4ref.formats.codec:CUDA_E5M2"),
    )


def _lowered(spec: str, subject: ClaimSubject) -> tuple[str, ...]:
    return (f"{sources.LOWERED}{spec}",) if subject is ClaimSubject.CPU else ()
