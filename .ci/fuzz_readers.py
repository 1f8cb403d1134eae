"""Fuzz the readers of headers, guided by coverage.

    python .ci/fuzz_readers.py [--seconds 20] [--seed 0]

An input is kept if it reaches a pair of lines that no input reached before. A reader may report problems or raise a
FileError; anything else is a failure, and its input is printed in hexadecimal.
"""

from __future__ import annotations

import argparse
import json
import random
import struct
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from fp4ref.checkpoints import gguf_header, safetensors_header
from fp4ref.checkpoints.shards import opened
from fp4ref.errors import FileError

Reader = Callable[[bytes], Any]
WORDS = (*(bytes([each]) for each in b'"{}[]:,'), b"-1", b"1e9", b"null", b"U8", b"F4", b"BF16", b"\xff" * 8, bytes(8))


def seeds() -> dict[str, list[bytes]]:
    """Return small files that are right, by suffix."""
    entry = {"dtype": "U8", "shape": [2, 2], "data_offsets": [0, 4]}
    other = {"dtype": "F32", "shape": [], "data_offsets": [4, 8]}
    text = json.dumps({"__metadata__": {"format": "pt"}, "a": entry, "b": other}).encode()
    name = struct.pack("<Q", 1) + b"a"
    head = b"GGUF" + struct.pack("<IQQ", 3, 1, 2)
    head += name + struct.pack("<I", 8) + name
    head += struct.pack("<Q", 1) + b"b" + struct.pack("<IIQI", 9, 4, 1, 7)
    head += name + struct.pack("<IQQIQ", 2, 32, 1, 39, 0)
    head += bytes(-len(head) % 32)
    return {".safetensors": [struct.pack("<Q", len(text)) + text + bytes(8)], ".gguf": [head + bytes(17)]}


def reader(suffix: str, folder: Path) -> Reader:
    """Return a function that reads a file of some bytes, whole and as a head, and every tensor that it finds."""
    read = {".safetensors": safetensors_header.read_safetensors, ".gguf": gguf_header.read_gguf}[suffix]
    path = folder / f"fuzzed{suffix}"

    def run(data: bytes) -> None:
        path.write_bytes(data)
        for head_only in (False, True):
            try:
                shard = opened(path, path.name)
                read(shard, head_only=head_only)
                for tensor in shard.tensors.values():
                    if not head_only and len(tensor.bytes()) != tensor.count:
                        raise AssertionError(f"{tensor.name}: {tensor.count} bytes promised")
            except FileError:
                pass

    return run


def mutated(data: bytes, random_source: random.Random, others: list[bytes]) -> bytes:
    """Return an input with one to four changes."""
    found = bytearray(data)
    for _ in range(random_source.randint(1, 4)):
        place = random_source.randrange(len(found) + 1)
        match random_source.randrange(6):
            case 0 if found:
                found[place - 1] ^= 1 << random_source.randrange(8)
            case 1:
                found[place:place] = random_source.choice(WORDS)
            case 2:
                del found[place : place + random_source.randint(1, 16)]
            case 3:
                other = random_source.choice(others)
                begin = random_source.randrange(len(other) + 1)
                found[place:place] = other[begin : begin + random_source.randint(1, 32)]
            case 4 if len(found) >= 8:
                begin = random_source.randrange(len(found) - 7)
                found[begin : begin + 8] = struct.pack("<Q", random_source.choice((0, 1, 3, 40, 1 << 20, 1 << 62)))
            case _:
                found[place:] = found[place : place + random_source.randrange(len(found) + 1)]
    return bytes(found[: 1 << 14])


def covered(run: Reader, data: bytes, files: Iterable[str]) -> set[tuple[CodeType, int, int]]:
    """Run a reader, and return the pairs of successive lines that it executed in some files."""
    pairs: set[tuple[CodeType, int, int]] = set()
    watched = set(files)

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        if frame.f_code.co_filename not in watched:
            return None
        last = 0

        def local(frame: FrameType, event: str, argument: Any) -> Any:
            nonlocal last
            if event == "line":
                pairs.add((frame.f_code, last, frame.f_lineno))
                last = frame.f_lineno
            return local

        return local

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        run(data)
    finally:
        sys.settrace(before)
    return pairs


def fuzz(run: Reader, begin: list[bytes], files: Iterable[str], *, seconds: float, seed: int, most: int) -> list[bytes]:
    """Return the inputs that were kept, after some processor time or number of inputs."""
    random_source = random.Random(seed)
    kept, seen = list(begin), set().union(*(covered(run, data, files) for data in begin))
    end = time.process_time() + seconds
    while most and time.process_time() < end:
        most -= 1
        data = mutated(random_source.choice(kept), random_source, kept)
        try:
            pairs = covered(run, data, files)
        except Exception as error:
            raise SystemExit(f"{type(error).__name__}: {error}\n{data.hex()}") from error
        if not pairs <= seen:
            seen |= pairs
            kept.append(data)
    return kept


def main() -> None:
    """Fuzz both readers for half of the time each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    files = [gguf_header.__file__, safetensors_header.__file__]
    with tempfile.TemporaryDirectory() as folder:
        for suffix, begin in seeds().items():
            run = reader(suffix, Path(folder))
            kept = fuzz(run, begin, files, seconds=options.seconds / 2, seed=options.seed, most=1 << 30)
            print(f"{suffix}: no failure; {len(kept)} inputs reached new code")


if __name__ == "__main__":
    main()
