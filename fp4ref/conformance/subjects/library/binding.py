"""Calling a C function as a kernel: the arguments of its signature from the arrays that a case gives."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from fp4ref import arrays
from fp4ref.conformance.subjects.failures import Wrong
from fp4ref.conformance.subjects.guards import FENCE, Arrays, Guarded, counted, host_bytes
from fp4ref.conformance.subjects.library.arguments import RECORDS, Argument
from fp4ref.conformance.subjects.library.expression import ExpressionError, evaluated, parsed
from fp4ref.conformance.subjects.library.signature import Signature
from fp4ref.conformance.subjects.outcomes import FindingKind
from fp4ref.errors import DomainError
from fp4ref.formats import E2M1, E4M3
from fp4ref.kernels import Declaration
from fp4ref.layout import layout
from fp4ref.packings import packed_shape, packing
from fp4ref.spec import Granularity

TYPES: dict[str, Any] = {
    "bool": ctypes.c_bool,
    "int8": ctypes.c_int8,
    "uint8": ctypes.c_uint8,
    "int16": ctypes.c_int16,
    "uint16": ctypes.c_uint16,
    "int32": ctypes.c_int32,
    "uint32": ctypes.c_uint32,
    "int64": ctypes.c_int64,
    "uint64": ctypes.c_uint64,
    "size_t": ctypes.c_size_t,
    "float": ctypes.c_float,
    "double": ctypes.c_double,
}
FORM_OF_BITS = {4: E2M1, 8: E4M3}  # a format of the width of an element; its values do not matter here


def bind(target: str, signature: Signature, facts: Mapping[str, Any], declared: Declaration) -> Callable[..., Any]:
    """Load a function and return it as a kernel that fills the buffers `out`.

    target: path of the library, a colon, name of the function. declared: the declaration under which it is called.

    Errors: DomainError for a function that the library does not export; OSError for a library that does not load.

    Rules: CNF-16.
    """
    place, _, name = target.rpartition(":")
    _require_device(declared.device)
    library = ctypes.CDLL(place)
    try:
        function = library[name]
    except AttributeError:
        raise DomainError("library", f"no function {name} in {place}", "the name of one it exports", "CNF-16") from None
    function.restype = None if signature.returns == "void" else TYPES[signature.returns]
    return _Bound(function, signature, facts, declared)


def _require_device(device: str) -> None:
    """Start the driver before a library is loaded that may use it."""
    if device == "cpu":
        return
    import torch

    try:
        torch.empty(1, device=device)
    except (AssertionError, RuntimeError) as error:
        got = f"device {device}: {str(error).splitlines()[0]}"
        raise DomainError("library", got, "a CUDA device, or --device cpu", "CNF-16") from None


class _Bound:
    """A C function under a signature."""

    def __init__(self, function: Any, signature: Signature, facts: Mapping[str, Any], declared: Declaration) -> None:
        self._function, self._signature, self._facts, self._declared = function, signature, facts, declared
        self._arrays = Arrays(declared.arrays, declared.device)
        self.takes_stream = any((each.kind, each.value) == ("handle", "stream") for each in signature.arguments)

    def __call__(self, *inputs: Any, out: tuple[Any, ...]) -> None:
        """Call the function once.

        Errors: Wrong for a status that means failure, for a size that has no value, and for bytes outside a buffer.

        Rules: CNF-16, CNF-100.
        """
        given = dict(zip(self._declared.inputs, inputs, strict=True))
        call = _Call(self._signature, self._declared, self._facts, self._arrays, given, out)
        try:
            passed = [call.argument(argument) for argument in self._signature.arguments]
        except DomainError as error:
            raise Wrong(FindingKind.RAISED, str(error)) from None
        status = self._function(*passed)
        if self._signature.returns != "void" and status != self._signature.success:
            raise Wrong(FindingKind.RAISED, f"the function returned {status}, success is {self._signature.success}")
        call.finish()


class _Call:
    """A call: the values of arguments, and the buffers that the kit does not hold itself."""

    def __init__(
        self,
        signature: Signature,
        declared: Declaration,
        facts: Mapping[str, Any],
        library: Arrays,
        given: Mapping[str, Any],
        out: tuple[Any, ...],
    ) -> None:
        self._signature, self._declared, self._facts = signature, declared, facts
        self._arrays, self._given = library, given
        expected = [name for name in declared.outputs if name != "amax" or facts["amax"] != Granularity.NONE]
        self._out = dict(zip(expected, out, strict=True))
        self._form = FORM_OF_BITS[facts["bits"]]
        self._sizes = self._measured()
        self._scratch: dict[str, Guarded] = {}
        self._stored: Guarded | None = None

    def argument(self, argument: Argument) -> Any:
        """Return the ctypes value of an argument: a pointer, a number of its type, or a handle.

        Rules: CNF-16, CNF-99.
        """
        by_kind: dict[str, Callable[[Argument], Any]] = {
            "input": lambda each: self._pointer(self._input(each.value)),
            "output": lambda each: self._pointer(self._output(each)),
            "number": lambda each: _typed(each.type, self._number(each.value)),
            "size": lambda each: _typed(each.type, self._size(each.value)),
            "constant": lambda each: _typed(each.type, each.value),
            "dtype": lambda each: _typed(each.type, self._by_dtype(each.value)),
            "workspace": lambda each: self._pointer(self._workspace(each.value)),
            "handle": lambda each: ctypes.c_void_p(self._stream() if each.value == "stream" else None),
        }
        return by_kind[argument.kind](argument)

    def finish(self) -> None:
        """Look at the buffers of this call, and hand records on as data and scales.

        Without such buffers there is nothing to wait for, so that calls on several streams can run at once.
        """
        if not self._scratch and self._stored is None:
            return
        self._arrays.finish()
        for name, buffer in (*self._scratch.items(), *([(RECORDS, self._stored)] if self._stored else [])):
            if where := buffer.outside():
                raise Wrong(FindingKind.OUTSIDE, f"{name}: {where}")
        if self._stored is None:
            return
        if "data" not in self._out:
            if count := self._stored.changed():
                raise Wrong(FindingKind.MUTATED, f"{RECORDS}: {counted(count)} changed")
            return
        assert self._signature.records is not None
        stored = host_bytes(self._stored.array).reshape(-1, self._signature.records.bytes)
        rows, block = self._sizes["rows"], self._facts["block"]
        if not len(stored):
            return
        for name, part in zip(
            ("data", "scales"), self._signature.records.unpack(stored, rows, block, self._form), strict=True
        ):
            self._arrays.write(self._out[name], part)

    def _input(self, name: str) -> Any:
        if name != RECORDS:
            return self._given[name]
        return self._held(host_bytes(self._given["data"]), host_bytes(self._given["scales"]))

    def _number(self, name: str) -> float:
        """Return an input of one value."""
        value = self._given[name]
        return value if isinstance(value, int) else float(host_bytes(value).view(np.float32)[0])

    def _workspace(self, text: str) -> Any:
        return self._guarded(f"workspace {text} #{len(self._scratch)}", (self._size(text),))

    def _output(self, argument: Argument) -> Any:
        """Return the buffer of a result; None where there is none."""
        if argument.direction not in {"", self._declared.direction}:
            return self._other_direction(argument.value)
        if argument.value == RECORDS:
            data, scales = (host_bytes(self._out[name]) for name in ("data", "scales"))
            return self._held(data, scales)
        return self._out.get(argument.value)

    def _held(self, data: Any, scales: Any) -> Any:
        """Return a guarded buffer of records that holds what their parts hold now."""
        assert self._signature.records is not None
        stored = self._signature.records.pack(data, scales, self._facts["block"], self._form)
        self._stored = Guarded.holding(self._arrays, stored, self._declared.alignment)
        return self._stored.array

    def _other_direction(self, name: str) -> Any:
        """Return a buffer for a result that is not judged in this run."""
        rows, columns = self._sizes["columns"], self._sizes["rows"]
        shapes = {
            "data": self._packed(rows, columns),
            "scales": layout(self._declared.scale_layout).padded_shape(rows, -(-columns // self._facts["block"])),
            "amax": {Granularity.TENSOR: (4,), Granularity.ROW: (4 * rows,)}.get(self._facts["amax"]),
        }
        shape = shapes[name]
        return None if shape is None else self._guarded(f"{name} of the other direction", shape)

    def _packed(self, rows: int, columns: int) -> tuple[int, int]:
        return packed_shape(packing(self._declared.packing, self._facts["bits"]), rows, columns)

    def _guarded(self, name: str, shape: tuple[int, ...]) -> Any:
        self._scratch[name] = Guarded(self._arrays, "uint8", shape, self._declared.alignment, FENCE)
        return self._scratch[name].array

    def _pointer(self, array: Any) -> ctypes.c_void_p:
        return ctypes.c_void_p(None if array is None else self._arrays.address(array))

    def _size(self, text: str) -> int:
        try:
            return evaluated(parsed(text, self._sizes), self._sizes)
        except ExpressionError as error:
            raise DomainError("signature", str(error), "a size of at least 0", "CNF-16") from None

    def _by_dtype(self, numbers: Mapping[str, int]) -> int:
        name = arrays.dtype_name(self._given["x"]) if "x" in self._given else self._declared.to
        if name not in numbers:
            raise DomainError("signature", f"no number for {name}", f"dtypes of {', '.join(numbers)}", "CNF-16")
        return numbers[name]

    def _stream(self) -> int | None:
        """Return the current stream of the device; a null pointer on the CPU."""
        if self._declared.device == "cpu":
            return None
        import torch

        return int(torch.cuda.current_stream(self._declared.device).cuda_stream)

    def _measured(self) -> dict[str, int]:
        """Return the sizes that expressions name."""
        x, operation, block = self._given.get("x"), self._declared.operation, self._facts["block"]
        shape = (1, 1) if x is None else _matrix(x)
        rows, columns = (self._given.get(name, size) for name, size in zip(("rows", "columns"), shape, strict=True))
        across = self._given.get("depth", columns)
        blocks = columns if operation == "to_layout" else -(-across // block)
        found = {"rows": rows, "columns": columns, "blocks": blocks, "elements": rows * columns}
        found |= {"data_columns": self._packed(rows, across)[1], "depth": across}
        found |= {"x_rows": shape[0], "x_columns": shape[1], "x_stride": _stride(x, shape[1])}
        if operation != "gemm":
            padded = layout(self._declared.scale_layout).padded_shape(rows, blocks)
            found |= dict(zip(("scale_rows", "scale_columns"), padded, strict=True))
        return found | {"multiprocessors": self._multiprocessors()}

    def _multiprocessors(self) -> int:
        if self._declared.device == "cpu":
            return 1
        import torch

        return int(torch.cuda.get_device_properties(self._declared.device).multi_processor_count)


def _matrix(x: Any) -> tuple[int, int]:
    """Return the rows and columns of a tensor, its leading dimensions taken as one."""
    *leading, columns = x.shape or (1,)
    rows = 1
    for size in leading:
        rows *= size
    return rows, columns


def _stride(x: Any, columns: int) -> int:
    """Return how many elements one row of x starts after the one before."""
    if x is None or len(x.shape) < 2:
        return columns
    return int(x.strides[-2] // x.itemsize if isinstance(x, np.ndarray) else x.stride(-2))


def _typed(name: str, value: float) -> Any:
    """Return a number as a C value; an integer that does not fit is an error."""
    kind = TYPES[name]
    made = kind(value)
    if isinstance(value, int) and name not in {"float", "double"} and int(made.value) != int(value):
        raise DomainError("signature", f"{value} as {name}", "a number that fits", "CNF-16")
    return made
