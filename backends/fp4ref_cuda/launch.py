"""Kernels on a device: loaded once, launched on the caller's stream, never waited for."""

from __future__ import annotations

import contextlib
import threading
from functools import lru_cache
from typing import Any

import numpy as np

from fp4ref.errors import BackendError
from fp4ref_cuda.buffers import Library, pointer
from fp4ref_cuda.compile import cache_directory, cubin, key, source

FAMILY = {(10, 0), (10, 3), (11, 0), (12, 0), (12, 1)}  # targets whose conversions need the architecture's own variant
_current = threading.local()


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
def target(ordinal: int) -> str:
    """The compiler's name of a device."""
    capability = _device(ordinal).compute_capability
    variant = "a" if tuple(capability) in FAMILY else ""
    return f"sm_{capability.major}{capability.minor}{variant}"


@lru_cache
def multiprocessors(ordinal: int) -> int:
    """How many multiprocessors a device has."""
    return int(_device(ordinal).properties.multiprocessor_count)


@lru_cache
def _early(ordinal: int) -> bool:
    """Whether a kernel can wait for the one before it."""
    return tuple(_device(ordinal).compute_capability) >= (9, 0)


class _Foreign:
    """A stream of another library, as cuda-core takes it."""

    def __init__(self, handle: int) -> None:
        self.handle = handle

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self.handle


@lru_cache(maxsize=256)
def _stream(ordinal: int, handle: int) -> Any:
    return _device(ordinal).create_stream(_Foreign(handle))


@lru_cache
def _self_check(library: Library) -> None:
    """Compare the conversion instructions of a target that we never ran with the plain codec; once, and this waits."""
    from cuda.core import launch as run

    name = target(library.ordinal)
    passed = cache_directory() / f"self-check-{name}-{key(source('self_check', ''), name)}"
    if not name.endswith("a") or passed.exists():
        return
    untouched = -1  # the largest pattern
    first = library.upload(np.array([untouched], np.int32))
    _, kernel = _kernel("self_check", "", library.ordinal, 0)
    run(_stream(library.ordinal, library.stream()), _config((257,), 256, 0, False), kernel, pointer(first))
    found = int(first[0])
    if found != untouched:
        got = f"the conversion of float {found & 0xFFFFFFFF:#010x} differs from the codec"
        raise BackendError(f"cuda: {name}", got, "the same codes", "E2M1-3")
    with contextlib.suppress(OSError):
        passed.parent.mkdir(parents=True, exist_ok=True)
        passed.touch()


@lru_cache(maxsize=4096)
def _kernel(name: str, prelude: str, ordinal: int, shared: int) -> Any:
    """A kernel, loaded; dynamic shared memory past the default limit is allowed once, here."""
    from cuda.bindings import driver
    from cuda.core import ObjectCode

    code = ObjectCode.from_cubin(cubin(name, prelude, target(ordinal)))
    kernel = code.get_kernel(name)
    if shared:
        limit = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        (error,) = driver.cuKernelSetAttribute(limit, shared, driver.CUkernel(int(kernel.handle)), ordinal)
        if error:
            raise BackendError(f"cuda: kernel {name}", f"{shared} bytes of shared memory: {error.name}", rule="CNF-5")
    return code, kernel


@lru_cache(maxsize=4096)
def _config(grid: tuple[int, ...], block: int, shared: int, early: bool) -> Any:
    from cuda.core import LaunchConfig

    return LaunchConfig(grid=grid, block=block, shmem_size=shared, programmatic_stream_serialization=early)


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
    from cuda.core import launch as run

    try:
        if getattr(_current, "ordinal", None) is None:
            _device(library.ordinal).set_current()
            _current.ordinal = library.ordinal
        _self_check(library)
        _, kernel = _kernel(name, prelude, library.ordinal, shared)
        run(
            _stream(library.ordinal, library.stream()),
            _config(grid, block, shared, _early(library.ordinal)),
            kernel,
            *arguments,
        )
    except (RuntimeError, SystemError, TypeError) as error:
        raise BackendError(f"cuda: kernel {name}", str(error).splitlines()[0], rule="CNF-5") from error
