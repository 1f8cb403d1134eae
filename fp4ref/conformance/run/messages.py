"""Messages between the kit and a kernel's process: JSON, then the bytes of its arrays.

A value is a number, a text, None, or a list of a tag and parts: `["Output", ["tuple", 4, 8], "uint8", null, null]`.
Only the records that are listed here are made of a message; a kernel's process can ask for no other code.
"""

from __future__ import annotations

import json
import struct
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from fp4ref.conformance.run.huge_trial import Fold, HugeTrial
from fp4ref.conformance.run.sweep_trial import Sweep, SweepPart, SweepSteps
from fp4ref.conformance.subjects.guards import numpy_dtype
from fp4ref.conformance.subjects.outcomes import ErrorParts, Finding, FindingKind, Outcome
from fp4ref.conformance.subjects.subject import Job, Output
from fp4ref.quantized import DirectionData

HEAD = struct.Struct("<Q")
CALLS: tuple[type, ...] = (Job, Output, HugeTrial, Fold, Sweep, SweepPart, SweepSteps)
ANSWERS: tuple[type, ...] = (Outcome, DirectionData, Finding, FindingKind, ErrorParts)
RECORDS = {record.__name__: record for record in (*CALLS, *ANSWERS)}
Message = dict[str, Any]


def send(stream: IO[bytes], message: Message) -> None:
    """Write one message."""
    arrays: list[NDArray[Any]] = []
    text = json.dumps({"value": _tagged(message, arrays), "arrays": [[a.dtype.name, a.shape] for a in arrays]}).encode()
    stream.write(HEAD.pack(len(text)) + text)
    for array in arrays:
        stream.write(np.ascontiguousarray(array).tobytes())
    stream.flush()


def receive(stream: IO[bytes]) -> Message | None:
    """Read one message; None at the end of the stream."""
    head = stream.read(HEAD.size)
    if len(head) < HEAD.size:
        return None
    record = json.loads(_exactly(stream, HEAD.unpack(head)[0]))
    arrays = []
    for dtype, shape in record["arrays"]:
        kind = numpy_dtype(dtype)
        count = int(np.prod(shape, dtype=np.int64)) * kind.itemsize
        arrays.append(np.frombuffer(bytearray(_exactly(stream, count)), kind).reshape(shape))
    return dict(_value(record["value"], arrays))


def _exactly(stream: IO[bytes], count: int) -> bytes:
    data = stream.read(count)
    if len(data) < count:
        raise EOFError
    return data


def _tagged(value: Any, arrays: list[NDArray[Any]]) -> Any:
    """Return a value as JSON data; its arrays are put aside, and are told by their number."""
    if isinstance(value, np.ndarray):
        arrays.append(value)
        return ["array", len(arrays) - 1]
    tag, parts = type(value).__name__, value
    if isinstance(value, FindingKind):
        return [tag, value.value]
    if isinstance(value, dict):
        tag, parts = "dict", value.items()
    elif tag in RECORDS and not isinstance(value, tuple):
        parts = vars(value).values()
    elif not isinstance(value, list | tuple):
        return value
    return [tag, *(_tagged(part, arrays) for part in parts)]


def _value(data: Any, arrays: list[NDArray[Any]]) -> Any:
    """Return the value of JSON data."""
    if not isinstance(data, list):
        return data
    tag, *parts = data[0], *(_value(part, arrays) for part in data[1:])
    match tag:
        case "array":
            return arrays[parts[0]]
        case "dict":
            return dict(parts)
        case "list" | "tuple":
            return parts if tag == "list" else tuple(parts)
        case _:
            return RECORDS[tag](*parts)
