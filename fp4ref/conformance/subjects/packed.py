"""The border of a kernel's packing: its bytes from and to the canonical packing, in which everything else is judged."""

from __future__ import annotations

from math import lcm

import numpy as np
from numpy.typing import NDArray

from fp4ref.kernels import Declaration
from fp4ref.layout import Layout
from fp4ref.packings import CANONICAL, CANONICAL_OF, HIGH_FIRST, packed_shape, packing, repack
from fp4ref.spec import Spec

Bytes = NDArray[np.uint8]


def packing_of(spec: Spec, declared: Declaration) -> Layout:
    """Return the packing that a kernel declares, for the codes of a specification.

    Errors: LayoutError if its units are of another width.

    Rules: CNF-8, PACK-7.
    """
    bits = spec.element.format.bits
    if declared.nibble_order == "high" and bits == HIGH_FIRST.unit:
        return HIGH_FIRST
    return packing(declared.packing, bits)


def multiples(spec: Spec, declared: Declaration) -> tuple[int, int]:
    """Return the multiples of rows and columns that a kernel takes, by its declaration and by its packing."""
    refused = (axis.multiple if axis.refused else 1 for axis in packing_of(spec, declared).axes)
    rows, columns = map(lcm, declared.multiple, refused)
    return rows, columns


def data_shape(shape: tuple[int, int], spec: Spec, declared: Declaration) -> tuple[int, int]:
    """Return the shape of the packed bytes of a matrix in the declared packing."""
    return packed_shape(packing_of(spec, declared), *shape)


def as_declared(data: Bytes, shape: tuple[int, int], spec: Spec, declared: Declaration) -> Bytes:
    """Return canonical bytes of a matrix in the declared packing. Rules: PACK-7."""
    form = packing_of(spec, declared)
    return data if form in CANONICAL_OF.values() else repack(data, *shape, CANONICAL, form)


def as_canonical(data: Bytes, shape: tuple[int, int], spec: Spec, declared: Declaration) -> Bytes:
    """Return bytes of a matrix in the declared packing as canonical ones. Rules: PACK-7."""
    form = packing_of(spec, declared)
    return data if form in CANONICAL_OF.values() else repack(data, *shape, form)


def padding_fault(data: Bytes, shape: tuple[int, int], spec: Spec, declared: Declaration) -> str:
    """Return which bytes hold other padding than the declared packing states; empty if none does.

    Spare bits of a canonical packing are compared with its codes.

    Rules: LAY-15, PACK-2, PACK-7.
    """
    form = packing_of(spec, declared)
    if form in CANONICAL_OF.values() or not form.pads_compared:
        return ""
    got = np.asarray(data).reshape(-1)
    needed = repack(repack(got, *shape, form), *shape, CANONICAL, form).reshape(-1)
    wrong = np.flatnonzero(got != needed)
    if not wrong.size:
        return ""
    first = wrong[0]
    count = f"{wrong.size} byte{'s' if wrong.size > 1 else ''} of data"
    return f"wrong padding of {form.name} in {count}, first in byte {first}: {got[first]:02x}, need {needed[first]:02x}"
