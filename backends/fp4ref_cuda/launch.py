"""Kernels on a device: loaded once, launched on the caller's stream, never waited for."""

from __future__ import annotations

import ctypes
import sys
import threading
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np

from fp4ref.errors import BackendError
from fp4ref_cuda import recording
from fp4ref_cuda.buffers import Library, address
from fp4ref_cuda.compile import CACHE, compile_all, cubin, is_cached, key, source, store, stored
from fp4ref_cuda.recording import Launch, LoadedKernel, Shape, Start, Started
from fp4ref_cuda.words import start_once

FAMILY = {(10, 0), (10, 3), (11, 0), (12, 0), (12, 1)}  # targets whose conversions need the architecture's own variant


class _ThreadState(threading.local):
    """The device that a thread has a context on."""

    ordinal: int | None = None


_current = _ThreadState()


def require_device() -> None:
    """BackendError where there is no driver or no device. Rules: CNF-5."""
    from cuda.bindings import driver

    try:
        (error,) = driver.cuInit(0)
        count = 0 if error else driver.cuDeviceGetCount()[1]
    except RuntimeError as missing:
        raise BackendError("cuda", f"no driver ({str(missing).splitlines()[0]})", "an NVIDIA driver", "CNF-5") from None
    if error or not count:
        raise BackendError("cuda", f"no device ({error.name})", "an NVIDIA GPU and its driver", "CNF-5")


@lru_cache
def _device(ordinal: int) -> Any:
    from cuda.core import Device

    return Device(ordinal)


@lru_cache
def capability(ordinal: int) -> tuple[int, int]:
    """Return the compute capability of a device."""
    found = _device(ordinal).compute_capability
    return found.major, found.minor


@lru_cache
def target(ordinal: int) -> str:
    """Return the compiler's name of a device."""
    major, minor = capability(ordinal)
    return f"sm_{major}{minor}{'a' if (major, minor) in FAMILY else ''}"


@lru_cache
def multiprocessors(ordinal: int) -> int:
    """Return the number of multiprocessors of a device."""
    return int(_device(ordinal).properties.multiprocessor_count)


@lru_cache
def _early(ordinal: int) -> bool:
    """Return True if a kernel can wait for the one before it."""
    return capability(ordinal) >= (9, 0)


def _first_difference(library: Library, check: str, threads: int) -> int | None:
    """Return the smallest float, as its bits, on which an instruction differs from the rules.

    Returns None without one, which a file in the cache remembers; this waits.
    """
    name = target(library.ordinal)
    passed = f"{check}-{name}-{key(source(check, ''), name)}"
    if stored(passed) is not None:
        return None
    untouched = -1  # the largest pattern
    try:
        enter(library)
        first = library.upload(np.array([untouched], np.int32))
        kernel = _kernel(check, "", library.ordinal, 0)
        grid = Shape((-(-threads // 256),), 256, 0, early=False)
        arguments = (address(first),)
        start_once(starter(library, Launch(check, kernel, grid, arguments)), library.stream(), arguments)
        found = int(first[0])
    except (RuntimeError, SystemError, TypeError) as error:
        raise _failed(check, error) from error
    if found != untouched:
        return found & 0xFFFFFFFF
    store(passed)
    return None


@lru_cache
def _self_check(library: Library) -> None:
    """Compare the conversion instructions of a target that we never ran with the plain codec; once."""
    name = target(library.ordinal)
    found = _first_difference(library, "self_check", 257 * 256) if capability(library.ordinal) in FAMILY else None
    if found is not None:
        got = f"the conversion of float {found:#010x} differs from the codec"
        raise BackendError(f"cuda: {name}", got, "the same codes", "E2M1-3")


@lru_cache
def require_reciprocal(library: Library) -> None:
    """Compare the device's approximate reciprocal with the recorded one, for every mantissa; once. Rules: APX-1."""
    found = _first_difference(library, "reciprocal_check", 1 << 23)
    if found is not None:
        got = f"rcp.approx.ftz.f32 of float {found:#010x} differs from the recorded table"
        raise BackendError(f"cuda: {target(library.ordinal)}", got, "the cpu backend or the golden model", "APX-1")


def enter(library: Library) -> None:
    """Give this thread a context on the device, once.

    Errors: BackendError.
    """
    if _current.ordinal is None:
        try:
            _device(library.ordinal).set_current()
        except (RuntimeError, SystemError, TypeError) as failure:
            raise BackendError(f"cuda:{library.ordinal}", str(failure).splitlines()[0], rule="CNF-5") from failure
        _current.ordinal = library.ordinal


@lru_cache(maxsize=4096)
def _kernel(name: str, prelude: str, ordinal: int, shared: int) -> LoadedKernel:
    """Return a kernel, loaded; dynamic shared memory past the default limit is allowed once, here."""
    from cuda.bindings import driver
    from cuda.core import ObjectCode

    code = ObjectCode.from_cubin(cubin(name, prelude, target(ordinal)))
    kernel = code.get_kernel(name)
    if shared:
        limit = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        (error,) = driver.cuKernelSetAttribute(limit, shared, driver.CUkernel(int(kernel.handle)), ordinal)
        if error:
            raise BackendError(f"cuda: kernel {name}", f"{shared} bytes of shared memory: {error.name}", rule="CNF-5")
    return LoadedKernel(code, driver.CUkernel(int(kernel.handle)))


@lru_cache(maxsize=4096)
def _config(shape: Shape, stream: int, ordinal: int) -> Any:
    """Return the driver's record of a launch on one stream."""
    from cuda.bindings import driver

    config = driver.CUlaunchConfig()
    config.gridDimX, config.gridDimY, config.gridDimZ = (*shape.grid, 1, 1)[:3]
    config.blockDimX, config.blockDimY, config.blockDimZ = shape.block, 1, 1
    config.sharedMemBytes, config.hStream = shape.shared, driver.CUstream(stream)
    if shape.early and _early(ordinal):
        attribute = driver.CUlaunchAttribute()
        attribute.id = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
        attribute.value.programmaticStreamSerializationAllowed = 1
        config.attrs, config.numAttrs = [attribute], 1
    return config


def rehearsing() -> bool:
    """Return True while launches of this thread are only noted."""
    return recording.this.rehearsal is not None


def rehearse(act: Callable[[], None], tell: Callable[[str], None]) -> None:
    """Compile at once what some work launches, so that its kernels do not compile one after the other.

    act: does the work on this thread; nothing that it launches runs, and what it gets means nothing. It is not called
    again where it was before with the same kernels, which a file in the cache records. tell: is given a line if
    compiling takes a while.
    """
    wanted: dict[tuple[str, str, str], None] = {}
    name = target(0)
    done = f"rehearsed-{name}-{key('', name)}"
    if stored(done) is not None:
        return
    recording.this.rehearsal = wanted
    try:
        act()
    finally:
        recording.this.rehearsal = None
    missing = [kernel for kernel in wanted if not is_cached(*kernel)]
    if missing:
        tell(f"compiling {len(missing)} kernels for the cuda backend, once; they are kept in {CACHE.writable()}")
    compile_all(missing)
    store(done)


def launch(
    library: Library,
    name: str,
    prelude: str,
    grid: tuple[int, ...],
    arguments: tuple[int, ...],
    block: int = 256,
    shared: int = 0,
) -> None:
    """Run a kernel on the caller's stream; all its arguments are addresses or 64-bit integers.

    It may start while the kernel before it ends, and waits for it itself before it reads what that one writes.

    Errors: BackendError with the kernel's name, for what fails before the kernel runs.
    """
    if (noted := recording.this.rehearsal) is not None:
        noted[name, prelude, target(library.ordinal)] = None
        return
    shape = Shape(grid, block, shared, True)
    run(library, ready(library, name, prelude, shape, len(arguments)), arguments)


def run(library: Library, start: Start, arguments: tuple[int, ...]) -> None:
    """Start something on the caller's stream, and note it for later calls of the kind that is being recorded."""
    if rehearsing():
        return
    recorder = recording.current()
    if recorder is not None:
        recorder.steps.append(Started(start, arguments))
    enter(library)
    start_once(start, library.stream(), arguments)


@lru_cache(maxsize=4096)
def ready(library: Library, name: str, prelude: str, shape: Shape, count: int) -> Start:
    """Return the function that starts a kernel, which is loaded here, with `count` arguments."""
    try:
        enter(library)
        _self_check(library)
        loaded = _kernel(name, prelude, library.ordinal, shape.shared)
    except (RuntimeError, SystemError, TypeError) as failure:
        raise _failed(name, failure) from failure
    return starter(library, Launch(name, loaded, shape, (0,) * count))


def starter(library: Library, launch: Launch) -> Start:
    """Return the function that starts a kernel that is loaded, on a stream, with other arguments of their number.

    The thread that calls it has a context on the device. The driver is called as it is: its Python functions take
    longer than the launch.
    """
    name, kernel, shape, _ = launch
    begin, function, configs = driver_library().cuLaunchKernelEx, int(kernel.function), dict[int, int]()
    kept: list[Any] = []

    def start(stream: int, at: int) -> None:
        config = configs.get(stream)
        if config is None:
            try:
                made = _config(shape, stream, library.ordinal)
            except (RuntimeError, SystemError, TypeError) as failure:
                raise _failed(name, failure) from failure
            kept.append((made, kernel))  # else code would be unloaded, and memory that the driver reads would be freed
            configs[stream] = config = int(made.getPtr())
        error = begin(config, function, None, at)
        if error:
            raise BackendError(f"cuda: kernel {name}", error_name(error), rule="CNF-5")

    return start


@lru_cache
def driver_library() -> Any:
    """Return the driver's library, which is loaded, for what starts work: its Python functions take longer."""
    library = ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")
    library.cuLaunchKernelEx.argtypes = [ctypes.c_void_p] * 4
    library.cuGraphLaunch.argtypes = [ctypes.c_void_p] * 2
    return library


def error_name(error: int) -> str:
    """Return the driver's name of an error."""
    from cuda.bindings import driver

    return str(driver.CUresult(error).name)


def require(answer: tuple[Any, ...]) -> Any:
    """Return the value that a function of the driver's Python library answers behind its status; None for none.

    Errors: BackendError with the status.
    """
    status, *values = answer
    if status:
        raise BackendError("cuda: driver", str(status.name), rule="CNF-5")
    return values[0] if values else None


def _failed(kernel: str, error: Exception) -> BackendError:
    """Return the driver's error as a BackendError with the kernel's name."""
    return BackendError(f"cuda: kernel {kernel}", str(error).splitlines()[0], rule="CNF-5")
