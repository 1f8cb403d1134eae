"""Call a kernel on a tile that is repeated many times: inputs are built and results compared where they are.

Host memory stays bounded: a device holds the whole arrays, and the host one tile of each.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fp4ref import arrays
from fp4ref.conformance.run.huge_trial import Fold, HugeTrial
from fp4ref.conformance.subjects.calling import ONE_BYTE, named_results, present, require_shape
from fp4ref.conformance.subjects.failures import Wrong, raised
from fp4ref.conformance.subjects.guards import FENCE, UNWRITTEN, Arrays, counted, fenced, host_bytes, numpy_dtype
from fp4ref.conformance.subjects.outcomes import FindingKind
from fp4ref.conformance.subjects.subject import Declaration, Job, Output

PIECE = 1 << 27  # bytes that are built or compared at a time
ROOM = 4  # pieces that comparing takes beside the arrays
RANGES = 16  # of repetitions that differ, of which the bounds are kept
MEMORY_LIMIT, MEMORY_USED = Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory.current")


@dataclass
class HugeDifference:
    """The difference of an array from what it should be.

    first: repetition, and byte in the tile's array, of the first difference; got and expected there. last: repetition
    of the last one. ranges: of repetitions, the first ones. total, expected_total: checksums, the sums of all bytes.
    """

    size: int = 0
    differing: int = 0
    first: tuple[int, int] | None = None
    last: int = 0
    got: int = 0
    expected: int = 0
    total: int = 0
    expected_total: int = 0
    ranges: list[list[int]] | None = None
    samples: dict[int, int] | None = None


def attempt(function: Callable[..., Any], declared: Declaration, trial: HugeTrial) -> dict[str, Any]:
    """Call a kernel once, and tell how its results differ; nothing that it raises gets out.

    The record has `skipped`, the reason why the call was not made, or `finding`, or `results` by name.

    Rules: CNF-9, CNF-52.
    """
    library = Arrays(declared.arrays, declared.device)
    free = _free(library) if trial.memory is None else trial.memory
    needed = trial.bytes + ROOM * min(PIECE, trial.bytes)
    if needed > free:
        return {"skipped": f"needs {_gib(needed)} of memory, {_gib(free)} are free"}
    try:
        return _compared(function, declared, trial, library)
    except Wrong as wrong:
        return {"finding": wrong.finding}
    except (Exception, SystemExit) as error:  # noqa: BLE001 - the code on trial may raise anything
        if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
            return {"skipped": f"memory was exhausted in the call, {_gib(free)} were free"}
        return {"finding": raised(error, function)}


def _gib(size: int) -> str:
    return f"{size / (1 << 30):.1f} GiB"


def _free(library: Arrays) -> int:
    """Return the bytes of memory that are free where arrays are."""
    if library.on_cuda:
        import torch

        torch.cuda.empty_cache()
        return int(torch.cuda.mem_get_info(library.device)[0])
    free = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES")
    try:
        return min(free, int(MEMORY_LIMIT.read_text("ascii")) - int(MEMORY_USED.read_text("ascii")))
    except (OSError, ValueError):  # no limit
        return free


class _Whole:
    """A large array between guards, with the bytes of a tile again and again, or poisoned."""

    def __init__(self, library: Arrays, dtype: str, shape: tuple[int, ...], alignment: int, fill: int = FENCE) -> None:
        size = numpy_dtype(dtype).itemsize
        inner = math.prod(shape) * size
        self._raw, self._start = fenced(library, inner, max(alignment, size))
        self._stop = self._start + inner
        self.bytes = self._raw[self._start : self._stop]
        if fill != FENCE:
            self.bytes[...] = fill
        self.array = library.view(self.bytes, dtype, shape)

    def outside(self) -> int:
        """Return the number of bytes of the guards that were written."""
        return sum(
            int(np.count_nonzero(host_bytes(part) != FENCE))
            for part in (self._raw[: self._start], self._raw[self._stop :])
        )


def _compared(function: Callable[..., Any], declared: Declaration, trial: HugeTrial, library: Arrays) -> dict[str, Any]:
    inputs: dict[str, Any] = {}
    for name, value in trial.body.arguments.items():
        if not isinstance(value, np.ndarray):
            inputs[name] = value
            continue
        whole = _Whole(library, value.dtype.name, trial.folds[name].shape(value.shape, trial.count), declared.alignment)
        _fill(library, whole.bytes, _pair(trial, name), trial.folds[name], trial.count)
        inputs[name] = whole
    outputs = trial.outputs
    made = {
        name: _Whole(library, output.dtype, output.shape, declared.alignment, UNWRITTEN[name])
        for name, output in (outputs.items() if declared.out_buffers else ())
    }
    given = {"out": tuple(whole.array for whole in made.values())} if declared.out_buffers else {}
    returned = function(*(each.array if isinstance(each, _Whole) else each for each in inputs.values()), **given)
    library.finish()
    job = Job(trial.body.arguments, outputs)
    named = {name: whole.array for name, whole in made.items()} or named_results(returned, declared, job)
    results = {}
    for name, output in outputs.items():
        flat = _flat(name, named.get(name), output, declared)
        if flat is not None:
            samples = {part: values[name] for part, values in trial.samples.items() if name in values}
            fold = trial.folds[f"out {name}"]
            results[name] = asdict(_difference(library, flat, trial.expected[name], fold, trial, samples))
    _require_untouched(library, trial, inputs, made)
    return {"results": results}


def _pair(trial: HugeTrial, name: str) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return an input of the two tiles."""
    body, last = trial.body.arguments[name], trial.last.arguments[name]
    assert isinstance(body, np.ndarray)
    assert isinstance(last, np.ndarray)
    return body, last


def _on_device(library: Arrays, values: NDArray[Any], shape: tuple[int, ...]) -> Any:
    """Bytes of the host where the arrays are."""
    plain = np.frombuffer(np.ascontiguousarray(values).tobytes(), np.uint8)
    target = library.bytes(plain.size, 0)
    library.write(target, plain.copy())
    return target.reshape(shape)


def _pieces(library: Arrays, flat: Any, pair: tuple[Any, Any], fold: Fold, count: int) -> Any:
    """Pieces of an array [runs, repetitions, width]: the first repetition of each, its bytes, the tile's bytes."""
    runs, width = fold.split(pair[0].shape, pair[0].itemsize)
    count = count if fold.axis is not None else 1
    view = flat.reshape(runs, count, width)
    body, last = (_on_device(library, values, (runs, 1, width)) for values in pair)
    step = max(1, PIECE // max(runs * width, 1))
    for start in range(0, count - 1, step):
        yield start, view[:, start : min(start + step, count - 1)], body
    yield count - 1, view[:, count - 1 :], last


def _fill(library: Arrays, flat: Any, pair: tuple[NDArray[Any], NDArray[Any]], fold: Fold, count: int) -> None:
    for _, piece, tile in _pieces(library, flat, pair, fold, count):
        piece[...] = tile


def _difference(
    library: Arrays,
    flat: Any,
    pair: tuple[NDArray[Any], NDArray[Any]],
    fold: Fold,
    trial: HugeTrial,
    samples: Mapping[int, NDArray[Any]],
) -> HugeDifference:
    """Compare every byte with that of the tiles, and some rows with their own bytes. Rules: CNF-1, CNF-52, CNF-123."""
    found = HugeDifference(size=len(flat), ranges=[], samples={})
    assert found.ranges is not None
    assert found.samples is not None
    for start, piece, tile in _pieces(library, flat, pair, fold, trial.count):
        found.total += int(piece.sum())
        found.expected_total += int(tile.sum()) * piece.shape[1]
        different = piece != tile
        count = int(different.sum())
        if not count:
            continue
        found.differing += count
        wrong = np.flatnonzero(host_bytes(different.any(2).any(0)))
        if found.first is None:
            at = int(wrong[0])
            byte = int(np.flatnonzero(host_bytes(different[:, at]))[0])
            found.first = start + at, byte
            found.got, found.expected = (int(host_bytes(part)[byte]) for part in (piece[:, at], tile))
        found.last = int(wrong[-1]) + start
        for repetition in (wrong + start).tolist():
            if found.ranges and found.ranges[-1][1] == repetition:
                found.ranges[-1][1] = repetition + 1
            elif len(found.ranges) < RANGES:
                found.ranges.append([repetition, repetition + 1])
    if fold.axis is not None:
        runs = fold.split(pair[0].shape, pair[0].itemsize)[0]
        view = flat.reshape(runs, trial.count * trial.parts, -1)
        for part, values in samples.items():
            expected = host_bytes(values.view(np.uint8))
            found.samples[part] = int(np.count_nonzero(host_bytes(view[:, part]) != expected))
    return found


def _flat(name: str, result: Any, output: Output, declared: Declaration) -> Any:
    """Return the bytes of a result in place, after checking its type and shape; None for an amax that is None."""
    if not present(name, result, output, declared):
        return None
    kind = arrays.dtype_name(result)
    plain = result.dtype.itemsize == ONE_BYTE and kind != "bool"
    if not plain if output.dtype == "uint8" else kind != output.dtype:
        raise Wrong(FindingKind.DTYPE, f"{name} is {kind}, need {output.dtype}")
    require_shape(name, tuple(result.shape), output, declared)
    if arrays.is_torch(result):
        import torch

        return result.detach().contiguous().reshape(-1).view(torch.uint8)
    return np.ascontiguousarray(result).reshape(-1).view(np.uint8)


def _require_untouched(
    library: Arrays, trial: HugeTrial, inputs: Mapping[str, Any], made: Mapping[str, _Whole]
) -> None:
    """Require that guards and inputs are what they were. Rules: CNF-9."""
    guarded = {name: whole for name, whole in inputs.items() if isinstance(whole, _Whole)}
    for name, whole in (*guarded.items(), *made.items()):
        if count := whole.outside():
            raise Wrong(FindingKind.OUTSIDE, f"{name}: {counted(count)} outside")
    for name, whole in guarded.items():
        found = _difference(library, whole.bytes, _pair(trial, name), trial.folds[name], trial, {})
        if found.differing:
            raise Wrong(FindingKind.MUTATED, f"{name}: {counted(found.differing)} changed")
