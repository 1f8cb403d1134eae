"""A claim about products on trial: the bytes that a kernel is given are those of the directions that it declares."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fp4ref.catalogue import resolve
from fp4ref.conformance.families.products.case import GemmCase
from fp4ref.conformance.families.products.cases import cases
from fp4ref.conformance.subjects.products import job_of
from fp4ref.conformance.subjects.turned_products import fitted
from fp4ref.kernels import Declaration
from fp4ref.proof import whole
from fp4ref.proof.claims import ClaimSubject, Method, ProofClaim, Replayed, Tell
from fp4ref.proof.trial_operands import SPECS
from fp4ref.quantized import DIRECTIONS

Given = dict[str, NDArray[Any] | int]
FAMILIES = ("dense", "ragged")
CASES = 640  # of all kernels
LAYOUTS = ("linear", "tiled_128x4")
DATA, SCALES = ("data", "scales")
OF_DIRECTION = tuple(f"{direction}_{part}" for direction in DIRECTIONS for part in (DATA, SCALES))
INPUTS = (*("rows", "columns", "depth"), *(f"{name}_{part}" for name in "ab" for part in (DATA, SCALES, *OF_DIRECTION)))


def _kernels() -> list[tuple[str, Declaration]]:
    """Return specifications, and kernels of all directions, layouts of scales and ways of storing columns."""
    return [
        (
            spec,
            Declaration(
                operation="gemm",
                inputs=INPUTS,
                outputs=("values",),
                directions=pair,
                scale_layout=layout,
                transposed=turned,
            ),
        )
        for spec, pair, layout, turned in product(SPECS, product(DIRECTIONS, DIRECTIONS), LAYOUTS, (False, True))
        if not turned or resolve(spec).element.format.bits == 8
    ]


def _stored(array: NDArray[np.uint8], part: str, layout: str, turned: bool) -> NDArray[np.uint8]:
    """Return bytes [rows, ...] of a direction as a kernel is to have them: in one dimension if they are tiled."""
    if part == SCALES and layout != "linear":
        return whole.tiled(array)
    columns: NDArray[np.uint8] = array.T
    return columns if turned else array


def _moved(array: NDArray[np.uint8], shape: tuple[int, int]) -> NDArray[np.uint8]:
    """Return the bytes of rows, the last one first, again and again in another shape."""
    start = array.size - array.shape[1]
    moved: NDArray[np.uint8] = array.ravel()[(start + np.arange(shape[0] * shape[1])) % array.size].reshape(shape)
    return moved


def _wrong(case: GemmCase, declared: Declaration, job: Given) -> str:
    """Return which argument is not that of the rule, empty if there is none. Rules: GEM-16."""
    m, n, depth = case.shape
    if (job["rows"], job["columns"], job["depth"]) != (m, n, depth):
        return f"rows, columns, depth are {job['rows']}, {job['columns']}, {job['depth']}"
    for name, q, used in zip("ab", (case.a, case.b), declared.directions, strict=True):
        assert q.row is not None
        rows, bits = q.matrix[0], q.spec.element.format.bits
        shapes = {DATA: (depth, -(-rows * bits // 8)), SCALES: (depth, -(-rows // q.spec.block.columns))}
        for part, own in ((DATA, q.row.data), (SCALES, q.row.scales)):
            for direction in DIRECTIONS:
                turned = declared.transposed and direction == "column"
                linear = own if direction == used else _moved(own, shapes[part])
                want = _stored(linear, part, declared.scale_layout, turned)
                place = _stored(np.ones_like(linear), part, declared.scale_layout, turned) == 1  # no padding
                names = [f"{name}_{direction}_{part}"] + [f"{name}_{part}"] * (direction == used)
                for each in names:
                    got = np.asarray(job[each])
                    got = got.ravel() if want.ndim == 1 else got
                    if got.shape != want.shape or not np.array_equal(got[place], want[place]):
                        return f"{each} {list(got.shape)} is not that of the {direction} direction"
    return ""


def _found(case: GemmCase, job: Given, name: str) -> bool:
    """Return True if a kernel that reads the other direction of an operand reads other bytes."""
    used, other = (np.asarray(job[f"{name}_{direction}_{DATA}"]).ravel() for direction in DIRECTIONS)
    size = min(used.size, other.size)
    return not np.array_equal(used[:size], other[:size])


def given(tell: Tell) -> Replayed:
    """Give every kernel its cases, and compare all bytes with the rows of the case."""
    kernels, count = _kernels(), 0
    made = {spec: [*cases(resolve(spec), FAMILIES)] for spec in SPECS}
    for done, (spec, declared) in enumerate(kernels):
        told = {"a": False, "b": False}
        said = f"{spec}, {' and '.join(declared.directions)}, {declared.scale_layout}, turned {declared.transposed}"
        for case in made[spec]:
            job = job_of(fitted(case, declared), declared).arguments
            count += 1
            if wrong := _wrong(case, declared, job):
                return Replayed(count, f"{said}, {case.id}: {wrong}")
            for name in told:
                told[name] |= _found(case, job, name)
        if not all(told.values()):
            return Replayed(count, f"{said}: no case tells the directions of an operand apart")
        tell((done + 1) / len(kernels))
    return Replayed(count)


def claims() -> Iterator[ProofClaim]:
    """Yield the claim about given directions."""
    yield ProofClaim(
        name="directions-given/golden",
        rules=("GEM-16",),
        method=Method.ARGUMENT,
        subject=ClaimSubject.GOLDEN,
        statement="A kernel is given the bytes of the directions that it declares; the other ones are those of rows "
        "moved by one.",
        domain=f"{len(SPECS)} specifications, all pairs of directions, two layouts of scales, 8-bit columns both ways",
        size=CASES,
        decide=given,
        covers=(
            "fp4ref.conformance.subjects.products:job_of",
            "fp4ref.conformance.subjects.turned_products:fitted",
        ),
        reduction="bytes are moved whole, so matrices of which no two rows are alike decide which bytes are moved",
    )
