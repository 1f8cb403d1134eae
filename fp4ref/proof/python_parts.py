"""Claims about parts of the golden model and of torch: S_enc, Philox, the approximate reciprocal, operands."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fp4ref import reciprocal as in_numpy
from fp4ref.arithmetic import Constants, encoding_te
from fp4ref.catalogue import resolve
from fp4ref.formats import CUDA_E4M3, E2M1, F, Floats
from fp4ref.layout import layout
from fp4ref.model import gemm
from fp4ref.operands import Operand
from fp4ref.proof import native, whole
from fp4ref.proof.blocks import PIPELINES
from fp4ref.proof.claims import ClaimSubject, Method, ProofClaim, Replayed, Tell
from fp4ref.proof.golden_scales import _encoding, _first, _float32, _maxima
from fp4ref.proof.header_scales import HELPERS
from fp4ref.proof.scales import DOUBLE, QUOTIENT, TOPS
from fp4ref.proof.steps import INFINITY, SIGN, shown
from fp4ref.proof.transforms import _defined
from fp4ref.quantized import DirectionData
from fp4ref.specs import NVFP4, NVFP4_4OVER6

LARGEST = 0x7F7FFFFF  # the pattern of FLT_MAX
NANS = SIGN - 1 - INFINITY  # without a sign
ROUNDS = (1, 7, 10)


def _torch_encoding(maxima: Floats, top: int) -> Floats:
    import torch

    from fp4ref_torch import known, tensor_scaled

    spec = NVFP4 if top == TOPS[0] else NVFP4_4OVER6.replace(name="claim", four_over_six=_searching(top))
    values = torch.from_numpy(np.ascontiguousarray(maxima))
    return np.asarray(tensor_scaled.encoding_te(values, known.Known(spec, torch.float32, values)))


def _searching(top: int) -> Any:
    from fp4ref.spec import FourOverSix

    return FourOverSix(scale_max=top)


def torch_encoding(top: int, tell: Tell) -> Replayed:
    """Compare S_enc of torch with the quotient in double precision, for the maxima that decide it."""
    count = 0
    for patterns in _maxima(False):
        maxima = _float32(patterns)
        at = _first(_torch_encoding(maxima, top).reshape(-1), _encoding(maxima, top))
        count += len(patterns)
        if at is not None:
            return Replayed(count, f"the maximum {shown(int(patterns[at]))}")
        tell(count / (INFINITY + 1))
    return Replayed(count)


@np.errstate(all="ignore")
def encoding_of_nan(subject: ClaimSubject, tell: Tell) -> Replayed:
    """Compare S_enc of every NaN with the largest float."""
    done = 0
    for top in TOPS:
        maxima = (np.arange(NANS, dtype=np.uint32) + np.uint32(INFINITY + 1)).view(F)
        if subject is ClaimSubject.TORCH:
            got = _torch_encoding(maxima, top).reshape(-1)
        else:
            got = encoding_te(maxima, Constants(E2M1, CUDA_E4M3, F(6), F(top), lambda values: values))
        (wrong,) = np.nonzero(got.view(np.uint32) != LARGEST)
        if len(wrong):
            return Replayed(
                done, f"scale_max {top}: the maximum {shown(INFINITY + 1 + int(wrong[0]))} gives {got[wrong[0]]}"
            )
        done += NANS
    return Replayed(done)


def encoding_of_nan_in_header(tell: Tell) -> Replayed:
    """Compare the header's S_enc of every NaN with the largest float."""
    body = "return bits_of(arithmetic::te::global_scale<Plain<TOP>, float32>(float_of((unsigned)i))) != 0x7f7fffffu;"
    for done, top in enumerate(TOPS):
        source = native.text({"nan": body.replace("TOP", str(top))}, HELPERS)
        _, first = native.sweep(source, "nan", NANS, tell, (), INFINITY + 1)
        if first is not None:
            return Replayed(done * NANS, f"scale_max {top}: the maximum {shown(first)} does not give the largest float")
    return Replayed(len(TOPS) * NANS)


def torch_rounds(tell: Tell) -> Replayed:
    """Compare Philox in torch with its definition in whole numbers, on counters and keys of one bit, and with all."""
    import torch

    from fp4ref_torch.random_bytes import philox4x32

    counters = [0, (1 << 128) - 1, *(1 << bit for bit in range(128))]
    keys = [0, (1 << 64) - 1, *(1 << bit for bit in range(64))]
    words: list[torch.Tensor | int] = [
        torch.tensor([counter >> 32 * i & 0xFFFFFFFF for counter in counters]) for i in range(4)
    ]
    for number, (count, key) in enumerate((count, key) for count in ROUNDS for key in keys):
        got = torch.stack(philox4x32(words, key & 0xFFFFFFFF, key >> 32, count), dim=-1).tolist()
        for counter, found in zip(counters, got, strict=True):
            if found != _defined(counter, key, count):
                said = f"counter {counter:032x}, key {key:016x}, {count} rounds"
                return Replayed(number * len(counters), said)
        tell((number + 1) / (len(ROUNDS) * len(keys)))
    return Replayed(len(ROUNDS) * len(keys) * len(counters))


# The approximate reciprocal


def reciprocal_inputs() -> NDArray[np.uint32]:
    """Return all significands of a binade, and some of every exponent, of both signs."""
    some = [0, 1, 2, 0x3FFFFF, 0x400000, 0x5A3C71, 0x7FFFFE, 0x7FFFFF, *(1 << bit for bit in range(2, 22))]
    others = (np.arange(256, dtype=np.uint32)[:, None] << 23) | np.array(some, np.uint32)
    found = np.concatenate([0x3F800000 + np.arange(1 << 23, dtype=np.uint32), others.ravel()])
    return np.concatenate([found, found | np.uint32(SIGN)])


@np.errstate(all="ignore")
def approximated(subject: ClaimSubject, tell: Tell) -> Replayed:
    """Compare the approximate reciprocal with the table of a binade, moved by whole exponents. Rules: APX-1."""
    patterns = reciprocal_inputs()
    magnitude, sign = (patterns & 0x7FFFFFFF).astype(np.int64), patterns & np.uint32(SIGN)
    mantissa, field = magnitude & 0x7FFFFF, magnitude >> 23
    with np.load(in_numpy.TABLE) as archive:
        distances = archive["d"].astype(np.int64)
    significand = (1 << 23) + mantissa
    nearest = ((1 << 48) + significand) // (2 * significand)  # 2^47 / significand: no quotient is a tie but that of 1
    nearest = np.where(mantissa == 0, 1 << 24, nearest) + distances[mantissa]
    power = np.where(nearest >= 1 << 24, 254, 253) - field
    pattern = (power << 23) + np.where(nearest >= 1 << 24, 0, nearest - (1 << 23))
    want = np.where(power < 1, 0, pattern)
    want = np.where(field == 0, INFINITY, np.where(magnitude == INFINITY, 0, want)).astype(np.uint32) | sign
    given = patterns.view(F)
    if subject is ClaimSubject.TORCH:
        import torch

        from fp4ref_torch.reciprocal import reciprocal

        got = np.asarray(reciprocal(torch.from_numpy(given)))
    else:
        got = in_numpy.reciprocal_approx(given)
    bits = np.ascontiguousarray(got).view(np.uint32)
    (wrong,) = np.nonzero(np.where(magnitude > INFINITY, ~np.isnan(got), bits != want))
    if not len(wrong):
        return Replayed(len(patterns))
    at = int(wrong[0])
    return Replayed(
        at, f"the reciprocal of {shown(int(patterns[at]))} is {shown(int(bits[at]))}, needs {shown(int(want[at]))}"
    )


# Operands of fast products


def _operands() -> int:
    return sum(256 * max(1 << pipe().element.format.bits, pipe().block) for pipe in PIPELINES.values())


@np.errstate(all="ignore")
def valued(subject: ClaimSubject, tell: Tell) -> Replayed:
    """Compare the numbers that a fast product multiplies: every code under every scale byte, rounded once."""
    done = 0
    for name, pipeline in PIPELINES.items():
        pipe = pipeline()
        bits = pipe.element.format.bits
        each = np.arange(max(1 << bits, pipe.block)) % (1 << bits)
        codes = np.tile(each.astype(np.uint8), (256, 1))
        scales = np.repeat(np.arange(256, dtype=np.uint8)[:, None], codes.shape[1] // pipe.block, axis=1)
        data = (codes[:, ::2] | codes[:, 1::2] << 4).astype(np.uint8) if bits == 4 else codes
        amax = None if pipe.largest is None else np.array([3.0], F)
        parts = DirectionData(data, scales, amax).mapped(lambda part: whole._array(part, subject))
        operand = Operand(parts, codes.shape, resolve(name), layout("linear"))
        if subject is ClaimSubject.TORCH:
            import torch

            from fp4ref_torch import gemm as in_torch

            got = np.asarray(in_torch.values(operand, torch.float32))
        else:
            got = gemm.values(operand)
        spread = np.repeat(whole._decoded(pipe.scale, scales), pipe.block, axis=1)
        want = (whole._decoded(pipe.element, codes) * spread).astype(F)
        nan = np.isnan(want)
        (row, column) = np.nonzero(np.where(nan, ~np.isnan(got), got.view(np.uint32) != want.view(np.uint32)))
        if len(row):
            where = f"{name}: code {codes[row[0], column[0]]:02X} under the scale byte {row[0]:02X}"
            return Replayed(done, f"{where} is {got[row[0], column[0]]!s}, needs {want[row[0], column[0]]!s}")
        done += codes.size
    return Replayed(done)


def claims() -> Iterator[ProofClaim]:
    """Yield the claims of this module."""
    torch_encoder = "fp4ref_torch.tensor_scaled:encoding_te"
    for top in TOPS:
        yield ProofClaim(
            name=f"encoding-{top}/torch",
            rules=("GLB-2", "GLB-3", *(("FOS-2",) if top != TOPS[0] else ())),
            method=Method.ARGUMENT,
            subject=ClaimSubject.TORCH,
            statement=f"S_enc for scale_max {top} is {DOUBLE}, held within the floats; 1 for 0 and infinity.",
            domain="all float32 maxima from 0 to infinity",
            size=INFINITY + 1,
            decide=partial(torch_encoding, top),
            covers=(torch_encoder,),
            reduction=QUOTIENT,
        )
    golden, torch, header = ClaimSubject.GOLDEN, ClaimSubject.TORCH, ClaimSubject.HEADER
    for subject, decide, cover in (
        (golden, partial(encoding_of_nan, golden), "fp4ref.arithmetic:encoding_te"),
        (torch, partial(encoding_of_nan, torch), torch_encoder),
        (header, encoding_of_nan_in_header, "arithmetic.h:arithmetic::te::global_scale"),
    ):
        yield ProofClaim(
            name=f"encoding-nan/{subject}",
            rules=("GLB-3",),
            method=Method.EXHAUSTIVE,
            subject=subject,
            statement="S_enc of a NaN is the largest float.",
            domain="all NaN without a sign, for scale_max 448 and 256",
            size=len(TOPS) * NANS,
            decide=decide,
            covers=(cover,),
        )
    for subject, cover, valued_by in (
        (golden, "fp4ref.reciprocal:reciprocal_approx", "fp4ref.model.gemm:values"),
        (torch, "fp4ref_torch.reciprocal:reciprocal", "fp4ref_torch.gemm:values"),
    ):
        yield ProofClaim(
            name=f"reciprocal/{subject}",
            rules=("APX-1",),
            method=Method.ARGUMENT,
            subject=subject,
            statement="The reciprocal is that of the table, and exponents, zeros and infinities follow the rule.",
            domain="all float32 significands of both signs, and 30 under every exponent",
            size=len(reciprocal_inputs()),
            decide=partial(approximated, subject),
            covers=(cover,),
            reduction="a table by the significand does not know the exponent, which moves the result by whole binades",
        )
        yield ProofClaim(
            name=f"operand-values/{subject}",
            rules=("GEM-11", "GEM-1"),
            method=Method.EXHAUSTIVE,
            subject=subject,
            statement="A fast product multiplies the value of each code times that of its scale byte, rounded once.",
            domain=f"all codes under all scale bytes of {', '.join(PIPELINES)}",
            size=_operands(),
            decide=partial(valued, subject),
            covers=(valued_by,),
        )
