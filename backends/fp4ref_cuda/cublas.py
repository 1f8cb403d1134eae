"""Products of bfloat16 matrices by NVIDIA's cuBLASLt, which torch brings: a factor and a bias in the same launch.

Sums are float32, also those of a split contraction. Numbers in capitals are the enumerators of the library's header.
"""

from __future__ import annotations

import ctypes
import sys
import threading
import weakref
from functools import lru_cache
from typing import Any, NamedTuple

from fp4ref.errors import BackendError
from fp4ref_cuda.buffers import ALIGNMENT, Library
from fp4ref_cuda.launch import capability, enter
from fp4ref_cuda.recording import Start
from fp4ref_cuda.words import arguments_at

R_32F, R_16BF, COMPUTE_32F = 0, 14, 68  # cudaDataType_t, cublasComputeType_t
POINTER_MODE, TRANSPOSED_A, TRANSPOSED_B, EPILOGUE, BIAS_POINTER = 2, 3, 4, 7, 8  # cublasLtMatmulDescAttributes_t
DEVICE_POINTERS, ADDS_BIAS = 1, 4
MOST_WORKSPACE, REDUCTION_SCHEMES, ALIGNMENTS = 1, 3, (5, 6, 7, 8)  # cublasLtMatmulPreferenceAttributes_t
REDUCED_IN_FLOAT32 = 2
WORKSPACE = 32 << 20  # bytes, at most
NOT_SUPPORTED = 15
# Where the library's kernels were seen to scale and to add a bias in float32, and to round once. For rows that begin at
# other addresses it has kernels that round before they add the bias.
VECTOR = 8  # elements of 16 bytes
EXECUTED = {(9, 0)}  # compute capabilities


class MatrixProduct(NamedTuple):
    """A product of the library, ready to start.

    start: its arguments are the addresses of left, right, out, factor, bias and workspace. workspace: bytes.
    """

    start: Start
    workspace: int


class _Description(ctypes.c_void_p):
    """A description that the library made, of a product, a matrix or a search; destroyed with its last reference."""


class _Found(ctypes.Structure):
    """An algorithm that the library's search found (cublasLtMatmulHeuristicResult_t)."""

    _fields_ = (
        ("algorithm", ctypes.c_uint64 * 8),
        ("workspace", ctypes.c_size_t),
        ("state", ctypes.c_int),
        ("waves", ctypes.c_float),
        ("reserved", ctypes.c_int * 4),
    )


@lru_cache
def _library() -> Any:
    """Return the library of torch's version of CUDA, loaded; None without one."""
    import torch

    major = str(torch.version.cuda).split(".", maxsplit=1)[0]
    name = f"cublasLt64_{major}.dll" if sys.platform == "win32" else f"libcublasLt.so.{major}"
    try:
        return ctypes.CDLL(name)
    except OSError:
        return None


def _call(function: str, *arguments: Any) -> None:
    status = getattr(_library(), function)(*arguments)
    if status:
        raise BackendError(f"cuda: {function}", f"status {status}", rule="CNF-5")


@lru_cache
def _handle(library: Library) -> ctypes.c_void_p:
    handle = ctypes.c_void_p()
    enter(library)
    _call("cublasLtCreate", ctypes.byref(handle))
    return handle


def _created(kind: str, *arguments: Any) -> _Description:
    made = _Description()
    _call(f"cublasLt{kind}Create", ctypes.byref(made), *arguments)
    weakref.finalize(made, _call, f"cublasLt{kind}Destroy", ctypes.c_void_p(made.value)).atexit = False
    return made


def _set(function: str, of: _Description, attribute: int, value: Any) -> None:
    _call(function, of, attribute, ctypes.byref(value), ctypes.c_size_t(ctypes.sizeof(value)))


def _layout(rows: int, columns: int, kind: int = R_16BF) -> _Description:
    """Return the description of a matrix that lies row after row: to the library, its transpose."""
    sizes = ctypes.c_uint64(columns), ctypes.c_uint64(rows), ctypes.c_int64(columns)
    return _created("MatrixLayout", kind, *sizes)


@lru_cache(maxsize=4096)
def product(
    library: Library,
    sizes: tuple[int, int, int],
    transposed: tuple[bool, bool],
    alignments: tuple[int, int, int],
    has_bias: bool,
    has_factor: bool,
    sums: bool = False,
) -> MatrixProduct | None:
    """Return a product left [rows, depth] @ right [columns, depth]^T of matrices without gaps.

    Returns None where the library has none, or none that was seen to round once.

    sizes: rows, columns, depth. transposed: what is stored of left, and of right, is the transpose. alignments: of
    left, right and out, bytes. has_factor: two float32 on the device: the factor, and 0. The result and a bias
    [columns] are bfloat16; sums: the result is float32.
    """
    if _library() is None or not all(sizes) or any(size % VECTOR for size in sizes):
        return None
    if capability(library.ordinal) not in EXECUTED:
        return None
    rows, columns, depth = sizes
    handle, wanted = _handle(library), _created("MatmulDesc", COMPUTE_32F, R_32F)
    # The library's matrices lie column after column: it multiplies right by left^T, which is the result's transpose.
    write = "cublasLtMatmulDescSetAttribute"
    for attribute, value in (
        (TRANSPOSED_A, not transposed[1]),
        (TRANSPOSED_B, transposed[0]),
        (POINTER_MODE, DEVICE_POINTERS if has_factor else 0),
        *(((EPILOGUE, ADDS_BIAS),) if has_bias else ()),
    ):
        _set(write, wanted, attribute, ctypes.c_int32(value))
    if has_bias:
        _set(write, wanted, BIAS_POINTER, ctypes.c_uint64(ALIGNMENT))  # the search reads how it is aligned
    left = _layout(depth, rows) if transposed[0] else _layout(rows, depth)
    right = _layout(depth, columns) if transposed[1] else _layout(columns, depth)
    out = _layout(rows, columns, R_32F if sums else R_16BF)
    found = _search(handle, wanted, (right, left, out), (alignments[1], alignments[0], alignments[2], alignments[2]))
    if found is None:
        return None
    multiply = _library().cublasLtMatmul
    multiply.argtypes = [*[ctypes.c_void_p] * 14, ctypes.c_size_t, ctypes.c_void_p]
    workspace, lock = int(found.workspace), threading.Lock()
    plain = (ctypes.c_float * 2)(1, 0)  # the factor, and that of what is not added
    algorithm, bias_at = ctypes.byref(found), ctypes.c_uint64(ALIGNMENT)

    def start(stream: int, at: int) -> None:
        a, b, target, factor, bias, space = arguments_at(at)
        alpha = factor or ctypes.addressof(plain)
        with lock:  # the description holds the bias
            if has_bias and bias != bias_at.value:
                bias_at.value = bias
                _set(write, wanted, BIAS_POINTER, bias_at)
            result = target, out, target, out
            numbers = alpha, b, right, a, left, alpha + 4
            status = multiply(handle, wanted, *numbers, *result, algorithm, space, workspace, stream)
        if status:
            raise BackendError("cuda: cublasLtMatmul", f"status {status}", rule="CNF-5")

    return MatrixProduct(start, workspace)


def _search(
    handle: ctypes.c_void_p,
    wanted: _Description,
    layouts: tuple[_Description, _Description, _Description],
    alignments: tuple[int, int, int, int],
) -> _Found | None:
    """Return the algorithm that the library deems the fastest; None if it has none for such matrices."""
    limits = _created("MatmulPreference")
    write = "cublasLtMatmulPreferenceSetAttribute"
    _set(write, limits, MOST_WORKSPACE, ctypes.c_uint64(WORKSPACE))
    _set(write, limits, REDUCTION_SCHEMES, ctypes.c_uint32(REDUCED_IN_FLOAT32))
    for attribute, value in zip(ALIGNMENTS, alignments, strict=True):
        _set(write, limits, attribute, ctypes.c_uint32(value))
    a, b, out = layouts
    found, count = _Found(), ctypes.c_int()
    status = _library().cublasLtMatmulAlgoGetHeuristic(
        handle, wanted, a, b, out, out, limits, 1, ctypes.byref(found), ctypes.byref(count)
    )
    if status not in {0, NOT_SUPPORTED}:
        raise BackendError("cuda: cublasLtMatmulAlgoGetHeuristic", f"status {status}", rule="CNF-5")
    return None if status or not count.value or found.state else found
