"""Claims about groups in one call: a member has the bytes that it has alone, and its place in the group's memory."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import product
from typing import Any

import ml_dtypes
import numpy as np

from fp4ref.formats import F, Floats
from fp4ref.groups import quantize_grouped
from fp4ref.proof import blocks, whole
from fp4ref.proof.blocks import PIPELINES, TYPES
from fp4ref.proof.claims import ClaimSubject, Method, ProofClaim, Replayed, Tell
from fp4ref.proof.cuts import Encoded, encoded, matrix
from fp4ref.proof.paddings import PADDED
from fp4ref.quantized import DIRECTIONS, Direction, DirectionChoice

VALUES = {"nvfp4": "fp4ref.specs:NVFP4", "mxfp4": "fp4ref.specs:MXFP4", "mxfp8-e4m3": "fp4ref.specs:MXFP8_E4M3"}
SPLITS = ((), (0,), (128, 0, 128, 256), (1, 0, 15, 16, 17), (33, 130, 0), (0, 0, 5))
WIDTHS = (0, 20, 64, 192)
LAYOUTS = ("linear", "tiled_128x4", "tiled_8x4")
TILED = {padded.name: padded for padded in PADDED if padded.name in LAYOUTS}
EITHER: tuple[DirectionChoice, ...] = (*DIRECTIONS, "both")
CODE = {
    ClaimSubject.GOLDEN: whole.QUANTIZED[ClaimSubject.GOLDEN],
    ClaimSubject.CUDA: (
        *whole.QUANTIZED[ClaimSubject.CUDA],
        f"{whole.CUDA}/fused.cu",
        *(f"fp4ref_cuda.grouped:{name}" for name in ("quantize_grouped", "_sizes", "_starts", "_divider", "_member")),
        "fp4ref_cuda.members:group",
    ),
}
CASES: list[tuple[str, tuple[int, ...], int, str, DirectionChoice]] = [
    *product(("bfloat16", "float32"), SPLITS, WIDTHS, LAYOUTS, EITHER)
]


def members(spec: str, x: Floats, splits: tuple[int, ...]) -> list[dict[Direction, tuple[Encoded, Floats]]]:
    """Return the bytes and the amax of each member by direction. Rules: LAY-8, GLB-1, BLK-9."""
    found, start = [], 0
    for rows in splits:
        part = x[start : start + rows]
        start += rows
        amax = np.array([np.abs(part).max(initial=0)], F)
        pipe = blocks.nvfp4(float(amax[0])) if spec == "nvfp4" else PIPELINES[spec]()
        both = zip(DIRECTIONS, (part, np.ascontiguousarray(part.T)), strict=True)
        found.append({name: (encoded(each, pipe, 1, pipe.block), amax) for name, each in both})
    return found


def grouped(spec: str, subject: ClaimSubject, tell: Tell) -> Replayed:
    """Quantize groups, then into their own memory that was overwritten; compare members, and the memory as a whole."""
    for count, (dtype, splits, width, layout, directions) in enumerate(CASES):
        x = matrix(sum(splits), width)
        wanted = members(spec, x, splits)
        given = whole._array(x.astype(TYPES[dtype]) if dtype == "float32" else x.astype(ml_dtypes.bfloat16), subject)
        group, out = None, None
        for again in (False, True):
            if again and group is not None:
                for part in _parts(group):
                    part[...] = 0xA5 if part.ndim == 2 else 7
                out = group
            group = quantize_grouped(given, splits, spec, directions, layout, backend=whole.BACKENDS[subject], out=out)
            witness = _differs(group, wanted, layout, directions)
            if witness:
                said = f"{dtype}, members of {list(splits)} rows of {width}, {layout}, {directions}"
                return Replayed(count, f"{said}{', filled again' if again else ''}: {witness}")
        tell((count + 1) / len(CASES))
    return Replayed(len(CASES))


def _parts(group: Any) -> list[Any]:
    return [part for q in group for direction in (q.row, q.column) for part in direction or () if part is not None]


def _differs(group: Any, wanted: Any, layout: str, directions: DirectionChoice) -> str:
    """Return the difference in a member or in the memory of a direction, in words; empty if there is none."""
    for name in DIRECTIONS if directions == "both" else (directions,):
        ends: dict[str, list[bytes]] = {"data": [], "scales": [], "amax": []}
        for index, (q, both) in enumerate(zip(group, wanted, strict=True)):
            want, amax = both[name]
            got = q.direction(name)[0].mapped(whole._host)
            scales = want.scales.ravel() if layout == "linear" else TILED[layout].stored(want.scales)
            for part, mine, its in (
                ("data", got.data, want.data),
                ("scales", got.scales, scales),
                ("amax", got.amax, amax),
            ):
                if mine is None:
                    continue
                ends[part].append(its.tobytes())
                if mine.tobytes() != its.tobytes():
                    return f"{part} of the {name} direction of member {index}"
        memory = None if group.memory is None else getattr(group.memory, name, None)
        for part, buffers in ends.items() if memory is not None else ():
            kept = getattr(memory, part)
            if kept is not None and whole._host(kept).tobytes() != b"".join(buffers):
                return f"the memory of the {name} direction has other {part}"
    return ""


def claims() -> Iterator[ProofClaim]:
    """Yield the claims: a backend without the operation quantizes one member after another, as the golden model."""
    for spec, subject in product(VALUES, (ClaimSubject.GOLDEN, ClaimSubject.CUDA)):
        if subject is ClaimSubject.GOLDEN and spec != "nvfp4":
            continue
        yield ProofClaim(
            name=f"group-members-{spec}/{subject}",
            rules=("LAY-8", "BLK-9", *(("GLB-1",) if spec == "nvfp4" else ())),
            method=Method.ARGUMENT,
            subject=subject,
            statement=f"In {spec}, a member of a group has its own amax, codes and scales, and starts where the one "
            "before it ends.",
            domain=f"{len(SPLITS)} groups of up to five members, with and without rows, of {len(WIDTHS)} widths in "
            f"{len(LAYOUTS)} layouts and two types, in one and in both directions",
            size=len(CASES),
            decide=partial(grouped, spec, subject),
            covers=(
                *CODE[subject],
                "fp4ref.groups:quantize_grouped",
                *(f"fp4ref.layout.registry:{name.upper()}" for name in LAYOUTS),
                whole.value_of(spec, VALUES[spec], subject),
            ),
            reduction="a start is the one before it and a size; members without rows, of parts of a tile and of whole "
            "tiles have each kind of size",
            rests_on=(f"cut-{spec}/{subject}",) if spec != "mxfp8-e4m3" else (),
        )
