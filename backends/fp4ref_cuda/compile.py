"""Kernels to machine code: NVRTC with headers from memory, and a cache on disk that is safe to share.

A kernel is a file of `kernels`, preceded by a prelude of types and constants. Its cubin depends on that text, the
headers, the target and the compiler alone, so a hash of these is its name in the cache.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from pathlib import Path

import fp4ref_numerics
from fp4ref.errors import BackendError

KERNELS = Path(__file__).parent / "kernels"
NAMES = tuple(sorted(path.stem for path in KERNELS.glob("*.cu")))
MAGIC = b"fp4ref cubin 1\n"
MOST = 32  # processes that compile; each takes some hundred megabytes


def options(target: str) -> tuple[str, ...]:
    """What the compiler must promise: no contraction, IEEE division, no flush to zero. Rules: NUM-1."""
    return (f"--gpu-architecture={target}", "--std=c++17", "--fmad=false", "--device-as-default-execution-space")


@lru_cache
def headers() -> dict[str, str]:
    """Everything that a kernel may include, by the name it uses."""
    shared = {f"fp4ref/{path.name}": path.read_text() for path in (fp4ref_numerics.INCLUDE / "fp4ref").glob("*.h")}
    return shared | {path.name: path.read_text() for path in KERNELS.iterdir() if path.suffix in {".cu", ".cuh"}}


def source(kernel: str, prelude: str) -> str:
    """The translation unit of a kernel."""
    return f'#include <fp4ref/fp4ref.h>\n{prelude}\n#include "{kernel}.cu"\n'


def compile_cubin(text: str, target: str) -> bytes:
    """Machine code of a translation unit for one target, such as "sm_90"; needs no GPU and no driver."""
    from cuda.bindings import nvrtc

    included = headers()
    names, bodies = [n.encode() for n in included], [b.encode() for b in included.values()]
    error, program = nvrtc.nvrtcCreateProgram(text.encode(), b"kernel.cu", len(names), bodies, names)
    _require(error, "create")
    flags = [option.encode() for option in options(target)]
    (error,) = nvrtc.nvrtcCompileProgram(program, len(flags), flags)
    try:
        if error:
            raise BackendError(f"cuda: compile for {target}", _log(program), rule="CNF-5")
        error, size = nvrtc.nvrtcGetCUBINSize(program)
        _require(error, "size")
        cubin = bytearray(size)
        (error,) = nvrtc.nvrtcGetCUBIN(program, cubin)
        _require(error, "cubin")
    finally:
        nvrtc.nvrtcDestroyProgram(program)
    return bytes(cubin)


def _log(program: object) -> str:
    """The compiler's first error."""
    from cuda.bindings import nvrtc

    _, size = nvrtc.nvrtcGetProgramLogSize(program)
    log = bytearray(size)
    nvrtc.nvrtcGetProgramLog(program, log)
    lines = bytes(log).decode(errors="replace").strip("\0\n").splitlines()
    return next((line.strip() for line in lines if "error" in line), lines[0] if lines else "no log")


def _require(error: object, step: str) -> None:
    if error:
        raise BackendError("cuda", f"NVRTC failed at {step}: {error}", rule="CNF-5")


@lru_cache
def compiler_version() -> str:
    """NVRTC's version; ImportError, OSError or BackendError say why there is none."""
    from cuda.bindings import nvrtc

    error, major, minor = nvrtc.nvrtcVersion()
    _require(error, "version")
    return f"{major}.{minor}"


def cache_directory() -> Path:
    """Where cubins are kept: FP4REF_CACHE_DIR, else the user's cache directory."""
    chosen = os.environ.get("FP4REF_CACHE_DIR")
    base = Path(chosen) if chosen else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "fp4ref"
    return base / "cuda"


@lru_cache
def _headers_hash() -> str:
    return hashlib.sha256(repr(sorted(headers().items())).encode()).hexdigest()


def key(text: str, target: str) -> str:
    """The name of a cubin: a hash of all that determines it."""
    parts = (text, _headers_hash(), *options(target), compiler_version())
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:40]


def _entry(kernel: str, text: str, target: str) -> Path:
    return cache_directory() / f"{kernel}-{target}-{key(text, target)}.cubin"


def is_cached(kernel: str, prelude: str, target: str) -> bool:
    """Whether there is a file of a kernel in the cache."""
    return _entry(kernel, source(kernel, prelude), target).exists()


def cubin(kernel: str, prelude: str, target: str) -> bytes:
    """Machine code of a kernel, from the cache if it is there and whole; what is corrupted is made again."""
    text = source(kernel, prelude)
    path = _entry(kernel, text, target)
    with contextlib.suppress(OSError):
        code = _checked(path.read_bytes())
        if code is not None:
            return code
    code = compile_cubin(text, target)
    with contextlib.suppress(OSError):  # a cache that cannot be written costs time, not results
        _write(path, MAGIC + hashlib.sha256(code).digest() + code)
    return code


def compile_all(kernels: Sequence[tuple[str, str, str]]) -> None:
    """Compile kernels into the cache, as many at a time as there are processors, MOST at most.

    NVRTC works on one program of a process at a time, so these are processes. Errors: none for a kernel that does not
    compile; `cubin` will say why.
    """
    count = min(os.cpu_count() or 1, MOST, len(kernels))
    command, paths = [sys.executable, "-m", __name__], os.pathsep.join(sys.path)

    def work(part: Sequence[tuple[str, str, str]]) -> None:
        asked, variables = json.dumps(part), os.environ | {"PYTHONPATH": paths}
        subprocess.run(command, input=asked, text=True, capture_output=True, check=False, env=variables)  # noqa: S603

    if count:
        with ThreadPoolExecutor(count) as pool:
            list(pool.map(work, [kernels[first::count] for first in range(count)]))


def _checked(stored: bytes) -> bytes | None:
    """The cubin of a cache file, or None if the file is damaged."""
    start = len(MAGIC) + hashlib.sha256().digest_size
    code = stored[start:]
    return code if stored[:start] == MAGIC + hashlib.sha256(code).digest() else None


def _write(path: Path, content: bytes) -> None:
    """Write a file that other processes see whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        Path(name).replace(path)
    except OSError:
        Path(name).unlink(missing_ok=True)
        raise


if __name__ == "__main__":
    for _kernel in json.load(sys.stdin):
        with contextlib.suppress(BackendError):
            cubin(*_kernel)
