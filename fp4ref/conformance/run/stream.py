"""The stream that a foreign program reads cases from and writes results to, through a pipe or files.

All integers are little-endian. A stream is a preamble and records; a record is a head of eight 32-bit integers, and its
payload. The program copies the preamble, answers each case in order, and copies the last head.
"""

from __future__ import annotations

import json
import math
import struct
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from fp4ref import arguments
from fp4ref.arrays import INPUT_DTYPES
from fp4ref.catalogue import PROFILES, resolve
from fp4ref.conformance.families import Case
from fp4ref.conformance.run.run_options import RunOptions
from fp4ref.conformance.run.runner import COUNTING, Run
from fp4ref.conformance.run.timed_input import SilentProgramError, TimedInput
from fp4ref.conformance.subjects.outcomes import Finding, FindingKind, Outcome
from fp4ref.conformance.subjects.packed import data_shape
from fp4ref.conformance.subjects.subject import Declaration, cases_of, golden, reasons
from fp4ref.errors import DomainError, FileError, Fp4Error
from fp4ref.json_text import strict_json
from fp4ref.model.tiles import Matrix
from fp4ref.quantized import Direction, DirectionData, matrix_shape
from fp4ref.spec import SPEC_VERSION, Spec, from_json

MAGIC = b"FP4REF1\n"
HEAD = struct.Struct("<4s7I")
CASE, DONE, END = b"CASE", b"DONE", b"END "
RANDOM_BITS, CALLERS_AMAX, COLUMN = 1, 2, 4  # flags of a case
TEXT_MAX = 1 << 20
UNLIMITED = RunOptions(timeout=math.inf, start_timeout=0.0)
TYPES = {name: number for number, name in enumerate(INPUT_DTYPES)}


@dataclass(frozen=True)
class StreamPlan:
    """The choice of a stream's cases; two programs with the same plan have the same cases.

    Rules: CNF-6, CNF-7.
    """

    spec: Spec
    level: int = 1
    direction: Direction = "row"
    dtypes: tuple[str, ...] = tuple(INPUT_DTYPES)
    families: tuple[str, ...] | None = None
    size: int = 1
    multiple: tuple[int, int] = (1, 1)
    empty: bool = True
    seed: int = 0

    def __post_init__(self) -> None:
        if type(self.seed) is not int or self.seed < 0:
            raise DomainError("plan", f"seed {self.seed!r}", "an integer of 0 or more", "CNF-21")

    def cases(self) -> Iterator[Case]:
        """Return the cases, in order."""
        inputs = ("x", "amax", "random_bits")
        declared = Declaration(
            inputs=inputs, direction=self.direction, dtypes=self.dtypes, multiple=self.multiple, empty=self.empty
        )
        found = cases_of(declared, self.spec, level=self.level, families=self.families, size=self.size, seed=self.seed)
        return (case for case in found if not reasons(case, declared))

    def to_json(self) -> str:
        """Return the plan as the text of a preamble."""
        named = PROFILES.get(self.spec.name) == self.spec
        record = vars(self) | {"spec": self.spec.name if named else json.loads(self.spec.to_json())}
        return json.dumps({"fp4ref": SPEC_VERSION, **record})


def write(stream: IO[bytes], plan: StreamPlan) -> int:
    """Write the preamble, every case and the end; the number of cases.

    Rules: CNF-6, CNF-80, CNF-81, CNF-113, CNF-117, CNF-129.
    """
    text = plan.to_json().encode()
    stream.write(MAGIC + struct.pack("<I", len(text)) + text)
    count = 0
    for count, case in enumerate(plan.cases(), 1):
        payload = _payload(case)
        stream.write(_head(case, count - 1, zlib.crc32(b"".join(payload)), len(payload[1]) // 4))
        stream.writelines(payload)
    stream.write(HEAD.pack(END, count, 0, 0, 0, 0, 0, 0))
    stream.flush()
    return count


def _payload(case: Case) -> list[bytes]:
    """x [rows, columns], amax, random bits."""
    rows, columns = matrix_shape(case.x.shape)
    x = Matrix(case.x, "row")[slice(0, rows), slice(0, columns)]
    amax = golden_amax(case)
    bits = b"" if case.random_bits is None else np.ascontiguousarray(case.random_bits).tobytes()
    return [np.ascontiguousarray(x).tobytes(), b"" if amax is None else amax.tobytes(), bits]


def golden_amax(case: Case) -> NDArray[np.float32] | None:
    """Return the amax that a program is to use: the caller's, or that of x."""
    return case.amax if case.amax is not None else golden(case).amax


def _head(case: Case, index: int, key: int, count: int) -> bytes:
    rows, columns = matrix_shape(case.x.shape)
    flags = RANDOM_BITS * (case.random_bits is not None) + CALLERS_AMAX * (case.amax is not None)
    flags += COLUMN * (case.direction == "column")
    return HEAD.pack(CASE, index, key, TYPES[case.x.dtype.name], rows, columns, count, flags)


class Reader:
    """A stream that knows at which byte it is, and says so when it is refused."""

    def __init__(self, stream: IO[bytes] | TimedInput, name: str) -> None:
        self._stream, self._name = stream, name
        self.offset = 0

    def allow(self, seconds: float) -> None:
        """Let the next bytes take this long, where the stream is a pipe. Rules: CNF-128."""
        if isinstance(self._stream, TimedInput):
            self._stream.allow(seconds)

    def take(self, count: int, what: str) -> bytes:
        """Return the next bytes, all of them."""
        parts, left = [], count
        while left:
            part = self._stream.read(min(left, 1 << 24))
            if not part:
                raise self.refused(f"ends at byte {self.offset + count - left}", what)
            parts.append(part)
            left -= len(part)
        self.offset += count
        return b"".join(parts)

    def more(self) -> bool:
        """Return True if the stream goes on; a program that does not end has nothing more to say."""
        try:
            return bool(self._stream.read(1))
        except SilentProgramError:
            return False

    def refused(self, got: str, needed: str) -> FileError:
        """Return the error that says where a stream is no stream."""
        return FileError(f"read {self._name}", got, needed, "CNF-6")


def is_stream(start: bytes) -> bool:
    """Return True if a file that starts so is a stream."""
    return start.startswith(MAGIC)


def read_plan(reader: Reader, options: RunOptions = UNLIMITED) -> StreamPlan:
    """Return the plan in the preamble of a stream of results.

    Errors: FileError if there is no preamble, or none in the time of the first answer.

    Rules: CNF-6, CNF-45, CNF-127.
    """
    reader.allow(min(options.timeout + options.allowance, max(options.left, 0.0)))
    try:
        return _read_plan(reader)
    except SilentProgramError as error:
        raise reader.refused(str(error), "a preamble, which the program copies from its input") from None


def _read_plan(reader: Reader) -> StreamPlan:
    start = reader.take(len(MAGIC), "a preamble, which the program copies from its input")
    if start != MAGIC:
        raise reader.refused(f"{start!r} at byte 0", f"{MAGIC!r}, the preamble of the cases, copied")
    length = struct.unpack("<I", reader.take(4, "the length of the preamble"))[0]
    if length > TEXT_MAX:
        raise reader.refused(f"a preamble of {length} bytes at byte {len(MAGIC)}", f"at most {TEXT_MAX}")
    text = reader.take(length, "the text of the preamble")
    try:
        return _plan(strict_json(text.decode()))
    except Fp4Error as error:
        raise reader.refused(f"a preamble at byte {len(MAGIC) + 4} with {error.got}", error.needed) from None
    except (ValueError, TypeError, KeyError):
        raise reader.refused(f"a preamble at byte {len(MAGIC) + 4} that is not a plan", "that of the cases") from None


def _plan(record: dict[str, Any]) -> StreamPlan:
    fields = {name: record[name] for name in StreamPlan.__dataclass_fields__}
    if record["fp4ref"] != SPEC_VERSION:
        raise DomainError("plan", f"version {record['fp4ref']}", SPEC_VERSION, "CNF-6")
    spec = fields["spec"]
    fields["spec"] = resolve(spec) if isinstance(spec, str) else from_json(json.dumps(spec))
    fields["dtypes"], fields["multiple"] = tuple(fields["dtypes"]), tuple(fields["multiple"])
    fields["families"] = None if fields["families"] is None else tuple(fields["families"])
    return StreamPlan(**fields)


def read(reader: Reader, plan: StreamPlan, declared: Declaration, options: RunOptions = UNLIMITED) -> Iterator[Run]:
    """Yield what a program made of every case of a plan.

    options: the times of a call, of the first call and of the run, for a program that is read through a pipe. After a
    hang, and after the end of the time, the cases that are left are not run; they are counted as far as a second
    suffices.

    Errors: FileError with the byte at which the stream breaks the format, ends, or answers another case.

    Rules: CNF-6, CNF-9, CNF-38, CNF-45, CNF-80, CNF-97, CNF-117, CNF-127.
    """
    count, ended = 0, None
    for index, case in enumerate(plan.cases()):
        count = index + 1
        if options.left < -COUNTING:
            return
        if ended is None:
            expected, key = golden(case), zlib.crc32(b"".join(_payload(case)))
            limit = options.timeout + (0 if index else options.allowance)
            reader.allow(max(0.0, min(limit, options.left)))
            try:
                yield Run(case, expected, _answer(reader, index, case, key, declared))
                continue
            except SilentProgramError as error:
                ended = str(error)
                if options.left > 0:
                    yield Run(case, None, Outcome(finding=Finding(FindingKind.HUNG, ended)))
                    continue
        kind = FindingKind.NOT_RUN if options.left > 0 else FindingKind.NOT_TRIED
        text = f"after a hang: {ended}" if options.left > 0 else "the time of the run is over"
        yield Run(case, None, Outcome(finding=Finding(kind, text)))
    if ended is None:
        _require_end(reader, count, options)


def _answer(reader: Reader, index: int, case: Case, key: int, declared: Declaration) -> Outcome:
    """Read the answer to one case. Rules: CNF-32, CNF-112."""
    start = reader.offset
    kind, *numbers = HEAD.unpack(reader.take(HEAD.size, f"the answer to case {index} ({case.id})"))
    if kind == END:
        raise reader.refused(f"the end at byte {start} after {index} cases", f"the answer to case {index}")
    if kind != DONE:
        raise reader.refused(f"{kind!r} at byte {start}", f"{DONE!r}, the answer to case {index} ({case.id})")
    if numbers[0] != index:
        raise reader.refused(f"the answer to case {numbers[0]} at byte {start}", f"that to case {index}")
    if numbers[1] != key:
        needed = f"{key:08x}, copied from the case; the same version of fp4ref made it"
        raise reader.refused(f"key {numbers[1]:08x} at byte {start + 8}", needed)
    sizes = numbers[2], numbers[3], 4 * numbers[4]
    return _outcome(reader, case, declared, sizes)


def _require_end(reader: Reader, count: int, options: RunOptions) -> None:
    """Refuse a stream that does not end after its last answer. Rules: CNF-32."""
    start = reader.offset
    reader.allow(options.timeout)
    try:
        kind, said, *_ = HEAD.unpack(reader.take(HEAD.size, f"{END!r} after {count} cases"))
    except SilentProgramError as error:
        raise reader.refused(f"{error} from byte {start} on", f"{END!r} {count}, copied") from None
    if kind != END or said != count:
        raise reader.refused(f"{kind!r} {said} at byte {start}", f"{END!r} {count}, copied")
    if reader.more():
        raise reader.refused(f"bytes after the end, from byte {reader.offset} on", f"nothing after {END!r} {count}")


def _outcome(reader: Reader, case: Case, declared: Declaration, sizes: Sequence[int]) -> Outcome:
    """Return the parts of one answer; of the wrong size they are a finding. Rules: CNF-82."""
    shapes = arguments.buffer_shapes(case.spec, case.x.shape, case.direction, declared.scale_layout)
    shapes = shapes._replace(data=data_shape(case.matrix, case.spec, declared))
    limit = 1 << 31
    if max(sizes) > limit:
        raise reader.refused(f"an answer of {max(sizes)} bytes before byte {reader.offset}", f"at most {limit}")
    parts = [reader.take(size, f"{size} bytes of the answer to {case.id}") for size in sizes]
    found: list[NDArray[Any] | None] = []
    for name, part, shape in zip(DirectionData._fields, parts, shapes, strict=True):
        dtype = np.dtype("<f4" if name == "amax" else np.uint8)
        needed = 0 if shape is None else int(np.prod(shape)) * dtype.itemsize
        if name == "amax" and (not part or shape is None):
            found.append(None)
        elif len(part) != needed:
            return Outcome(finding=Finding(FindingKind.SHAPE, f"{name} has {len(part)} bytes, need {needed}"))
        else:
            assert shape is not None
            found.append(np.frombuffer(part, dtype).reshape(shape).astype(dtype.newbyteorder("=")))
    return Outcome(DirectionData(*found))
