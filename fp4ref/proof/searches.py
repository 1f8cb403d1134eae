"""Claims about the search of 4over6: errors of elements, the order of additions, and which candidate is kept."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fp4ref import api
from fp4ref import four_over_six as golden
from fp4ref.arithmetic import Constants
from fp4ref.formats import CUDA_E2M1, CUDA_E4M3, E2M1, F, Floats
from fp4ref.proof import blocks, whole
from fp4ref.proof.addition_trees import ORDERS, SHAPES, added, added_in_header, probed, served
from fp4ref.proof.claims import ClaimSubject, Method, ProofClaim, Replayed, Tell
from fp4ref.proof.golden_scales import _encoding, _factor, _once
from fp4ref.proof.steps import shown
from fp4ref.spec import FourOverSix, Metric
from fp4ref.specs import NVFP4_4OVER6

CODES, BYTES = 8, 127  # without a sign; of E4M3, also without NaN


# Errors of elements


DIFFERENCES = ("dequantized", "dequantized_by_reciprocal", "scaled_units", "scaled_units_float16")
TOPS = (448, 256)


def maxima() -> NDArray[np.uint32]:
    """Return patterns of global maxima: all bfloat16 of a binade, and two significands of each other binade."""
    fields = np.arange(1, 255, dtype=np.uint32)[:, None] << 23
    others = (fields | np.array([0x13 << 16, 0x5A3C71], np.uint32)).ravel()
    return np.concatenate([(0x3F80 + np.arange(128, dtype=np.uint32)) << 16, others]).astype(np.uint32)


def elements() -> Floats:
    """Return values from which a product is subtracted: bfloat16 of a binade and of each exponent, and specials."""
    fields = np.arange(256, dtype=np.uint32)[:, None] << 23
    some = (fields | np.array([0, 0x25 << 16], np.uint32)).ravel()
    patterns = np.concatenate([(0x4080 + np.arange(128, dtype=np.uint32)) << 16, some])
    return np.concatenate([patterns, patterns | np.uint32(1 << 31)]).astype(np.uint32).view(F)


@np.errstate(all="ignore")
def _stated(name: str, product_: Floats, g: Floats, amax: Floats, top: int, x: Floats) -> Floats:
    """Return errors by operations in double precision, each rounded once. Rules: FOS-3, FOS-4."""

    def double(values: Any) -> NDArray[np.float64]:
        return np.asarray(values).astype(np.float64)

    if name == "dequantized":
        value = _once(double(_once(double(product_) * double(amax))) / (6.0 * top))
    elif name == "dequantized_by_reciprocal":
        value = _once(double(product_) * double(_once(1.0 / double(g))))
    else:
        return _once(double(product_) - double(_once(double(x) * double(g))))
    return _once(double(value) - double(x))


@np.errstate(all="ignore")
def differences(subject: ClaimSubject, tell: Tell) -> Replayed:
    """Compare errors of elements: all products of a code and a scale under the maxima, and beside the elements."""
    q = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], F)[:, None, None]
    s = blocks.values_of(CUDA_E4M3).astype(F)[None, :, None]
    product_ = (q * s).astype(F)  # 2 and 4 bits of significands: exact
    done = 0
    of = _golden_difference if subject is ClaimSubject.GOLDEN else _torch_difference
    for name, top in product(DIFFERENCES, TOPS):
        all_maxima = maxima().view(F)[None, None, :]
        x = elements()[None, None, :]
        for amax, inputs in (
            (all_maxima, np.zeros((1, 1, 1), F)),
            (all_maxima, np.full((1, 1, 1), 0.34375, F)),
            (np.full((1, 1, 1), 1.6015625, F), x),
        ):
            g = _encoding(amax.ravel(), top).reshape(amax.shape)
            want = np.broadcast_to(
                _stated(name, product_, g, amax, top, inputs), (CODES, BYTES, max(amax.size, inputs.size))
            )
            got = np.broadcast_to(of(name, q, s, g, amax, top, inputs), want.shape)
            nan = np.isnan(want)
            wrong = np.flatnonzero(np.where(nan, ~np.isnan(got), got.view(np.uint32) != want.view(np.uint32)))
            if len(wrong):
                code, byte, place = np.unravel_index(int(wrong[0]), want.shape)
                under = f"amax {amax.ravel()[place % amax.size]!s}, x {inputs.ravel()[place % inputs.size]!s}"
                right = shown(int(np.ascontiguousarray(want).view(np.uint32).ravel()[wrong[0]]))
                where = f"{name} with scale_max {top}: code {code}, scale byte {byte:02X}, {under}"
                return Replayed(done + int(wrong[0]), f"{where}: the error is not {right}")
            done += want.size
        tell(done / _differing())
    return Replayed(done)


def _differing() -> int:
    return len(DIFFERENCES) * len(TOPS) * CODES * BYTES * (2 * len(maxima()) + len(elements()))


def _golden_difference(name: str, q: Floats, s: Floats, g: Floats, amax: Floats, top: int, x: Floats) -> Floats:
    k = Constants(E2M1, CUDA_E4M3, F(6), F(top), lambda values: values)
    return np.asarray(golden.RULES[name](q, s, g, amax, x, k))


def _torch_difference(name: str, q: Floats, s: Floats, g: Floats, amax: Floats, top: int, x: Floats) -> Floats:
    import torch

    from fp4ref_torch import exact, four_over_six, known

    parts = [torch.from_numpy(np.ascontiguousarray(part)[None]) for part in (q, s, g, amax, x)]
    k = known.Known(_spec(top, Metric.ABSOLUTE), torch.float32, parts[4])
    product_ = exact.mul(parts[0], parts[1])
    error = four_over_six._difference(name, product_, parts[2], parts[3], parts[4], k)
    return np.asarray(np.asarray(error)[0], F)


# The candidate that is kept


def _spec(top: int, metric: Metric) -> Any:
    if top == TOPS[0] and metric is Metric.ABSOLUTE:
        return NVFP4_4OVER6
    searching = FourOverSix(metric=metric, scale_max=top)
    return NVFP4_4OVER6.replace(name="claim", four_over_six=searching)


SEARCHES = ((448, Metric.ABSOLUTE), (256, Metric.ABSOLUTE), (256, Metric.SQUARED), (256, Metric.LARGEST))
GLOBAL, BINADES, BESIDE = 0x4528, 17, 5  # 2688 as a bfloat16; binades of block maxima, and of elements beside one
STEP = 7  # of block maxima: every significand is in some binade
MAXIMA = -(-BINADES * 128 // STEP)
PER_MAXIMUM = BESIDE * 128 + 2  # elements beside a maximum: none, and NaN
BLOCKS = MAXIMA * PER_MAXIMUM


def pairs() -> tuple[NDArray[np.uint32], NDArray[np.uint32]]:
    """Return block maxima and the elements beside them, as bfloat16: all from 1/32 of a maximum on, none, and NaN."""
    largest = (GLOBAL - STEP * np.arange(MAXIMA, dtype=np.uint32))[:, None]
    beside = largest - np.arange(BESIDE * 128, dtype=np.uint32)[None]
    ends = np.broadcast_to(np.array([0, 0x7FC0], np.uint32), (len(largest), 2))
    other = np.concatenate([beside, ends], axis=1)
    return np.broadcast_to(largest, other.shape).ravel(), other.ravel()


@np.errstate(all="ignore")
def kept(top: int, metric: Metric) -> tuple[NDArray[np.uint8], NDArray[np.uint8], NDArray[np.uint8]]:
    """Return the byte, and the codes of the maximum and of the element, of every block.

    Rules: FOS-1, FOS-3, FOS-5, FOS-6.
    """
    a, x = ((part << 16).view(F) for part in pairs())
    amax = np.array([GLOBAL << 16], np.uint32).view(F)
    g = _encoding(amax, top)
    t = _once(_once(a.astype(np.float64) / 6.0).astype(np.float64) * g.astype(np.float64))
    scales, found, errors = blocks.values_of(CUDA_E4M3).astype(F), [], []
    for before in (t, _once(t.astype(np.float64) * 1.5)):
        byte = blocks._encoded(CUDA_E4M3, before)
        s = scales[byte]
        factor, total, codes = _factor(s, g), np.zeros(len(a), F), []
        for values in (a, x):
            y = _once(values.astype(np.float64) * factor.astype(np.float64))
            code = blocks._encoded(CUDA_E2M1, y)
            q = blocks.values_of(CUDA_E2M1).astype(F)[code & 7]
            error = np.abs(_stated("dequantized", q * s, g, amax, top, values))
            if metric is Metric.SQUARED:
                error = _once(error.astype(np.float64) ** 2)
            if metric is Metric.LARGEST:
                total = np.where(np.isnan(total) | (total > error), total, error)
            else:
                total = _once(total.astype(np.float64) + error.astype(np.float64))
            codes.append(code)
        found.append((byte, *codes))
        errors.append(total)
    second = errors[1] < errors[0]
    first, other = found
    return tuple(np.where(second, late, early) for early, late in zip(first, other, strict=True))  # type: ignore[return-value]


def chosen(subject: ClaimSubject, tell: Tell) -> Replayed:
    """Quantize blocks of two numbers in all places, and compare scale bytes and codes with those that are kept."""
    import ml_dtypes

    a, x = pairs()
    number = np.arange(len(a))
    places = number % 16, (number + 1 + number // 16 % 15) % 16
    words = np.zeros((len(a), 16), np.uint16)
    words[number, places[0]], words[number, places[1]] = a, np.where(number % 3 == 0, x | 0x8000, x)
    tensor = words.reshape(-1, 16 * PER_MAXIMUM).view(ml_dtypes.bfloat16)
    for done, (top, metric) in enumerate(SEARCHES):
        byte, *codes = kept(top, metric)
        if metric is Metric.ABSOLUTE and top == TOPS[0]:
            spec: Any = "nvfp4-4over6"
        else:
            spec = _spec(top, metric)
        q = api.quantize(whole._array(tensor, subject), spec, backend=whole.BACKENDS[subject])
        got = q.direction("row")[0].mapped(whole._host)
        data = got.data.reshape(-1, 8)
        mine = np.stack([data & 15, data >> 4], axis=-1).reshape(-1, 16)
        minus = (number % 3 == 0) & (x <= 0x7F80)  # a NaN has code 7
        right = codes[0], codes[1] | np.where(minus, 8, 0).astype(np.uint8)
        wrong = got.scales.ravel() != byte
        for place, code in zip(places, right, strict=True):
            wrong |= mine[number, place] != code
        (at,) = np.nonzero(wrong)
        if len(at):
            i = int(at[0])
            pair = " and ".join(shown(int(part[i]) << 16) for part in (a, x))
            said = f"the byte is {got.scales.ravel()[i]:02X}, needs {byte[i]:02X}"
            return Replayed(done * BLOCKS + i, f"scale_max {top}, {metric.value}: a block of {pair}: {said}")
        tell((done + 1) / len(SEARCHES))
    return Replayed(len(SEARCHES) * BLOCKS)


def claims() -> Iterator[ProofClaim]:
    """Yield the claims about searches."""
    totals = tuple(f"fp4ref.four_over_six:{order}" for order in ORDERS)
    named = tuple(f"fp4ref.four_over_six:{name}" for name in DIFFERENCES)
    for subject, decide, covers in (
        (ClaimSubject.GOLDEN, partial(added, ClaimSubject.GOLDEN), totals),
        (ClaimSubject.TORCH, partial(added, ClaimSubject.TORCH), ("fp4ref_torch.four_over_six:_total",)),
        (ClaimSubject.HEADER, added_in_header, ("block.h:sum_row", "block.h:block_errors")),
    ):
        yield ProofClaim(
            name=f"search-order/{subject}",
            rules=("FOS-5", "FOS-8"),
            method=Method.ARGUMENT,
            subject=subject,
            statement="The counts of a block are added in the order of its total.",
            domain=f"all three counts of blocks of {', '.join(f'{r} x {c}' for r, c in SHAPES)}, in the orders "
            f"{', '.join(served(subject))}",
            size=probed(subject) * (2 if subject is ClaimSubject.HEADER else 1),
            decide=decide,
            covers=covers,
            reduction="a sum of floats is a binary tree; 2^24 at one leaf and 1 at two others say which two of the "
            "three are added first, and the answers for all three leaves determine the tree; longer rows and more rows "
            "go on in the same loops",
        )
    for subject, covers in (
        (ClaimSubject.GOLDEN, named),
        (ClaimSubject.TORCH, ("fp4ref_torch.four_over_six:_difference",)),
    ):
        yield ProofClaim(
            name=f"search-errors/{subject}",
            rules=("FOS-3", "FOS-4"),
            method=Method.ARGUMENT,
            subject=subject,
            statement="An element's error is the operations of its rule in double precision, each rounded once.",
            domain="all codes under all scale bytes, under global maxima of all binades, and beside elements of all "
            "exponents",
            size=_differing(),
            decide=partial(differences, subject),
            covers=covers,
            reduction="the products are all computed; without a subnormal or an overflow a power of two in the maximum "
            "passes through, and the last operation is one subtraction, rounded as IEEE 754 says",
        )
    for subject in whole.BACKENDS:
        yield ProofClaim(
            name=f"search-kept/{subject}",
            rules=("FOS-1", "FOS-3", "FOS-5", "FOS-6"),
            method=Method.ARGUMENT,
            subject=subject,
            statement="A block has the scale and the codes of the second candidate if and only if its error is less.",
            domain=f"every seventh bfloat16 maximum in {BINADES} binades up to the global one, each beside all "
            "bfloat16 from 1/32 of it on, beside none and beside NaN, for two values of scale_max and three metrics",
            size=len(SEARCHES) * BLOCKS,
            decide=partial(chosen, subject),
            covers=(*whole.QUANTIZED[subject], whole.value_of("nvfp4-4over6", "fp4ref.specs:NVFP4_4OVER6", subject)),
            reduction="a block's error is a sum whose order and terms are those of the certificates named, and two "
            "terms decide in either direction; these maxima have every significand",
            rests_on=()
            if subject in {ClaimSubject.CPU, ClaimSubject.CUDA}
            else (f"search-order/{subject}", f"search-errors/{subject}"),
        )
