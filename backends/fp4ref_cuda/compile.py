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
from fp4ref_numerics import cache

KERNELS = Path(__file__).parent / "kernels"
NAMES = tuple(sorted(path.stem for path in KERNELS.glob("*.cu")))
MAGIC = b"fp4ref cubin 2\n"
HEAD = len(MAGIC) + hashlib.sha256().digest_size
CACHE = cache.CacheFolder("cuda")
MOST = 32  # processes that compile; each takes some hundred megabytes


def options(target: str) -> tuple[str, ...]:
    """Return the compiler's options: no contraction, IEEE division, no flush to zero. Rules: NUM-1."""
    plain = f"--gpu-architecture={target}", "--std=c++17", "--fmad=false", "--device-as-default-execution-space"
    return (*plain, "--device-int128") if sys.platform == "linux" else plain  # NVRTC has no such option elsewhere


@lru_cache
def headers() -> dict[str, str]:
    """Everything that a kernel may include, by the name it uses."""
    shared = {
        f"fp4ref/{path.name}": path.read_text("utf-8") for path in (fp4ref_numerics.INCLUDE / "fp4ref").glob("*.h")
    }
    return shared | {path.name: path.read_text("utf-8") for path in KERNELS.iterdir() if path.suffix in {".cu", ".cuh"}}


def source(kernel: str, prelude: str) -> str:
    """Return the translation unit of a kernel."""
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
    """Return the compiler's first error."""
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


@lru_cache
def _headers_hash() -> str:
    return hashlib.sha256(repr(sorted(headers().items())).encode()).hexdigest()


def key(text: str, target: str) -> str:
    """Return the name of a cubin: a hash of all that determines it."""
    parts = (text, _headers_hash(), *options(target), compiler_version())
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:40]


def _entry(kernel: str, text: str, target: str) -> str:
    return f"{kernel}-{target}-{key(text, target)}.cubin"


def is_cached(kernel: str, prelude: str, target: str) -> bool:
    """Return True if a kernel's machine code is in the cache."""
    return stored(_entry(kernel, source(kernel, prelude), target)) is not None


def cubin(kernel: str, prelude: str, target: str) -> bytes:
    """Return a kernel's machine code, from the cache if it is there and whole, else compiled."""
    text = source(kernel, prelude)
    entry = _entry(kernel, text, target)
    code = stored(entry)
    if code is None:
        code = compile_cubin(text, target)
        store(entry, code)
    return code


def stored(entry: str) -> bytes | None:
    """Return the contents of an entry of the cache; None if it is missing or damaged, or if others can have written it.

    Rules: CNF-5.
    """
    for folder in CACHE.readable():
        with contextlib.suppress(OSError):
            if cache.trusted(folder / entry):
                file = (folder / entry).read_bytes()
                content = file[HEAD:]
                if file[:HEAD] == _head(entry, content):
                    return content
    return None


def store(entry: str, content: bytes = b"") -> None:
    """Write an entry of the cache, which other processes see whole or not at all.

    A cache that cannot be written costs time, not results.
    """
    handle, name = tempfile.mkstemp(dir=CACHE.writable())
    with contextlib.suppress(OSError):
        with os.fdopen(handle, "wb") as file:
            file.write(_head(entry, content) + content)
        Path(name).replace(Path(name).with_name(entry))
        return
    Path(name).unlink(missing_ok=True)


def _head(entry: str, content: bytes) -> bytes:
    """Return the start of an entry's file, by which damage and another entry's contents are noticed."""
    return MAGIC + hashlib.sha256(entry.encode() + b"\0" + content).digest()


def compile_all(kernels: Sequence[tuple[str, str, str]]) -> None:
    """Compile kernels into the cache, as many at a time as there are processors, MOST at most.

    NVRTC works on one program of a process at a time, so these are processes. Errors: none for a kernel that does not
    compile; `cubin` will say why.
    """
    count = min(os.cpu_count() or 1, MOST, len(kernels))
    command = [sys.executable, "-m", __name__]
    variables = os.environ | {
        "PYTHONPATH": os.pathsep.join(sys.path),
        "FP4REF_CACHE_DIR": str(CACHE.writable().parent),
    }

    def work(part: Sequence[tuple[str, str, str]]) -> None:
        asked = json.dumps(part)
        subprocess.run(command, input=asked, encoding="utf-8", capture_output=True, check=False, env=variables)  # noqa: S603

    if count:
        with ThreadPoolExecutor(count) as pool:
            list(pool.map(work, [kernels[first::count] for first in range(count)]))


if __name__ == "__main__":
    for _kernel in json.load(sys.stdin):
        with contextlib.suppress(BackendError):
            cubin(*_kernel)
