"""Claims about whole calls: every backend as a black box, on tensors whose bytes are known."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fp4ref import api, arrays
from fp4ref.catalogue import resolve
from fp4ref.conformance.families.rules import product_rule
from fp4ref.formats import F
from fp4ref.proof import blocks, sources
from fp4ref.proof.blocks import PIPELINES, TYPES, KnownTensor
from fp4ref.proof.claims import ClaimSubject, Method, ProofClaim, Replayed, Tell
from fp4ref.proof.golden_scales import _once
from fp4ref.quantized import DirectionData, Quantized

BACKENDS = {
    ClaimSubject.GOLDEN: "numpy",
    ClaimSubject.CPU: "cpu",
    ClaimSubject.TORCH: "torch",
    ClaimSubject.CUDA: "cuda",
}
TILED = "tiled_128x4"
RULES = {
    "nvfp4": ("GLB-1", "GLB-2", "BLK-2", "BLK-3", "BLK-4", "BLK-5", "BLK-6", "E2M1-3", "PACK-1", "LAY-3"),
    "mxfp4": ("MXS-1", "BLK-10", "E8M0-2", "E2M1-3", "PACK-1", "LAY-3"),
    "mxfp8-e4m3": ("MXS-1", "BLK-10", "E8M0-2", "E4M3-2", "PACK-3", "LAY-3"),
    "mxfp8-e5m2": ("MXS-1", "BLK-10", "E8M0-2", "E5M2-2", "PACK-3", "LAY-3"),
}
CPU, CUDA = "fp4ref_cpu/csrc", "fp4ref_cuda/kernels"
FLAGS = ("fp4ref_cpu.build:FLAGS", "fp4ref_cpu.build:OPTIMIZATION_FLAGS", "fp4ref_cpu.build:MACHINE_FLAGS")
LAYOUTS = tuple(f"fp4ref.layout.registry:{name}" for name in ("LINEAR", "TILED_128X4"))
VALUES = {  # specifications in Python
    "nvfp4": "fp4ref.specs:NVFP4",
    "mxfp4": "fp4ref.specs:MXFP4",
    "mxfp8-e4m3": "fp4ref.specs:MXFP8_E4M3",
    "mxfp8-e5m2": "fp4ref.specs:MXFP8_E5M2",
}
QUANTIZED = {
    ClaimSubject.GOLDEN: ("fp4ref.model.backend:quantize", *LAYOUTS),
    ClaimSubject.CPU: (f"{CPU}/quantize.h", *FLAGS),
    ClaimSubject.TORCH: ("fp4ref_torch.operations:quantize", *LAYOUTS),
    ClaimSubject.CUDA: (
        *(f"{CUDA}/{name}.cu" for name in ("amax", "amax_finish", "rows", "row_blocks", "quantize", "bytes")),
        "fp4ref_cuda.compile:options",
    ),
}
DECODED = {
    ClaimSubject.GOLDEN: ("fp4ref.model.backend:dequantize", LAYOUTS[0]),
    ClaimSubject.CPU: (f"{CPU}/dequantize.h", *FLAGS),
    ClaimSubject.TORCH: ("fp4ref_torch.operations:dequantize", LAYOUTS[0]),
    ClaimSubject.CUDA: (
        *(f"{CUDA}/{name}.cu" for name in ("dequantize", "decode", "decode_run")),
        "fp4ref_cuda.compile:options",
    ),
}
SIZES = {  # elements and block maxima of a tensor, by specification and type
    ("nvfp4", "float32"): 17137,
    ("nvfp4", "bfloat16"): 3941944,
    ("nvfp4", "float16"): 2307939,
    ("mxfp4", "float32"): 34264,
    ("mxfp4", "bfloat16"): 8485630,
    ("mxfp4", "float16"): 1167354,
    ("mxfp8-e4m3", "float32"): 564580,
    ("mxfp8-e4m3", "bfloat16"): 8492222,
    ("mxfp8-e4m3", "float16"): 1183224,
    ("mxfp8-e5m2", "float32"): 535681,
    ("mxfp8-e5m2", "bfloat16"): 8469374,
    ("mxfp8-e5m2", "float16"): 1183224,
}
AMAXES = (1.6015625, 2688.0, 3.0, 1e-30, 3e38)


def tiled(scales: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return scales in tiles of 128 rows and 4 columns, written out from the rule. Rules: LAY-1, LAY-3."""
    rows, columns = scales.shape
    padded = np.zeros((-(-rows // 128) * 128, -(-columns // 4) * 4), np.uint8)
    padded[:rows, :columns] = scales
    r, c = np.indices(padded.shape)
    across = padded.shape[1] // 4
    offset = (r // 128 * across + c // 4) * 512 + r % 32 * 16 + r % 128 // 32 * 4 + c % 4
    stored = np.zeros(padded.size, np.uint8)
    stored[offset] = padded
    return stored


def quantizes(spec: str, dtype: str, subject: ClaimSubject, tell: Tell) -> Replayed:
    """Quantize by rows with linear scales, and the transpose by columns with tiled ones; compare all bytes."""
    wanted = blocks.tensor(spec, dtype)
    for turned in (False, True):
        direction = "column" if turned else "row"
        x = _array(np.ascontiguousarray(wanted.x.T) if turned else wanted.x, subject)
        layout = TILED if turned else "linear"
        q = api.quantize(x, spec, direction, layout, backend=BACKENDS[subject])  # type: ignore[call-overload]
        got = q.direction(direction)[0].mapped(_host)
        scales = tiled(wanted.scales) if turned else wanted.scales.ravel()
        for name, mine, its in (("data", got.data, wanted.data.ravel()), ("scales", got.scales, scales)):
            (wrong,) = np.nonzero(mine.ravel() != its)
            if len(wrong):
                return Replayed(wanted.swept, _told(wanted, name, int(wrong[0]), mine.ravel(), its, turned))
        if wanted.amax is not None and got.amax.tobytes() != wanted.amax.tobytes():
            return Replayed(wanted.swept, f"the amax is {got.amax}, needs {wanted.amax}")
        tell(0.5 + turned / 2)
    return Replayed(wanted.swept)


def _array(x: NDArray[Any], subject: ClaimSubject) -> Any:
    """Return an array that the subject's backend takes."""
    if subject not in {ClaimSubject.TORCH, ClaimSubject.CUDA}:
        return x
    import torch

    made = torch.from_numpy(x.view(f"i{x.itemsize}")).view(getattr(torch, x.dtype.name))
    return made.to("cuda") if subject is ClaimSubject.CUDA else made


def _host(part: Any) -> NDArray[Any]:
    return np.asarray(part.cpu() if hasattr(part, "cpu") else part)


def _told(wanted: KnownTensor, name: str, at: int, got: Any, want: Any, turned: bool) -> str:
    """Return the first byte that differs, in words; by rows with the element too."""
    said = f"byte {at} of the {name} is {got[at]:02X}, needs {want[at]:02X}"
    if name == "scales" and turned:
        return f"{said}, tiled"
    per = wanted.x.size // want.size
    row, column = divmod(at * per, wanted.x.shape[1])
    if name == "data" and per == 2 and got[at] & 15 == want[at] & 15:
        column += 1
    width = wanted.x.shape[1] // wanted.scales.shape[1]
    block = np.abs(wanted.x[row, column // width * width :][:width].astype(F))
    byte = wanted.scales[row, column // width]
    return f"{said}: {wanted.x[row, column]!s} in a block of maximum {np.nanmax(block)!s} and scale byte {byte:02X}"


def dequantizes(spec: str, subject: ClaimSubject, tell: Tell) -> Replayed:
    """Dequantize every code under every scale byte, to every type, and compare with products that are rounded once.

    The scales are linear, and in tiles: a device has kernels of their own for these.
    """
    pipe = PIPELINES[spec]()
    four = pipe.element.format.bits == 4
    each = np.arange(1 << pipe.element.format.bits, dtype=np.uint8)
    codes = np.tile(each, (256, -(-pipe.block // len(each))))
    scales = np.repeat(np.arange(256, dtype=np.uint8)[:, None], codes.shape[1] // pipe.block, axis=1)
    data = (codes[:, ::2] | codes[:, 1::2] << 4).astype(np.uint8) if four else codes
    count = 0
    for amax in (None,) if pipe.largest is None else AMAXES:
        want = _values(pipe, codes, scales, amax)
        for form, (to, kind) in product(("linear", TILED), TYPES.items()):
            stored = tiled(scales).reshape(256, -1) if form == TILED else scales
            parts = DirectionData(data, stored, None if amax is None else np.array([amax], F))
            q = Quantized(resolve(spec), codes.shape, to, form, parts.mapped(lambda part: _array(part, subject)))
            got = _host_values(api.dequantize(q, to, backend=BACKENDS[subject]))
            with np.errstate(all="ignore"):
                right = want.astype(kind)
            bits = f"u{kind.itemsize}"
            nan = np.isnan(want)
            (row, column) = np.nonzero(np.where(nan, ~np.isnan(got.astype(F)), got.view(bits) != right.view(bits)))
            count += 256 * len(each)
            if len(row):
                place = int(row[0]), int(column[0])
                said = f"code {codes[place]:02X} under the scale byte {scales[place[0], place[1] // pipe.block]:02X}"
                return Replayed(count, f"{said}, {form}, is {got[place]!s} as {to}, needs {right[place]!s}")
    return Replayed(count)


@np.errstate(all="ignore")
def _values(pipe: blocks.Pipeline, codes: NDArray[np.uint8], scales: NDArray[np.uint8], amax: float | None) -> Any:
    """Return the float32 that codes stand for. Rules: DEQ-1, DEQ-2, E2M1-1, E4M3-1, E5M2-1, E8M0-1, E8M0-4."""
    q, s = _decoded(pipe.element, codes), _decoded(pipe.scale, scales)
    if amax is not None:
        product = _once(s * np.float64(F(amax)))
        s = _once(product.astype(np.float64) * np.float64(_once(1.0 / 2688.0))).astype(np.float64)
    return _once(q * np.repeat(s, pipe.block, axis=1))


def _decoded(codec: Any, codes: NDArray[np.uint8]) -> NDArray[np.float64]:
    """Return the values of codes, from fractions, as doubles."""
    form, finite = codec.format, blocks.values_of(codec)
    index = codes & (form.sign_bit - 1) if form.signed else codes
    value = np.append(finite, np.full(256, np.nan))[index]
    if form.infinity:
        value[index == form.codes] = np.inf
    return np.where(codes & form.sign_bit, -value, value) if form.signed else value


def _host_values(array: Any) -> NDArray[Any]:
    return arrays.to_numpy("prove", array.cpu() if hasattr(array, "cpu") else array)


def claims() -> Iterator[ProofClaim]:
    """Yield the claims about whole calls; those on one tensor are together."""
    for spec in PIPELINES:
        for dtype in TYPES:
            every = dtype != "float32"
            what = f"all {dtype}" if every else "the float32 on both sides of every place at which a code begins"
            maxima = f"all {dtype} block maxima" if every else "the block maxima around those of every scale byte"
            under = ", under one global maximum" if spec == "nvfp4" else ""
            for subject in BACKENDS:
                yield ProofClaim(
                    name=f"quantize-{spec}-{dtype}/{subject}",
                    rules=RULES[spec],
                    method=Method.EXHAUSTIVE if every else Method.ARGUMENT,
                    subject=subject,
                    statement=f"Data, scales and amax of {spec} follow the rules, by rows and, tiled, by columns.",
                    domain=f"{what} in blocks of every scale byte, and {maxima}{under}",
                    size=SIZES[spec, dtype],
                    decide=partial(quantizes, spec, dtype, subject),
                    covers=(*QUANTIZED[subject], _value(spec, subject)),
                    reduction="" if every else "products, quotients and roundings never fall as a magnitude grows",
                )
        count = len(AMAXES) if spec == "nvfp4" else 1
        for subject in BACKENDS:
            yield ProofClaim(
                name=f"dequantize-{spec}/{subject}",
                rules=(product_rule(resolve(spec)), "DEQ-3"),
                method=Method.EXHAUSTIVE,
                subject=subject,
                statement=f"Every code of {spec} under every scale byte has the value of the rules, in three types.",
                domain="all codes under all scale bytes, linear and in tiles"
                + (f", and {count} global maxima" if count > 1 else ""),
                size=2 * count * len(TYPES) << (8 + PIPELINES[spec]().element.format.bits),
                decide=partial(dequantizes, spec, subject),
                covers=(*DECODED[subject], _value(spec, subject)),
            )


def _value(spec: str, subject: ClaimSubject) -> str:
    """Return the reference of a specification, as a subject reads it."""
    return value_of(spec, VALUES[spec], subject)


def value_of(spec: str, reference: str, subject: ClaimSubject) -> str:
    """Return the reference of a specification by name, as a subject reads it."""
    native = subject in {ClaimSubject.CPU, ClaimSubject.CUDA}
    return f"{sources.LOWERED}{spec}" if native else reference
