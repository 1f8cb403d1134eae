"""Facts of the machine: versions, compilers, devices, backends, and whether it computes subnormals at all."""

from __future__ import annotations

import ctypes
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

import fp4ref
from fp4ref import registry
from fp4ref.catalogue import PROFILES
from fp4ref.errors import DomainError
from fp4ref.formats import F
from fp4ref.spec import SPEC_VERSION

REQUIRED = ("numpy", "ml_dtypes", "click", "rich")
OPTIONAL = ("torch", "safetensors", "hypothesis", "pytest", "gfloat", "cuda-core", "cuda-bindings", "nvidia-cuda-nvrtc")
COMPILERS = ("c++", "g++", "clang++")
COUNT = 64  # probed values: enough for vector instructions and for what is left over
TIMEOUT = 10.0


class Flush(NamedTuple):
    """A thread's treatment of subnormals."""

    inputs: bool  # operands that are subnormal count as zero
    results: bool  # results that are subnormal become zero


def flush_probe() -> Flush:
    """Compute with subnormals as the model does, with NumPy and in float32, and look at the bits.

    Rules: CNF-4, NUM-1.
    """
    smallest = np.full(COUNT, np.finfo(F).tiny)
    subnormal = np.full(COUNT, np.finfo(F).tiny, F).view(np.uint32) >> 1  # the bits of half of it
    doubled = subnormal.view(F) * np.full(COUNT, 2, F)
    halved = smallest * np.full(COUNT, 0.5, F)
    return Flush(not doubled.view(np.uint32).all(), not halved.view(np.uint32).all())


def require_no_flush(operation: str) -> None:
    """Refuse to judge anything in a thread that flushes subnormals to zero.

    Rules: CNF-4. Certificates: flushing-refused.
    """
    found = flush_probe()
    if any(found):
        what = " and ".join(name for name, flushed in zip(("inputs", "results"), found, strict=True) if flushed)
        raise DomainError(operation, f"subnormal {what} are flushed to zero in this thread", HINT, "CNF-4")


HINT = "arithmetic without flush-to-zero (torch.set_flush_denormal(False); no library built with -ffast-math)"


@dataclass(frozen=True)
class Device:
    """A CUDA device, as the driver names it."""

    name: str
    capability: str


@dataclass(frozen=True)
class MachineReport:
    """Everything `fp4ref doctor` says. An absent package, compiler or driver is None; backends: name -> reason.

    refused: for every backend, the reasons against profiles, each with the profiles' names.
    """

    versions: dict[str, str | None]
    packages: dict[str, str | None]
    system: dict[str, str]
    compilers: dict[str, str | None]
    devices: list[Device]
    devices_reason: str | None
    backends: dict[str, str | None]
    refused: dict[str, dict[str, list[str]]]
    flush: Flush

    @property
    def healthy(self) -> bool:
        """True if results of this machine can be trusted. Rules: CNF-4."""
        return not any(self.flush)


def examine() -> MachineReport:
    """Look at the machine; nothing optional is imported. Rules: CNF-4, CNF-5."""
    devices, reason = cuda_devices()
    own = {"fp4ref": fp4ref.__version__, "specification": SPEC_VERSION, "python": platform.python_version()}
    versions: dict[str, str | None] = {**own, **{name: installed(name) for name in REQUIRED}}
    return MachineReport(
        versions=versions,
        packages={name: installed(name) for name in OPTIONAL},
        system={
            "platform": platform.platform(),
            "processor": processor(),
            "processors usable": str(usable_processors()),
            "byte order": sys.byteorder,
        },
        compilers=compilers(),
        devices=devices,
        devices_reason=reason,
        backends=dict(registry.available()),
        refused=refused(PROFILES),
        flush=flush_probe(),
    )


def refused(profiles: Iterable[str]) -> dict[str, dict[str, list[str]]]:
    """Why installed backends do not serve some profiles: by backend, by reason, the profiles. Rules: CNF-5."""
    found: dict[str, dict[str, list[str]]] = {}
    for name in profiles:
        for backend in registry.backends().values():
            reasons = backend.unserved(registry.Call("quantize", PROFILES[name]))
            by_reason = found.setdefault(backend.name, {})
            if reasons:
                by_reason.setdefault("; ".join(reasons), []).append(name)
    return found


def installed(name: str) -> str | None:
    """Return the version of an installed distribution, without importing it."""
    from importlib import metadata

    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def processor() -> str:
    """Return the model of the CPU, as far as the system tells."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:  # noqa: PTH123 - not a path of ours
            names = [line.partition(":")[2].strip() for line in file if line.startswith("model name")]
    except OSError:
        names = []
    return names[0] if names else platform.processor() or platform.machine()


def usable_processors() -> int:
    """Return the number of processors that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def compilers() -> dict[str, str | None]:
    """C++ compilers by the command that starts them, $CXX first, with the first line of what they say of themselves."""
    found: dict[str, str | None] = {}
    for name in (*filter(None, [os.environ.get("CXX")]), *COMPILERS):
        path = shutil.which(name.split()[0])
        found[name] = None if path is None else _first_line([path, "--version"])
    return found


def _first_line(command: list[str]) -> str | None:
    try:
        run = subprocess.run(  # noqa: S603
            command, capture_output=True, encoding="utf-8", errors="replace", timeout=TIMEOUT, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    lines = run.stdout.splitlines()
    return lines[0].strip() if run.returncode == 0 and lines else None


def cuda_devices() -> tuple[list[Device], str | None]:
    """Return the CUDA devices of this process, asked of the driver; or the reason why there are none."""
    library = {"win32": "nvcuda.dll", "darwin": ""}.get(sys.platform, "libcuda.so.1")
    if not library:
        return [], "no CUDA on this system"
    try:
        driver = ctypes.CDLL(library)
    except OSError:
        return [], f"no CUDA driver ({library} not found)"
    count = ctypes.c_int()
    status = driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count))
    if status or not count.value:
        return [], f"the CUDA driver has no device (status {status})"
    return [_device(driver, ordinal) for ordinal in range(count.value)], None


MAJOR, MINOR = 75, 76  # CUdevice_attribute: compute capability


def _device(driver: ctypes.CDLL, ordinal: int) -> Device:
    handle, name = ctypes.c_int(), ctypes.create_string_buffer(256)
    driver.cuDeviceGet(ctypes.byref(handle), ordinal)
    driver.cuDeviceGetName(name, len(name), handle)
    parts = []
    for attribute in (MAJOR, MINOR):
        value = ctypes.c_int()
        driver.cuDeviceGetAttribute(ctypes.byref(value), attribute, handle)
        parts.append(str(value.value))
    return Device(name.value.decode(errors="replace"), ".".join(parts))
