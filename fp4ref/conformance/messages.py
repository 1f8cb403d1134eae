"""Messages between the kit and a kernel's process: JSON, then the bytes of its arrays."""

from __future__ import annotations

import json
import struct
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from fp4ref.conformance.guards import numpy_dtype

HEAD = struct.Struct("<Q")
START = "start of "  # before the name of a buffer whose content is sent along


def send(stream: IO[bytes], record: dict[str, Any], arrays: dict[str, NDArray[Any]] | None = None) -> None:
    """Write one message."""
    arrays = arrays or {}
    described = {name: [array.dtype.name, list(array.shape)] for name, array in arrays.items()}
    text = json.dumps({**record, "arrays": described}).encode()
    stream.write(HEAD.pack(len(text)) + text)
    for array in arrays.values():
        stream.write(np.ascontiguousarray(array).tobytes())
    stream.flush()


def receive(stream: IO[bytes]) -> tuple[dict[str, Any], dict[str, NDArray[Any]]] | None:
    """Read one message; None at the end of the stream."""
    head = stream.read(HEAD.size)
    if len(head) < HEAD.size:
        return None
    record = json.loads(_exactly(stream, HEAD.unpack(head)[0]))
    arrays = {}
    for name, (dtype, shape) in record.pop("arrays").items():
        kind = numpy_dtype(dtype)
        count = int(np.prod(shape, dtype=np.int64)) * kind.itemsize
        arrays[name] = np.frombuffer(bytearray(_exactly(stream, count)), kind).reshape(shape)
    return record, arrays


def _exactly(stream: IO[bytes], count: int) -> bytes:
    data = stream.read(count)
    if len(data) < count:
        raise EOFError
    return data
