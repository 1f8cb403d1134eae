"""From C++ texts to loaded functions: find a compiler, compile, keep the result in the user's cache.

A text contains `@` where its key belongs, in the names of its namespace and functions, so that several texts can be
compiled into one library: reading the headers and linking cost more than many a text. The key is a hash of everything
that decides the code. The cache has one entry per text, named by the key and by a hash of the library's bytes; entries
of texts that were compiled together are links to one file. An entry appears by one rename, so that concurrent processes
never see half of it. A file that is damaged, or that does not contain the key, is built again.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import lru_cache
from itertools import product
from pathlib import Path
from typing import Any

import fp4ref_numerics
from fp4ref.errors import BackendError
from fp4ref_numerics import cache

try:
    import fcntl
except ImportError:  # no advisory locks: processes may compile the same entry, the last one stays
    fcntl = None  # type: ignore[assignment]

SOURCES = Path(__file__).parent / "csrc"
COMPILERS = ("g++", "clang++", "c++")
FLAGS = (
    "-std=c++17",
    "-shared",
    "-fPIC",
    "-fvisibility=hidden",
    "-w",
    "-ffp-contract=off",
    "-DFP4_CONTRACTION_IS_OFF",
    "-fno-fast-math",
    "-fno-trapping-math",
    "-fno-math-errno",
    "-fno-strict-aliasing",
)
# The first that the compiler accepts. GCC's -O1 with these passes of -O2 makes loops as fast as -O2 does in three
# quarters of the time, and that in half of what -O3 takes; without -ftree-vrp some are 15 times slower.
VECTORIZED = ("-ftree-vectorize", "-fvect-cost-model")
WITH = ("-finline-functions", "-fipa-icf", "-ftree-vrp")
WITHOUT = ("-fno-tree-pre", "-fno-code-hoisting", "-fno-gcse", "-fno-thread-jumps", "-fno-schedule-insns2")
OPTIMIZATION_FLAGS = (
    ("-O1", *VECTORIZED, *WITH, *WITHOUT, "-fira-region=one"),
    ("-O2", *VECTORIZED),
    ("-O3",),
)
MACHINE_FLAGS = (("-march=native", "-mprefer-vector-width=512"), ("-march=native",), ("-mcpu=native",), ())

CACHE = cache.CacheFolder("cpu")
TOGETHER = 160  # texts of one library, at most: the compiler takes 0.3 GB for them


def missing(texts: Iterable[str]) -> list[str]:
    """Those texts whose compiled form is not in the cache."""
    command = tuple(compiler())
    return [text for text in dict.fromkeys(texts) if _entry(_key(text, command)) is None]


def compile_all(texts: Sequence[str]) -> None:
    """Compile texts into the cache, several per library, as many libraries at a time as there are processors.

    Texts that end alike, which is where types and blocks stand, go into one library: its loops over memory are compiled
    once for all of them.

    Errors: none for a text that does not compile; `functions` will say why.
    """
    command, processors = tuple(compiler()), os.cpu_count() or 1
    keys = {_key(text, command): text for text in texts}
    alike = sorted(keys, key=lambda key: keys[key].splitlines()[::-1])
    size = -(-len(alike) // (processors * -(-len(alike) // (processors * TOGETHER)))) if alike else 1
    batches = [alike[start : start + size] for start in range(0, len(alike), size)]

    def compile_some(batch: list[str]) -> None:
        with suppress(BackendError):
            _found({key: keys[key] for key in batch}, command)

    with ThreadPoolExecutor(processors) as pool:
        list(pool.map(compile_some, batches))


JOB = (ctypes.c_void_p,)  # what most functions take: the address of a job


def functions(text: str, *names: str, takes: Sequence[Any] = JOB) -> list[Any]:
    """Return the functions `fp4ref_NAME_@` of a text; they take arguments of these types and return nothing."""
    native, key = library(text), _key(text, tuple(compiler()))
    found = [getattr(native, f"fp4ref_{name}_{key}") for name in names]
    for function in found:
        function.restype, function.argtypes = None, tuple(takes)
    return found


@lru_cache
def library(text: str) -> ctypes.CDLL:
    """Return the compiled form of a C++ text that includes the shared header and the loops.

    Errors: BackendError if there is no compiler, if it fails, or if the result cannot be loaded.

    Rules: CNF-5.
    """
    command = tuple(compiler())
    key = _key(text, command)
    path = _found({key: text}, command)[key]
    try:
        return ctypes.CDLL(str(path))
    except OSError as error:
        raise BackendError("cpu", f"cannot load what {command[0]} made ({error})", rule="CNF-5") from None


def _found(texts: dict[str, str], command: tuple[str, ...]) -> dict[str, Path]:
    """Return the entries of texts by key; those that the cache lacks are compiled, into one library."""
    entries = {key: _entry(key) for key in texts}
    if None in entries.values():
        folder = CACHE.writable()
        with _locked(folder / f"{next(iter(texts))}.lock"):
            entries = {key: _entry(key) for key in texts}
            lacking = {key: texts[key] for key, path in entries.items() if path is None}
            if lacking:
                entries |= _compiled(lacking, command, folder)
    return {key: path for key, path in entries.items() if path is not None}


def compiler() -> list[str]:
    """Return the command that $CXX names, or the first compiler found."""
    asked = shlex.split(os.environ.get("CXX", ""))
    for command in [asked] if asked else [[name] for name in COMPILERS]:
        found = shutil.which(command[0])
        if found:
            return [found, *command[1:]]
    tried = f"CXX={asked[0]} not found" if asked else f"{', '.join(COMPILERS)} not found"
    raise BackendError("no C++ compiler", tried, "one of them, or the environment variable CXX", "CNF-5")


@lru_cache
def _key(text: str, command: tuple[str, ...]) -> str:
    """Return a hash of everything that decides the code: text, headers, flags, compiler, machine."""
    flags = repr((FLAGS, OPTIMIZATION_FLAGS, MACHINE_FLAGS))
    parts = [text, _headers(), *command, _version(command), flags, _machine()]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]


@lru_cache
def _headers() -> str:
    folders = (fp4ref_numerics.INCLUDE / "fp4ref", SOURCES)
    texts = (path.name + path.read_text("utf-8") for folder in folders for path in sorted(folder.glob("*.h")))
    return _digest("\0".join(texts).encode())


@lru_cache
def _version(command: tuple[str, ...]) -> str:
    """Return the compiler's version text; nothing if it cannot run, which compiling will then report."""
    with suppress(OSError, subprocess.SubprocessError):
        run = subprocess.run([*command, "--version"], capture_output=True, timeout=60, check=False)  # noqa: S603
        return run.stdout.decode(errors="replace")
    return ""


@lru_cache
def _machine() -> str:
    """Return the processor that "native" means: its name and its features."""
    lines = [platform.system(), platform.machine(), platform.processor()]
    with suppress(OSError):
        wanted = ("vendor_id", "cpu family", "model", "flags", "Features", "CPU ")
        info = Path("/proc/cpuinfo").read_text("utf-8", errors="replace").split("\n\n", 1)[0]
        lines += [line for line in info.splitlines() if line.startswith(wanted)]
    return "\n".join(lines)


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]


def _entry(key: str) -> Path | None:
    """Return the entry of a key, or None; a file that may not be run is removed."""
    for path in (path for folder in CACHE.readable() for path in sorted(folder.glob(f"{key}-*.so"))):
        with suppress(OSError):
            if cache.trusted(path):
                content = path.read_bytes()
                if path.name == f"{key}-{_digest(content)}.so" and _mark(key).encode() in content:
                    return path
            path.unlink()
    return None


def _mark(key: str) -> str:
    """Return the name of a constant by which a library proves that it contains the text of a key."""
    return f"fp4ref_{key}"


def _compiled(texts: dict[str, str], command: tuple[str, ...], folder: Path) -> dict[str, Path]:
    """Compile texts into one library in the cache; its paths by key."""
    marks = (f'extern "C" __attribute__((visibility("default"))) const char {_mark(key)} = 0;\n' for key in texts)
    whole = "".join((*(text.replace("@", key) for key, text in texts.items()), *marks))
    with tempfile.TemporaryDirectory(prefix=f"{next(iter(texts))}.", dir=folder) as work:
        made = Path(work) / "library.so"
        _compile(whole, command, made)
        made.chmod(0o755)  # whatever the umask, nobody else writes to it
        digest, paths = _digest(made.read_bytes()), {}
        for number, key in enumerate(texts):
            entry = Path(work) / f"{number}.so"
            try:
                entry.hardlink_to(made)
            except OSError:  # a file system without links
                shutil.copy(made, entry)
            paths[key] = entry.replace(folder / f"{key}-{digest}.so")
        return paths


def _compile(text: str, command: tuple[str, ...], made: Path) -> None:
    source = made.with_suffix(".cpp")
    source.write_text(text, "utf-8")
    includes = [f"-I{fp4ref_numerics.INCLUDE}", f"-I{SOURCES}"]
    failures = []
    for optimization, machine in product(OPTIMIZATION_FLAGS, MACHINE_FLAGS):
        line = [*command, *optimization, *FLAGS, *machine, *includes, str(source), "-o", str(made)]
        try:
            run = subprocess.run(line, capture_output=True, timeout=600, check=False)  # noqa: S603
        except (OSError, subprocess.SubprocessError) as error:
            failures.append(str(error).splitlines()[0])
            continue
        if run.returncode == 0 and made.is_file():
            return
        said = run.stderr.decode(errors="replace").splitlines()
        failures.append(next((s for s in said if "error" in s.lower()), said[0] if said else "no message"))
        failures[-1] = f"status {run.returncode}, {failures[-1].strip()}"
        if run.returncode < 0:  # ended by a signal, as by an interrupt: other flags would only prolong that
            break
    raise BackendError("no C++ compiler that works", f"{command[0]}: {failures[-1]}", "C++17", "CNF-5")


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold a lock file, so that one of several processes compiles and the others wait for it."""
    if fcntl is None:
        yield
        return
    with path.open("w", encoding="ascii") as file:
        with suppress(OSError):  # a file system without locks
            fcntl.flock(file, fcntl.LOCK_EX)
        try:
            yield
        finally:
            path.unlink(missing_ok=True)
