"""Claims about the emulation's tensors: whose bytes they hold, and which direction is dequantized.

Tensors get codes and scales that are written into their buffers, unlike in the two directions, so that values are known
without a quantizer. Products of these values are exact in float32 in any order of additions.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fp4ref import api
from fp4ref.catalogue import resolve
from fp4ref.formats import F, Floats
from fp4ref.proof import whole
from fp4ref.proof.blocks import PIPELINES, TYPES
from fp4ref.proof.claims import ClaimSubject, Method, ProofClaim, Replayed, Tell
from fp4ref.spec import Granularity

PADDED = "fp4ref.layout.value:Layout.padded_shape"
Doubles = NDArray[np.float64]
QUANTIZERS: dict[str, dict[str, Any]] = {  # by the specification that the settings name
    "nvfp4": {},
    "nvfp4-2d": {"with_2d_quantization": True},
    "nvfp4-rht": {"with_rht": True, "with_post_rht_amax": True},
    "nvfp4-row-scaled": {"row_scaled_nvfp4": True},
    "nvfp4-4over6": {"nvfp4_use_4over6": True},
    "mxfp8-e4m3": {},
    "mxfp8-e5m2": {"fp8_dtype": "kFloat8E5M2"},
    "mxfp8-2d": {"with_2d_quantization": True},
}
USED = ({"row"}, {"column"}, {"row", "column"})
SHAPES = ((32, 64), (2, 16, 96))
DECODED = ("nvfp4", "mxfp8-e4m3", "mxfp8-e5m2")
ROW, COLUMN = 2.0, 3.0  # amaxes of the directions


def has_amax(spec: str) -> bool:
    """Return True for NVFP4, whose tensors hold an amax; those of MXFP8 hold columns as they are stored in x."""
    return resolve(spec).global_scale is not Granularity.NONE


def quantizer(spec: str) -> Any:
    """Return the quantizer of a specification."""
    from fp4ref.te import MXFP8Quantizer, NVFP4Quantizer
    from fp4ref.te.dtypes import DType

    settings = dict(QUANTIZERS[spec])
    if has_amax(spec):
        return NVFP4Quantizer(**settings)
    return MXFP8Quantizer(DType[settings.pop("fp8_dtype", "kFloat8E4M3")], **settings)


def _legal() -> list[tuple[str, set[str], str, tuple[int, ...]]]:
    """Return the settings, directions, types and shapes that are not refused. Rules: HAD-5, TEL-34."""
    return [
        (spec, used, dtype, shape)
        for spec, used, dtype, shape in product(QUANTIZERS, USED, TYPES, SHAPES)
        if not (spec == "nvfp4-rht" and dtype != "bfloat16")
        and not (spec == "nvfp4-row-scaled" and "column" in used and (dtype != "bfloat16" or "row" not in used))
    ]


def bytes_held(tell: Tell) -> Replayed:
    """Quantize by each setting, direction, type and shape, and compare with the bytes of the golden model."""
    legal = _legal()
    for count, (spec, used, dtype, shape) in enumerate(legal):
        size = int(np.prod(shape))
        x = (np.sin(np.arange(size, dtype=np.float64)) * 2.0 ** (np.arange(size) % 13)).astype(TYPES[dtype])
        made = quantizer(spec)
        made.set_usage(rowwise="row" in used, columnwise="column" in used)
        tensor = made(whole._array(x.reshape(shape), ClaimSubject.TORCH))
        q = api.quantize(x.reshape(-1, shape[-1]), spec, "both", "linear_padded", backend="numpy")
        for direction in ("row", "column"):
            wanted: Any = q.direction(direction)[0]
            if not has_amax(spec) and direction == "column":
                wanted = wanted.mapped(np.transpose)
            for name, its in ((f"_{direction}wise_data", wanted.data), (f"_{direction}wise_scale_inv", wanted.scales)):
                mine = getattr(tensor, name)
                said = f"{spec} of {dtype} {list(shape)}, {' and '.join(sorted(used))}: {name}"
                if (mine is not None) is not (direction in used):
                    return Replayed(count, f"{said} is {'there' if mine is not None else 'missing'}")
                if mine is not None and mine.numpy().tobytes() != its.tobytes():
                    return Replayed(count, f"{said} are not the bytes of {spec}")
            if has_amax(spec) and direction in used:
                amax = getattr(tensor, f"_amax_{direction}wise").numpy()
                if amax.dtype != F or amax.tobytes() != wanted.amax.tobytes():
                    return Replayed(count, f"{spec} of {dtype} {list(shape)}: the amax of the {direction}s is {amax}")
        tell((count + 1) / len(legal))
    return Replayed(len(legal))


class Filled(NamedTuple):
    """A tensor of the emulation, and what its directions hold: [rows, columns] and [columns, rows], no amax applied."""

    tensor: Any
    values: dict[str, Doubles]
    wide: dict[str, Floats]  # with the amax


def filled(spec: str, shape: tuple[int, int], seed: int, swizzled: bool = False) -> Filled:
    """Return a tensor with codes and scales that are unlike in each direction. Rules: TEL-3, TEL-4, PACK-1, LAY-3."""
    import torch

    made = quantizer(spec)
    made.optimize_for_gemm = swizzled
    tensor = made(torch.zeros(shape))
    pipe, values, wide = PIPELINES[spec](), {}, {}
    for direction, (rows, columns) in (("row", shape), ("column", shape[::-1])):
        r, c = np.arange(rows)[:, None], np.arange(columns)[None, :]
        of = 5 * r + 3 * c + r * c + seed + (direction == "row")
        width = columns // pipe.block
        turned = direction == "column" and not has_amax(spec)
        if spec == "nvfp4":
            codes = (of % 16).astype(np.uint8)
            scales = (0x38 + of[:, :width] % 8).astype(np.uint8)
            data = codes[:, ::2] | codes[:, 1::2] << 4
        else:
            codes = (0x38 + of % 8 + 0x80 * (of // 8 % 2)).astype(np.uint8)
            scales = (127 + of[:, :width] % 2).astype(np.uint8)
            data = codes.T if turned else codes
        padded = np.zeros((-(-rows // 128) * 128, -(-width // 4) * 4), np.uint8)
        padded[:rows, :width] = scales
        stored = whole.tiled(scales) if swizzled else (padded.T if turned else padded).ravel()
        for name, part in (("data", data), ("scale_inv", stored)):
            buffer = getattr(tensor, f"_{direction}wise_{name}")
            buffer.copy_(torch.from_numpy(np.ascontiguousarray(part)).view(buffer.shape))
        amax = None
        if spec == "nvfp4":
            amax = ROW if direction == "row" else COLUMN
            getattr(tensor, f"_amax_{direction}wise").fill_(amax)
        values[direction] = whole._decoded(pipe.element, codes) * np.repeat(
            whole._decoded(pipe.scale, scales), pipe.block, axis=1
        )
        wide[direction] = whole._values(pipe, codes, scales, amax)
    return Filled(tensor, values, wide)


def rows_decoded(tell: Tell) -> Replayed:
    """Dequantize tensors with either or both directions, in either layout of scales, to every type."""
    import torch

    from fp4ref.te.errors import NotSupportedError

    cases = [*product(DECODED, USED, (False, True), TYPES)]
    for count, (spec, used, swizzled, dtype) in enumerate(cases):
        tensor, _, wide = filled(spec, (64, 96), 0, swizzled)
        if np.array_equal(wide["row"], wide["column"].T):
            return Replayed(count, f"{spec}: the directions are not told apart")
        for direction in ("row", "column"):
            for name in (f"_{direction}wise_data", f"_{direction}wise_scale_inv", f"_amax_{direction}wise"):
                if direction not in used and hasattr(tensor, name):
                    setattr(tensor, name, None)
        said = f"{spec} with {' and '.join(sorted(used))}, GEMM layout {swizzled}, to {dtype}"
        refused = spec == "nvfp4" and "row" not in used
        try:
            got = whole._host_values(tensor.dequantize(dtype=getattr(torch, dtype)))
        except NotSupportedError:
            if not refused:
                return Replayed(count, f"{said} is refused")
            continue
        want = (wide["row"] if "row" in used else wide["column"].T).astype(TYPES[dtype])
        if refused or got.tobytes() != np.ascontiguousarray(want).tobytes():
            return Replayed(count, f"{said}: other values than those of its {'rows' if 'row' in used else 'columns'}")
        tell((count + 1) / len(cases))
    return Replayed(len(cases))


def claims() -> Iterator[ProofClaim]:
    """Yield the claims about the emulation."""
    tensors = tuple(
        f"fp4ref.te.{module}:{owner}Quantizer.{name}"
        for module, owner in (("nvfp4_quantizer", "NVFP4"), ("mxfp8_quantizer", "MXFP8"))
        for name in ("make", "fill")
    )
    yield ProofClaim(
        name="quantizer-bytes/torch",
        rules=("TEL-3",),
        method=Method.ARGUMENT,
        statement="A quantizer's tensors hold the data, scales and float32 amaxes of the specification that it names.",
        domain=f"{len(QUANTIZERS)} specifications, either or both directions, three types, with leading dimensions too",
        size=len(_legal()),
        decide=bytes_held,
        covers=(PADDED, "fp4ref.te.specifications:nvfp4", "fp4ref.te.specifications:mxfp8", *tensors),
        reduction="a quantizer passes a tensor on whole, so one tensor of each kind decides which call it makes",
        subject=ClaimSubject.TORCH,
    )
    yield ProofClaim(
        name="rows-decoded/torch",
        rules=("TEL-8",),
        method=Method.ARGUMENT,
        statement="A tensor has the values of its rows; without rows MXFP8 has those of its columns, NVFP4 none.",
        domain="three formats, either or both directions, either layout of scales, three types",
        size=len(DECODED) * len(USED) * 2 * len(TYPES),
        decide=rows_decoded,
        covers=(
            PADDED,
            "fp4ref.te.nvfp4_storage:NVFP4TensorStorage.decode",
            "fp4ref.te.mxfp8_tensor:MXFP8TensorStorage.decode",
        ),
        reduction="a direction is read whole, so a tensor whose directions are unlike decides which one is read",
        subject=ClaimSubject.TORCH,
    )
