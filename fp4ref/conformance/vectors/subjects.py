"""The subjects of vectors: the golden model's own functions, or a backend through the public API.

A backend has no function that encodes one value or packs one row: such tests reach it through a quantizer whose
probes have a block scale that makes them pass unchanged, and through zero blocks around one that is not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from fp4ref import api, hadamard, multiply, packing, random_source, registry
from fp4ref.arithmetic import RCEIL, TE
from fp4ref.conformance.vectors.files import VectorTest
from fp4ref.conformance.vectors.placing import device_of, fetched, placed, placed_result
from fp4ref.conformance.vectors.products import spec_of
from fp4ref.conformance.vectors.text import Mismatch, mismatched, mismatched_words, parse_words
from fp4ref.errors import Fp4Error
from fp4ref.formats import (
    CUDA_E2M1,
    CUDA_E4M3,
    CUDA_E8M0,
    FORMATS,
    Codec,
    Codes,
    F,
    Floats,
    Format,
    ignoring_float_warnings,
)
from fp4ref.layout import LINEAR, Layout, layout
from fp4ref.model.quantize import quantize as golden_quantize
from fp4ref.quantized import Direction, DirectionData, Quantized
from fp4ref.registry import Call
from fp4ref.spec import Amax, Block, Granularity, Hadamard, Spec
from fp4ref.specs import MXFP4, NVFP4, NVFP4_RHT

BLOCK = Block(1, 16)
ONE_E8M0 = 127


def element_probe(codec: Codec) -> Spec:
    """Encode x as it is, given amax = the largest element, if that magnitude is in every block.

    S_enc is then 448, every scale saturates at 448, and 1 / (448 * fp32(1/448)) is 1.
    """
    return Spec(
        name="element-probe",
        element=codec,
        scale=CUDA_E4M3,
        block=BLOCK,
        global_scale=Granularity.TENSOR,
        arithmetic=TE,
    )


def scale_probe(codec: Codec) -> Spec:
    """Encode the maximum of every block, as it is, as its scale."""
    return Spec(
        name="scale-probe",
        element=CUDA_E2M1,
        scale=codec,
        block=BLOCK,
        global_scale=Granularity.NONE,
        arithmetic=RCEIL,
        element_max=1.0,
        amax=Amax.PROPAGATE_NAN,
    )


def decode_probe(codec: Codec) -> Spec:
    """Decode element codes under E8M0 scales, unchanged under byte 127; or scale codes with elements of E2M1."""
    return Spec(
        name="decode-probe",
        element=codec if codec.format.signed else CUDA_E2M1,
        scale=CUDA_E8M0 if codec.format.signed else codec,
        block=BLOCK,
        global_scale=Granularity.NONE,
        arithmetic=RCEIL,
    )


class ApiSubject:
    """A backend, through the public API."""

    def __init__(self, backend: str) -> None:
        self.name = self.backend = backend

    def reasons(self, test: VectorTest) -> list[str]:
        """Why a test does not apply to the backend, none if it does."""
        if test.operation in {"group_offsets", "row_range"}:
            return ["index arithmetic, no bytes"]
        if test.operation in {"philox", "random_map"}:
            return ["a function that no backend has"]
        backend = registry.backends()[self.backend]
        operations, _ = _needed(test)
        lacking = [f"no operation {name}" for name in operations if name not in backend.operations]
        return lacking or list(dict.fromkeys(reason for call in _asked(test) for reason in backend.unserved(call)))

    def calls(self, test: VectorTest) -> list[Call]:
        """Return the calls that a test will make, as far as they are known; none if the API refuses its arguments."""
        if "error" in test.fields.get("expected", {}) or self.reasons(test):
            return []
        return [replace(call, layout=LINEAR, layout_b=None) for call in _asked(test)]

    def encode(self, codec: Codec, values: Floats, bits: Codes | None) -> Codes:
        """Codes of float32, one block for each value."""
        x = np.zeros((values.size, BLOCK.columns), F)
        x[:, 0] = values
        if not codec.format.signed:
            return np.asarray(self.quantize(x, scale_probe(codec)).scales[:, 0])
        x[:, 1] = codec.format.max
        random_bits = None if bits is None else np.repeat(bits[:, None], BLOCK.columns, axis=1)
        result = self.quantize(x, element_probe(codec), amax=np.array([codec.format.max], F), bits=random_bits)
        return packing.unpack(result.data, BLOCK.columns, codec.format)[:, 0]

    def decode(self, codec: Codec, codes: Codes) -> Floats:
        """Values of codes, one block for each code."""
        whole = np.zeros((codes.size, BLOCK.columns), np.uint8)
        whole[:, 0] = CUDA_E2M1.encode(np.ones(1, F))[0] if not codec.format.signed else codes
        scales = codes[:, None] if not codec.format.signed else np.full((codes.size, 1), ONE_E8M0, np.uint8)
        spec = decode_probe(codec)
        return self._dequantized(spec, packing.pack(whole, spec.element.format), scales, BLOCK.columns)[:, 0]

    def pack(self, codes: Codes, form: Format) -> Codes:
        """Bytes of rows of codes, with a largest magnitude in every block."""
        codec = Codec(format=form, nan=(0, 0))
        return np.asarray(self.quantize(codec.decode(codes), element_probe(codec), amax=np.array([form.max], F)).data)

    def unpack(self, packed: Codes, columns: int, form: Format) -> Codes:
        """Codes of rows of bytes."""
        codec = Codec(format=form, nan=(0, 0))
        scales = np.full((len(packed), -(-columns // BLOCK.columns)), ONE_E8M0, np.uint8)
        return codec.encode(self._dequantized(decode_probe(codec), packed, scales, columns))

    def check_transform(self, values: NDArray[Any], mask: int, expected: str) -> list[Mismatch]:
        """Compare the bytes of the column direction with those of the expected transform.

        Rules: HAD-1, HAD-2, HAD-3, HAD-4.
        """
        spec = NVFP4.replace(name="transform-probe", hadamard=Hadamard(mask))
        got = self.quantize(values.reshape(-1, 1), spec, "column")
        wanted = golden_quantize(parse_words(expected, "bfloat16")[None], NVFP4)
        return mismatched("data", got.data, wanted.data) + mismatched("scales", got.scales, wanted.scales)

    def check_inverse(self, values: NDArray[Any], mask: int, expected: str) -> list[Mismatch]:
        """Nothing: tests of dequantization undo the transform of bytes."""
        return []

    def lay_out(
        self, name: str, rows: int, columns: int, positions: Sequence[Sequence[int]]
    ) -> tuple[tuple[int, ...], list[int], set[int]]:
        """Shape of the scales that a quantizer writes, where distinct ones lie, and which bytes are zero."""
        x = np.zeros((rows, columns * MXFP4.block.columns), F)
        for exponent, (row, column) in enumerate(positions):
            x[row, column * MXFP4.block.columns] = 2.0 ** (exponent + 3)
        scales = np.asarray(self.quantize(x, MXFP4, scale_layout=name).scales)
        order = layout(name)
        flat = (scales if order.pads_compared else np.where(order.valid(rows, columns), scales, 0)).ravel()
        offsets = [int(np.argmax(flat == ONE_E8M0 + 1 + exponent)) for exponent in range(len(positions))]
        return scales.shape, offsets, set(np.flatnonzero(flat == 0).tolist())

    def quantize(
        self,
        x: NDArray[Any],
        spec: Spec,
        direction: Direction = "row",
        scale_layout: str = "linear",
        amax: Floats | None = None,
        bits: Codes | None = None,
    ) -> DirectionData:
        """Bytes of one direction."""
        moved, random = placed(x, self.backend), placed(bits, self.backend)
        q = api.quantize(moved, spec, direction, scale_layout, amax, random, self.backend)
        return q.direction(direction)[0].mapped(fetched)

    def dequantize(self, q: Quantized, to: str, direction: Direction, inverse_hadamard: bool) -> NDArray[Any]:
        """Values of one direction."""
        moved = placed_result(q, self.backend)
        return fetched(api.dequantize(moved, to, direction, inverse_hadamard, self.backend))

    def gemm(
        self, a: Quantized, b: Quantized, mode: multiply.Mode, directions: tuple[Direction, Direction], **more: Any
    ) -> Any:
        """Return the product of two operands."""
        left, right = (placed_result(operand, self.backend) for operand in (a, b))
        moved = {name: placed(v, self.backend) if isinstance(v, np.ndarray) else v for name, v in more.items()}
        return fetched(multiply.gemm(left, right, mode, directions, backend=self.backend, **moved))

    def random_bits(
        self,
        shape: tuple[int, ...],
        direction: Direction,
        seed: int,
        stream: int,
        origin: tuple[int, int],
        whole: tuple[int, int],
    ) -> Codes:
        """Random bytes of a part of a tensor."""
        where = device_of(self.backend)
        return fetched(random_source.random_bits(shape, direction, seed, stream, origin, whole, where, self.backend))

    def _dequantized(self, spec: Spec, data: Codes, scales: Codes, columns: int) -> Floats:
        q = Quantized(spec, (len(data), columns), "float32", LINEAR.name, DirectionData(data, scales, None))
        return self.dequantize(q, "float32", "row", inverse_hadamard=False)


class GoldenSubject(ApiSubject):
    """The golden model: its own functions for what has one; quantize and dequantize with all their checks."""

    def __init__(self) -> None:
        super().__init__("numpy")
        self.name = "golden model"

    def reasons(self, test: VectorTest) -> list[str]:
        """Every test applies."""
        return []

    def encode(self, codec: Codec, values: Floats, bits: Codes | None) -> Codes:
        """Codes of float32."""
        return codec.encode(values, bits)

    def decode(self, codec: Codec, codes: Codes) -> Floats:
        """Values of codes."""
        return codec.decode(codes)

    def pack(self, codes: Codes, form: Format) -> Codes:
        """Bytes of rows of codes."""
        return packing.pack(codes, form)

    def unpack(self, packed: Codes, columns: int, form: Format) -> Codes:
        """Codes of rows of bytes."""
        return packing.unpack(packed, columns, form)

    @ignoring_float_warnings
    def check_transform(self, values: NDArray[Any], mask: int, expected: str) -> list[Mismatch]:
        """Return the transform of a group. Rules: HAD-1, HAD-2, HAD-3."""
        got = hadamard.transform(values.astype(F), mask).astype(ml_dtypes.bfloat16)
        return mismatched_words("transformed", got, expected)

    @ignoring_float_warnings
    def check_inverse(self, values: NDArray[Any], mask: int, expected: str) -> list[Mismatch]:
        """Return the inverse of a transform. Rules: HAD-6."""
        return mismatched_words("restored", hadamard.inverse(values.astype(F), mask), expected)

    def lay_out(
        self, name: str, rows: int, columns: int, positions: Sequence[Sequence[int]]
    ) -> tuple[tuple[int, ...], list[int], set[int]]:
        """Return the padded shape, offsets of positions and of the padding. Rules: LAY-1, LAY-2, LAY-3, LAY-4."""
        order = layout(name)
        offsets = [order.offset(row, column, columns, rows) for row, column in positions]
        return order.padded_shape(rows, columns), offsets, set(np.flatnonzero(~order.valid(rows, columns)).tolist())


def _asked(test: VectorTest) -> list[Call]:
    """Return the calls of a test, without shapes; none if it needs no specification, or names what cannot exist."""
    operations, spec = _needed(test)
    fields, to = test.fields, test.fields.get("to", "float32")
    try:
        if test.operation == "gemm":
            a, b = fields["a"], fields["b"]
            form, form_b = _layout_of(a), _layout_of(b)
            return [Call(operations[0], spec_of(a), to=to, layout=form, spec_b=spec_of(b), layout_b=form_b)]
        if spec is None:
            return []
        form = layout(test.group["layout"]) if test.operation == "layout" else _layout_of(fields)
    except Fp4Error:
        return []
    direction: Direction = fields.get("direction", "row")
    source = {"quantize": test.input, "dequantize": fields}.get(test.operation, {}).get("dtype", "float32")
    if test.operation == "hadamard":
        direction, source = "column", "bfloat16"
    return [Call(name, spec, source, direction, to, layout=form) for name in operations]


def _layout_of(fields: Mapping[str, Any]) -> Layout:
    return layout(fields.get("scale_layout", LINEAR.name))


def _needed(test: VectorTest) -> tuple[tuple[str, ...], Spec | None]:
    """Operations and specification of a backend that a test makes use of."""
    if test.operation == "pack":
        codec = Codec(format=FORMATS[test.group["format"]], nan=(0, 0))
        return ("quantize", "dequantize"), element_probe(codec)
    if test.operation == "encode":
        return ("quantize",), (element_probe if test.codec.format.signed else scale_probe)(test.codec)
    if test.operation == "decode":
        return ("dequantize",), decode_probe(test.codec)
    if test.operation in {"hadamard", "layout"}:
        return ("quantize",), NVFP4_RHT if test.operation == "hadamard" else MXFP4
    name = f"gemm_{test.fields['mode']}" if test.operation == "gemm" else test.operation
    try:
        return (name,), None if test.operation in {"gemm", "random_bits"} else test.spec
    except Fp4Error:  # a specification that cannot exist needs no backend
        return (), None
