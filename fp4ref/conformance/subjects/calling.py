"""Call a kernel: put its arguments into guarded buffers, run it, and check everything that it touched."""

from __future__ import annotations

import math
import os
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fp4ref import arrays
from fp4ref.conformance.subjects.agreement import Results, disagreement, nothing_written
from fp4ref.conformance.subjects.device_streams import on_streams
from fp4ref.conformance.subjects.failures import Theirs, Wrong, internal, of_kernel, raised
from fp4ref.conformance.subjects.guards import UNWRITTEN, UNWRITTEN_AGAIN, Arrays, Guarded, counted, host, host_bytes
from fp4ref.conformance.subjects.outcomes import Finding, FindingKind, Outcome
from fp4ref.conformance.subjects.subject import Declaration, Job, Output
from fp4ref.kernels import device_type
from fp4ref.layout import layout
from fp4ref.packings import CANONICAL
from fp4ref.quantized import DirectionData

ONE_BYTE = 1
REMEMBERED = 4  # calls of which the returned arrays are kept, to see whether later calls change them


@dataclass
class _PreparedCall:
    """A call that can be made: inputs and buffers under guard."""

    job: Job
    inputs: dict[str, Any]
    buffers: dict[str, Guarded]

    @property
    def arguments(self) -> list[Any]:
        """The kernel's arguments, in order."""
        return [value.array if isinstance(value, Guarded) else value for value in self.inputs.values()]

    @property
    def out(self) -> tuple[Any, ...]:
        """The buffers that the kernel fills, in order."""
        return tuple(buffer.array for buffer in self.buffers.values())


class Caller:
    """A kernel that can be called as it is declared, again and again.

    Rules: CNF-8, CNF-9, CNF-14.
    """

    def __init__(self, function: Callable[..., Any], declared: Declaration) -> None:
        self._function, self._declared = function, declared
        self._library = Arrays(declared.arrays, declared.device)
        self._earlier: deque[dict[str, tuple[Any, NDArray[np.uint8]]]] = deque(maxlen=REMEMBERED)

    def call(self, job: Job, remember: bool = False) -> Outcome:
        """Call the kernel twice; nothing that it raises gets out.

        remember: compare the arrays that earlier calls returned with their bytes at that time.

        Rules: CNF-9, CNF-67, CNF-85.
        """
        try:
            inputs = {name: self._input(name, value) for name, value in job.arguments.items()}
            results, finding, returned = self._once(job, inputs, UNWRITTEN)
            finding = finding or (self._overwritten() if remember else None)
            if finding is None:
                again, finding, returned = self._once(job, inputs, UNWRITTEN_AGAIN)
                if self._declared.out_buffers and (nothing := nothing_written(results, again)):
                    return Outcome(finding=nothing)
                finding = finding or disagreement(results, again, job, self._declared)
            if remember and not self._declared.out_buffers:
                self._earlier.append(_remembered(returned))
        except Wrong as wrong:
            return Outcome(finding=wrong.finding)
        except Theirs as theirs:
            return Outcome(finding=raised(theirs.error, self._function))
        except Exception as error:  # noqa: BLE001 - the caller decides how to end
            return Outcome(finding=internal(error))
        return outcome_of(results, finding)

    def outcomes(self, jobs: Sequence[Job], *, remember: bool = False, together: bool = False) -> list[Outcome]:
        """Return the outcomes of calls, made one after another or at once. Rules: CNF-9, CNF-66."""
        return self._together(jobs) if together else [self.call(job, remember) for job in jobs]

    def _together(self, jobs: Sequence[Job]) -> list[Outcome]:
        """Call the kernel on several jobs at once, each on a stream of its own of a CUDA device.

        Inputs are NaN until the stream of their call runs. A C function that takes no stream has them from the start.

        Rules: CNF-66.
        """
        try:
            inputs = [{name: self._input(name, value) for name, value in job.arguments.items()} for job in jobs]
            prepared = [self._prepared(job, given, UNWRITTEN) for job, given in zip(jobs, inputs, strict=True)]
            if getattr(self._function, "takes_stream", True):
                for value in (value for given in inputs for value in given.values() if isinstance(value, Guarded)):
                    value.hide()
            with of_kernel():
                returned = on_streams(self._declared.device, [partial(self._call, each) for each in prepared])
            return [outcome_of(*self._results(*pair)[:2]) for pair in zip(prepared, returned, strict=True)]
        except Wrong as wrong:
            return [Outcome(finding=wrong.finding)] * len(jobs)
        except Theirs as theirs:
            return [Outcome(finding=raised(theirs.error, self._function))] * len(jobs)
        except Exception as error:  # noqa: BLE001 - the caller decides how to end
            return [Outcome(finding=internal(error))] * len(jobs)

    def _input(self, name: str, value: Any) -> Any:
        if not isinstance(value, np.ndarray):
            return value
        declared = self._declared
        return Guarded.holding(self._library, value, declared.alignment, declared.strided and name == "x")

    def _prepared(self, job: Job, inputs: dict[str, Any], fill: Mapping[str, int]) -> _PreparedCall:
        library, alignment = self._library, self._declared.alignment
        buffers = {
            name: Guarded(library, output.dtype, output.shape, alignment, fill[name])
            if output.start is None
            else Guarded.holding(library, output.start, alignment)
            for name, output in (job.outputs.items() if self._declared.out_buffers else ())
        }
        return _PreparedCall(job, inputs, buffers)

    def _once(
        self, job: Job, inputs: dict[str, Any], fill: Mapping[str, int]
    ) -> tuple[Results, Finding | None, dict[str, Any]]:
        """Return the results of one call, its illegal writes, and the arrays that hold the results."""
        prepared = self._prepared(job, inputs, fill)
        with of_kernel():
            returned = self._call(prepared)
            self._library.finish()
        return self._results(prepared, returned)

    def _call(self, prepared: _PreparedCall) -> Any:
        """Call the kernel; a process that the kernel forks ends here."""
        for value in prepared.inputs.values():
            if isinstance(value, Guarded):
                value.show()
        given = {"out": prepared.out} if self._declared.out_buffers else {}
        process = os.getpid()
        try:
            return self._function(*prepared.arguments, **given)
        finally:
            if os.getpid() != process:
                os._exit(0)

    def _results(self, prepared: _PreparedCall, returned: Any) -> tuple[Results, Finding | None, dict[str, Any]]:
        job, declared, buffers = prepared.job, self._declared, prepared.buffers
        named = {name: buffer.array for name, buffer in buffers.items()} or named_results(returned, declared, job)
        results = {name: _checked(name, named.get(name), output, declared) for name, output in job.outputs.items()}
        results = {name: None if part is None else part.copy() for name, part in results.items()}
        return results, _touched(prepared.inputs, buffers), named

    def _overwritten(self) -> Finding | None:
        """Return the first array of an earlier call whose bytes have changed since. Rules: CNF-67."""
        for returned in self._earlier:
            for name, (array, before) in returned.items():
                count = int(np.count_nonzero(host_bytes(array) != before))
                if count:
                    text = f"this call changed {count} of {before.size} bytes of {name} that an earlier call returned"
                    return Finding(FindingKind.OVERWRITTEN, text)
        return None


def _remembered(returned: Mapping[str, Any]) -> dict[str, tuple[Any, NDArray[np.uint8]]]:
    """Return the arrays that a kernel returned, and their bytes now."""
    return {name: (array, host_bytes(array).copy()) for name, array in returned.items() if array is not None}


def outcome_of(results: Mapping[str, NDArray[Any] | None], finding: Finding | None) -> Outcome:
    """Named results as an outcome."""
    if "data" in results and "scales" in results:
        data = DirectionData(results["data"], results["scales"], results.get("amax"))
        return Outcome(data=data, finding=finding)
    return Outcome(values=next(iter(results.values())), finding=finding)


def named_results(returned: Any, declared: Declaration, job: Job) -> dict[str, Any]:
    """Return a kernel's results, by the names of its outputs."""
    parts = list(returned) if isinstance(returned, (tuple, list)) else [returned]
    wanted = [name for name in declared.outputs if name in job.outputs]
    if declared.optional_amax and len(parts) == len(wanted) - 1 and wanted[-1] == "amax":
        wanted = wanted[:-1]
    if len(parts) > len(wanted) and set(declared.outputs) - set(wanted):
        wanted = list(declared.outputs)  # an amax where the specification has none
    if len(parts) != len(wanted):
        what = type(returned).__name__ if len(parts) == 1 else f"{len(parts)} results"
        raise Wrong(FindingKind.SHAPE, f"returned {what}, need {', '.join(wanted)}")
    return dict(zip(wanted, parts, strict=True))


def _checked(name: str, result: Any, output: Output, declared: Declaration) -> NDArray[Any] | None:
    """Return a result on the host, in the expected shape and type. Rules: CNF-9."""
    with of_kernel():  # an array of the kernel's library may refuse to be read
        if not present(name, result, output, declared):
            return None
        kind = arrays.dtype_name(result)
        array = host(result)
    plain = array.dtype.itemsize == ONE_BYTE and array.dtype != np.bool_
    if not plain if output.dtype == "uint8" else array.dtype.name != output.dtype:
        raise Wrong(FindingKind.DTYPE, f"{name} is {kind}, need {output.dtype}")
    if output.dtype == "uint8":
        array = np.ascontiguousarray(array).view(np.uint8)
    require_shape(name, array.shape, output, declared)
    array = np.ascontiguousarray(array).reshape(output.shape)
    return np.ascontiguousarray(array.T) if declared.transposed and name in {"data", "scales"} else array


def present(name: str, result: Any, output: Output, declared: Declaration) -> bool:
    """Require an array on the declared device; False for an amax that is None. Rules: CNF-9."""
    if result is None:
        if name == "amax":
            return False
        raise Wrong(FindingKind.SHAPE, f"{name} is None, need {output.dtype} {list(output.shape)}")
    if not hasattr(result, "shape") or not hasattr(result, "dtype"):
        raise Wrong(FindingKind.DTYPE, f"{name} is a {type(result).__name__}, need an array")
    device = arrays.device_of(result)
    if device != device_type(declared.device):
        raise Wrong(FindingKind.DEVICE, f"{name} lies on {device}, need {declared.device}")
    return True


def require_shape(name: str, got: tuple[int, ...], output: Output, declared: Declaration) -> None:
    """Require as many elements as expected, in rows of the expected length or without rows. Rules: CNF-9."""
    shape, count = output.shape, math.prod(output.shape)
    flat = len(got) == 1 or (name == "amax" and not got)
    tiles = name == "scales" and layout(declared.scale_layout).tile != (1, 1)  # bytes in tile order have no rows
    tiles |= name == "data" and declared.packing != CANONICAL
    same = flat or tiles or shape[-1:] == got[-1:] or name == "amax"
    if math.prod(got) != count or not (same or count == 0):
        raise Wrong(FindingKind.SHAPE, f"{name} has shape {list(got)}, need {list(shape)}")


def _touched(inputs: Mapping[str, Any], buffers: Mapping[str, Guarded]) -> Finding | None:
    """Return the illegal writes of a kernel. Rules: CNF-9."""
    guarded = {name: value for name, value in inputs.items() if isinstance(value, Guarded)}
    for name, value in (*guarded.items(), *buffers.items()):
        if where := value.outside():
            return Finding(FindingKind.OUTSIDE, f"{name}: {where}")
    for name, value in guarded.items():
        if count := value.changed():
            return Finding(FindingKind.MUTATED, f"{name}: {counted(count)} changed")
    return None
