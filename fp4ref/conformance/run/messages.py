"""Messages between the kit and a kernel's process: JSON, then the bytes of its arrays."""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from fp4ref.conformance.subjects.guards import numpy_dtype
from fp4ref.conformance.subjects.outcomes import Finding, Outcome
from fp4ref.conformance.subjects.subject import Job, Output
from fp4ref.quantized import DirectionData

HEAD = struct.Struct("<Q")
START = "start of "  # before the name of a buffer whose content is sent along
Arrays = dict[str, NDArray[Any]]
Message = tuple[dict[str, Any], Arrays]


def send(stream: IO[bytes], record: dict[str, Any], arrays: Arrays | None = None) -> None:
    """Write one message."""
    arrays = arrays or {}
    described = {name: [array.dtype.name, list(array.shape)] for name, array in arrays.items()}
    text = json.dumps({**record, "arrays": described}).encode()
    stream.write(HEAD.pack(len(text)) + text)
    for array in arrays.values():
        stream.write(np.ascontiguousarray(array).tobytes())
    stream.flush()


def receive(stream: IO[bytes]) -> Message | None:
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


def of_jobs(jobs: Sequence[Job]) -> Message:
    """Return the message that asks for calls."""
    records: list[dict[str, Any]] = []
    arrays: Arrays = {}
    for number, job in enumerate(jobs):
        given = {name: value for name, value in job.arguments.items() if isinstance(value, np.ndarray)}
        records.append(
            {
                "order": list(job.arguments),
                "numbers": {name: value for name, value in job.arguments.items() if name not in given},
                "outputs": {name: [output.shape, output.dtype, output.stored] for name, output in job.outputs.items()},
            }
        )
        starts = {f"{START}{name}": output.start for name, output in job.outputs.items() if output.start is not None}
        arrays |= {f"{number} {name}": array for name, array in (given | starts).items()}
    return {"jobs": records}, arrays


def jobs_of(message: Message) -> list[Job]:
    """Return the calls that a message asks for."""
    found = []
    for number, record in enumerate(message[0]["jobs"]):
        arrays = _of(number, message[1])
        arguments = {name: arrays[name] if name in arrays else record["numbers"][name] for name in record["order"]}
        outputs = {
            name: Output(tuple(shape), dtype, arrays.get(f"{START}{name}"), None if stored is None else tuple(stored))
            for name, (shape, dtype, stored) in record["outputs"].items()
        }
        found.append(Job(arguments, outputs))
    return found


def of_outcomes(outcomes: Sequence[Outcome]) -> Message:
    """Return the message that contains the outcomes of calls."""
    findings: list[list[Any] | None] = []
    arrays: Arrays = {}
    for number, outcome in enumerate(outcomes):
        found = outcome.finding
        findings.append(None if found is None else found.parts)
        parts = {} if outcome.data is None else outcome.data._asdict()
        parts |= {} if outcome.values is None else {"values": outcome.values}
        arrays |= {f"{number} {name}": part for name, part in parts.items() if part is not None}
    return {"findings": findings}, arrays


def outcomes_of(message: Message) -> list[Outcome]:
    """Return the outcomes that a message tells."""
    found = []
    for number, said in enumerate(message[0]["findings"]):
        finding = None if said is None else Finding.told(said)
        results = _of(number, message[1])
        if "data" in results:
            data = DirectionData(results["data"], results["scales"], results.get("amax"))
            found.append(Outcome(data, None, finding))
        else:
            found.append(Outcome(None, next(iter(results.values()), None), finding))
    return found


def _of(number: int, arrays: Arrays) -> Arrays:
    start = f"{number} "
    return {name.removeprefix(start): array for name, array in arrays.items() if name.startswith(start)}
