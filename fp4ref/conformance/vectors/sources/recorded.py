"""Excerpts of recorded outputs of public implementations: expected bytes come from the recording, not from a model.

A few windows of each recorded tensor are kept: those on which implementations differ most. A window is cut at block
boundaries and keeps the maximum of the whole tensor, so that its bytes stay those of the recording.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from fp4ref.catalogue import PROFILES
from fp4ref.conformance.vectors.sources.parts import Json, floats, group, named, tensor_fields, test
from fp4ref.conformance.vectors.text import format_rows, format_words
from fp4ref.formats import F
from fp4ref.model.quantize import quantize
from fp4ref.spec import FourOverSix, Granularity, Metric, Spec
from fp4ref.specs import NVFP4, NVFP4_2D, NVFP4_4OVER6, NVFP4_RHT, NVFP4_ROW_SCALED

PEERS, TRANSFORMER_ENGINE = "peers.npz", "te_nvfp4.npz"
Archive = Mapping[str, NDArray[Any]]
WIDTH = 32  # columns of a window: a multiple of every block
TILE = 16
FLAGS = {
    "mixed": "WideRange PeerArithmetic",
    "mxties": "ScaleRounding PeerArithmetic",
    "normal": "PeerArithmetic",
    "normal_bf16": "PeerArithmetic",
    "scaleties": "ScaleTie PeerArithmetic",
    "ties": "TieToEven PeerArithmetic",
    "tiny": "ScaleUnderflow PeerArithmetic",
    "zeros": "PeerArithmetic",
    "heavy": "WideRange",
    "wide": "WideRange",
    "sparse": "ScaleRounding",
    "zeros_blocks": "ScaleUnderflow",
    "all_zero": "GlobalScale",
    "subnormal": "FlushToZero",
    "huge": "GlobalScale",
    "outlier": "ScaleUnderflow",
    "scale_ties": "ScaleTie",
}
VERSIONS = {
    "compressed_tensors": "ac8e2ba8, 2026-08-06, torch 2.13",
    "deepgemm": "54e22612, 2026-06-23, torch 2.13",
    "flashinfer": "fb28d724, 2026-08-22, torch 2.13",
    "fouroversix": "dadfad69, 2026-04-21, torch 2.13",
    "gfloat": "b142762d, 2026-04-18",
    "jax": "0.10.2, CPU",
    "microxcaling": "7bc41952, 2024-08-19, torch 2.13",
    "modelopt": "5a4242fa, 2025-12-05, torch 2.13",
    "qwix": "aa623acb, 2026-08-13, jax 0.10.2",
    "torchao": "36027d82, 2026-08-21, torch 2.13",
}
OLDER = {"modelopt.nvfp4": "modelopt.nvfp4@0.40.0"}  # profiles of what was recorded, where a newer version differs
SHAPED = {("zeros.bf16", "jax.nvfp4"), ("zeros.fp32", "jax.nvfp4")}  # bytes that depend on the tensor's shape
WINDOWS = 2  # of a peer's tensor
FEWER = {"zeros": 1, "normal": 1, "normal_bf16": 1}


# Other implementations


def peer_groups(archive: Archive) -> list[Json]:
    """Return a group for each profile, a test for each input; inputs are shared."""
    names = sorted({key.split("/")[1] for key in archive if key.endswith("/scales")})
    inputs = sorted({key.split("/")[0] for key in archive})
    kept = {name: _windows(archive, name, names) for name in inputs}
    return [
        group(
            "PRO-1 PRO-3",
            {"name": f"{name}, recorded on a CPU", "version": VERSIONS[name.partition(".")[0]]},
            [
                made
                for key in inputs
                if (key, name) not in SHAPED
                for made in _peer_tests(archive, key, name, kept[key])
            ],
            spec=OLDER.get(name, name),
        )
        for name in names
    ]


def _windows(arrays: Archive, key: str, names: Sequence[str]) -> list[tuple[int, int]]:
    """(row, column) of the windows that tell most pairs of profiles apart, chosen one after the other."""
    results = [_bytes(arrays, key, name) for name in names if PROFILES[name].block.rows == 1]
    rows, columns = arrays[f"{key}/x"].shape
    places = [(row, column) for row in range(rows) for column in range(0, columns, WIDTH)]
    told = np.zeros((len(results), len(results)), bool)
    apart = np.stack([_apart(results, row, column, columns) for row, column in places])
    kind = key.partition(".")[0]
    chosen: list[tuple[int, int]] = []
    for _ in range(FEWER.get(kind, WINDOWS)):
        gains = (apart & ~told).sum(axis=(1, 2))
        best = int(np.argmax(gains))
        chosen.append(places[best])
        told |= apart[best]
    return sorted(set(chosen))


def _apart(
    results: Sequence[tuple[NDArray[Any], NDArray[Any]]], row: int, column: int, columns: int
) -> NDArray[np.bool_]:
    """Return True for pairs of profiles whose bytes differ in a window."""
    seen = [b"".join(part[row, _span(part, column, WIDTH, columns)].tobytes() for part in pair) for pair in results]
    number = {value: i for i, value in enumerate(dict.fromkeys(seen))}
    which = np.array([number[value] for value in seen])
    return np.asarray(which[:, None] != which)


def _span(part: NDArray[Any], column: int, width: int, columns: int) -> slice:
    """Return the bytes of a row that belong to a range of columns."""
    per = columns // part.shape[1]
    return slice(column // per, (column + width) // per)


def _bytes(arrays: Archive, key: str, name: str) -> tuple[NDArray[Any], NDArray[Any]]:
    data = arrays.get(f"{key}/{name}/packed")
    return arrays[f"{key}/{name}/codes"] if data is None else data, arrays[f"{key}/{name}/scales"]


def _peer_tests(arrays: Archive, key: str, name: str, windows: Sequence[tuple[int, int]]) -> list[Json]:
    spec, (data, scales) = PROFILES[name], _bytes(arrays, key, name)
    x, columns = _of_type(arrays[f"{key}/x"], key), arrays[f"{key}/x"].shape[1]
    kind, _, dtype = key.partition(".")
    if spec.block.rows > 1:
        place, flags = f"tile of {key}", f"{FLAGS[kind]} SharedTile"
        areas = [(slice(0, TILE), 0, TILE)] if dtype == "bf16" and kind in {"mixed", "scaleties"} else []
    else:
        place, flags = key, FLAGS[kind]
        areas = [(slice(row, row + 1), column, WIDTH) for row, column in windows]
    if not areas:
        return []
    amax = _amax(x, spec, [rows for rows, *_ in areas])
    cut = [
        np.concatenate([part[rows, _span(part, column, width, columns)] for rows, column, width in areas])
        for part in (x, data, scales)
    ]
    return [
        test(
            flags,
            f"{kind}, amax {amax[0]:.9g}" if amax.size else kind,
            input=place,
            **tensor_fields(cut[0]),
            **({"amax": format_words(amax)} if amax.size else {}),
            expected={"data": format_rows(cut[1]), "scales": format_rows(cut[2])},
        )
    ]


def _of_type(x: NDArray[Any], key: str) -> NDArray[Any]:
    return x.astype(ml_dtypes.bfloat16) if key.endswith(".bf16") else x.astype(F)


def _amax(x: NDArray[Any], spec: Spec, rows: Sequence[slice]) -> NDArray[np.float32]:
    """Return the maxima that the recording was made with: none, the whole tensor's, or those of rows."""
    magnitude = np.abs(x.astype(F))
    parts = {Granularity.NONE: [], Granularity.TENSOR: [magnitude], Granularity.ROW: [magnitude[part] for part in rows]}
    return floats([part.max() for part in parts[spec.global_scale]])


# Transformer Engine


def te_spec(option: str) -> Spec:
    """Return the specification of a recorded option."""
    plain = {"1d": NVFP4, "2d": NVFP4_2D, "row": NVFP4_ROW_SCALED, "rht": NVFP4_RHT}
    if option in plain:
        return plain[option]
    *_, metric, top = parts = option.split("_")
    return NVFP4_4OVER6.replace(
        name=f"nvfp4-4over6 {option}",
        four_over_six=FourOverSix(metric=Metric(metric), scale_max=int(top)),
        block=(16, 16) if "2d" in parts else (1, 16),
        global_scale="row" if "row" in parts else "tensor",
    )


TE_RULES = {"1d": "BLK-3 BLK-4 BLK-5 BLK-8", "2d": "BLK-7 BLK-8", "row": "GLB-5", "rht": "HAD-1 HAD-2 HAD-3 HAD-4"}
SOURCE = {"name": "Transformer Engine's Python reference, recorded on a CPU", "version": "2026-08-22"}


def te_groups(archive: Archive) -> list[Json]:
    """Return a group for each option, one or two tests for each recorded tensor."""
    cases: dict[str, list[str]] = {}
    for case in map(str, archive["index"]):
        cases.setdefault(case.split("/")[0], []).append(case)
    return [
        group(
            TE_RULES.get(option, "FOS-1 FOS-2 FOS-3 FOS-5 FOS-6"),
            SOURCE,
            [made for case in names for made in _te_tests(archive, case, te_spec(option))],
            spec=named(te_spec(option)),
        )
        for option, names in cases.items()
    ]


def _te_tests(archive: Archive, case: str, spec: Spec) -> list[Json]:
    option, kind, dtype = case.split("/")
    x = archive[f"{case}/x"]
    x = x.view(ml_dtypes.bfloat16) if dtype == "bf16" else x
    if spec.block.rows > 1:
        if dtype == "fp32" and kind not in {"ties", "subnormal", "scale_ties"}:
            return []
        row, column = _aimed(x, spec, TILE, TILE)
        return [_te_test(archive, case, x, direction, (row, TILE), (column, TILE)) for direction in ("row", "column")]
    if option == "rht":
        row, column = _aimed(x, spec, TILE, 4, "column")
        return [_te_test(archive, case, x, "column", (row, TILE), (column, 4))]
    height = 2 if dtype == "bf16" else 1
    row, column = _aimed(x, spec, height, WIDTH)
    tests = [_te_test(archive, case, x, "row", (row, height), (column, WIDTH))]
    if option in {"1d", "row"} and dtype == "bf16":
        row, column = _aimed(x, spec, TILE, 4, "column")
        tests.append(_te_test(archive, case, x, "column", (row, TILE), (column, 4)))
    return tests


def _aimed(x: NDArray[Any], spec: Spec, height: int, width: int, direction: Any = "row") -> tuple[int, int]:
    """Return the window on which most other specifications give other bytes; the first one of equals."""
    reference = quantize(x, spec, direction)
    counts = np.zeros((x.shape[0] // height, x.shape[1] // width), int)
    for other in _others(spec):
        got = quantize(x, other, direction)
        different = np.repeat(got.data != reference.data, 2, axis=1)
        different |= np.repeat(got.scales != reference.scales, spec.block.columns, axis=1)
        different = different if direction == "row" else different.T
        counts += different.reshape(len(counts), height, -1, width).any(axis=(1, 3))
    row, column = np.unravel_index(int(np.argmax(counts)), counts.shape)
    return int(row) * height, int(column) * width


def _others(spec: Spec) -> list[Spec]:
    """Specifications that a mistake would make of this one."""
    arithmetic = [
        PROFILES[name].arithmetic
        for name in ("torchao.nvfp4_2lvl", "flashinfer.ref_nvfp4", "fouroversix.nvfp4_static_6")
    ]
    changed = [spec.replace(arithmetic=other) for other in arithmetic if spec.four_over_six is None]
    changed.append(spec.replace(element=PROFILES["flashinfer.trace_nvfp4"].element))
    if spec.four_over_six:
        for name, metric, top in (("sequential", "mae", 448), ("halves", "mse", 256), ("rows_by_tree", "max", 256)):
            changed.append(spec.replace(four_over_six=_search(metric, top, name)))
    return changed


def _search(metric: str, top: int, total: str) -> FourOverSix:
    from fp4ref.four_over_six import RULES

    return FourOverSix(metric=Metric(metric), scale_max=top, total=RULES[total])


def _te_test(
    archive: Archive, case: str, x: NDArray[Any], direction: str, rows: tuple[int, int], columns: tuple[int, int]
) -> Json:
    """Return a window of a recorded tensor in one direction."""
    (row, height), (column, width) = rows, columns
    suffix = "" if direction == "row" else "_t"
    data, scales, amax = (archive[f"{case}/{name}{suffix}"] for name in ("codes", "scales", "amax"))
    (first, count), (start, length) = (rows, columns) if direction == "row" else (columns, rows)
    cut = [
        part[first : first + count, _span(part, start, length, x.shape[direction == "row"])] for part in (data, scales)
    ]
    given = amax if amax.size == 1 else amax[first : first + count]
    option, kind, _ = case.split("/")
    return test(
        FLAGS[kind] + ("" if direction == "row" else " ColumnDirection"),
        f"{kind}, amax {float(np.max(given)):.9g}",
        **({"input": f"{option} {kind} {x.dtype.name}"} if height == width else {}),
        **tensor_fields(np.ascontiguousarray(x[row : row + height, column : column + width])),
        **({} if direction == "row" else {"direction": direction}),
        amax=format_words(np.asarray(given, F)),
        expected={"data": format_rows(cut[0]), "scales": format_rows(cut[1])},
    )
