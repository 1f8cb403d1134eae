"""One call of a kernel: arguments into guarded buffers, the call, and a look at everything that it touched."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fp4ref import arrays
from fp4ref.conformance.guards import UNWRITTEN, UNWRITTEN_AGAIN, Arrays, Guarded, host
from fp4ref.conformance.subject import Declaration, Finding, Job, Kind, Outcome, Output
from fp4ref.layout import layout
from fp4ref.quantized import DirectionData

ONE_BYTE = 1


class Wrong(Exception):  # noqa: N818 - a finding about somebody's kernel, not an error of this program
    """A result that cannot be compared."""

    def __init__(self, kind: Kind, text: str) -> None:
        super().__init__(text)
        self.finding = Finding(kind, text)


def call(function: Callable[..., Any], declared: Declaration, job: Job) -> Outcome:
    """Call a kernel twice; nothing that it raises gets out, and what two calls do not agree on is a finding.

    Rules: CNF-9.
    """
    library = Arrays(declared.arrays, declared.device)
    try:
        inputs = {
            name: _input(library, declared, name, value) if isinstance(value, np.ndarray) else value
            for name, value in job.arguments.items()
        }
        results, finding = _once(function, library, declared, job, inputs, UNWRITTEN)
        if finding is None:
            again, finding = _once(function, library, declared, job, inputs, UNWRITTEN_AGAIN)
            finding = finding or _unlike(results, again, declared)
    except Wrong as wrong:
        return Outcome(finding=wrong.finding)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - the code on trial may raise anything
        return Outcome(finding=_raised(error))
    return outcome_of(results, finding)


Results = dict[str, NDArray[Any] | None]


def _once(
    function: Callable[..., Any],
    library: Arrays,
    declared: Declaration,
    job: Job,
    inputs: Mapping[str, Any],
    fill: Mapping[str, int],
) -> tuple[Results, Finding | None]:
    """The results of one call, and what it touched that it should not have."""
    buffers = {
        name: Guarded(library, output.dtype, output.shape, declared.alignment, fill[name])
        if output.start is None
        else Guarded.holding(library, output.start, declared.alignment)
        for name, output in (job.outputs.items() if declared.out_buffers else ())
    }
    plain = [value.array if isinstance(value, Guarded) else value for value in inputs.values()]
    given = {"out": tuple(buffer.array for buffer in buffers.values())} if declared.out_buffers else {}
    returned = function(*plain, **given)
    library.finish()
    named = {name: buffer.array for name, buffer in buffers.items()} or _named(returned, declared, job)
    results = {name: _checked(name, named.get(name), output, declared) for name, output in job.outputs.items()}
    results = {name: None if part is None else part.copy() for name, part in results.items()}
    return results, _touched(inputs, buffers)


def _unlike(first: Results, second: Results, declared: Declaration) -> Finding | None:
    """What two calls with the same input give differently: bytes that were never written, or that come and go."""
    for name, part in first.items():
        other = second[name]
        if (part is None) is not (other is None):
            return Finding(Kind.UNSTABLE, f"{name} is None in one of two calls with the same input")
        if part is None or other is None or (name == "scales" and not layout(declared.scale_layout).pads_compared):
            continue
        one, two = (np.ascontiguousarray(array).reshape(-1).view(np.uint8) for array in (part, other))
        differs = one != two
        if not differs.any():
            continue
        unwritten = differs & (one == UNWRITTEN[name]) & (two == UNWRITTEN_AGAIN[name])
        place, count = int(np.flatnonzero(differs)[0]), int(np.count_nonzero(differs))
        if declared.out_buffers and (unwritten == differs).all():
            return Finding(
                Kind.UNWRITTEN, f"{count} of {one.size} bytes of {name} are never written, first byte {place}"
            )
        return Finding(
            Kind.UNSTABLE,
            f"{count} of {one.size} bytes of {name} differ between two calls with the same input, first byte {place}",
        )
    return None


def outcome_of(results: Mapping[str, NDArray[Any] | None], finding: Finding | None) -> Outcome:
    """Named results as an outcome."""
    if "data" in results and "scales" in results:
        data = DirectionData(results["data"], results["scales"], results.get("amax"))
        return Outcome(data=data, finding=finding)
    return Outcome(values=next(iter(results.values())), finding=finding)


def _input(library: Arrays, declared: Declaration, name: str, value: NDArray[Any]) -> Guarded:
    return Guarded.holding(library, value, declared.alignment, declared.strided and name == "x")


def _named(returned: Any, declared: Declaration, job: Job) -> dict[str, Any]:
    """What a kernel returned, by the names of its outputs."""
    parts = list(returned) if isinstance(returned, (tuple, list)) else [returned]
    wanted = [name for name in declared.outputs if name in job.outputs]
    if declared.optional_amax and len(parts) == len(wanted) - 1 and wanted[-1] == "amax":
        wanted = wanted[:-1]
    if len(parts) > len(wanted) and set(declared.outputs) - set(wanted):
        wanted = list(declared.outputs)  # an amax where the specification has none
    if len(parts) != len(wanted):
        what = type(returned).__name__ if len(parts) == 1 else f"{len(parts)} results"
        raise Wrong(Kind.SHAPE, f"returned {what}, need {', '.join(wanted)}")
    return dict(zip(wanted, parts, strict=True))


def _checked(name: str, result: Any, output: Output, declared: Declaration) -> NDArray[Any] | None:
    """A result on the host, in the expected shape and type. Rules: CNF-9."""
    if result is None:
        if name == "amax":
            return None
        raise Wrong(Kind.SHAPE, f"{name} is None, need {output.dtype} {list(output.shape)}")
    if not hasattr(result, "shape") or not hasattr(result, "dtype"):
        raise Wrong(Kind.DTYPE, f"{name} is a {type(result).__name__}, need an array")
    device = arrays.device_of(result)
    if device != declared.device.partition(":")[0]:
        raise Wrong(Kind.DEVICE, f"{name} lies on {device}, need {declared.device}")
    kind = arrays.dtype_name(result)
    array = host(result)
    plain = array.dtype.itemsize == ONE_BYTE and array.dtype != np.bool_
    if not plain if output.dtype == "uint8" else array.dtype.name != output.dtype:
        raise Wrong(Kind.DTYPE, f"{name} is {kind}, need {output.dtype}")
    if output.dtype == "uint8":
        array = np.ascontiguousarray(array).view(np.uint8)
    shape, count = output.shape, math.prod(output.shape)
    flat = array.ndim == 1 or (name == "amax" and array.ndim == 0)
    tiles = name == "scales" and declared.scale_layout.startswith("tiled")  # bytes in tile order have no rows
    same = flat or tiles or shape[-1:] == array.shape[-1:] or name == "amax"
    if array.size != count or not (same or count == 0):
        raise Wrong(Kind.SHAPE, f"{name} has shape {list(array.shape)}, need {list(shape)}")
    array = np.ascontiguousarray(array).reshape(shape)
    return np.ascontiguousarray(array.T) if declared.transposed and name in {"data", "scales"} else array


def _touched(inputs: Mapping[str, Any], buffers: Mapping[str, Guarded]) -> Finding | None:
    """What a kernel changed that it should not have. Rules: CNF-9."""
    guarded = {name: value for name, value in inputs.items() if isinstance(value, Guarded)}
    for name, value in (*guarded.items(), *buffers.items()):
        if where := value.outside():
            return Finding(Kind.OUTSIDE, f"{name}: {where}")
    for name, value in guarded.items():
        if count := value.changed():
            return Finding(Kind.MUTATED, f"{name}: {count} bytes changed")
    return None


def _raised(error: BaseException) -> Finding:
    lines = str(error).strip().splitlines() or [""]
    text = f"{type(error).__name__}: {lines[0]}".removesuffix(": ")[:300]
    cuda = "CUDA" in str(error) or type(error).__name__ == "AcceleratorError"
    return Finding(Kind.CUDA if cuda else Kind.RAISED, text)
