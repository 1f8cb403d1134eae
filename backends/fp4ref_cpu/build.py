"""From a specification to a loaded library: find a compiler, compile, keep the result in the user's cache.

An entry of the cache is named by a hash of everything that decides its code and by a hash of its bytes, and appears by
one rename: concurrent processes never see half of it, and a damaged one is noticed and built again.
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
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path

import fp4ref_numerics
from fp4ref.errors import BackendError

try:
    import fcntl
except ImportError:  # no advisory locks: processes may compile the same entry, the last one stays
    fcntl = None  # type: ignore[assignment]

SOURCES = Path(__file__).parent / "csrc"
COMPILERS = ("g++", "clang++", "c++")
FLAGS = (
    "-O3",
    "-std=c++17",
    "-shared",
    "-fPIC",
    "-fvisibility=hidden",  # every specification has the same name in its own library
    "-w",
    "-ffp-contract=off",
    "-DFP4_CONTRACTION_IS_OFF",
    "-fno-fast-math",
    "-fno-trapping-math",
    "-fno-math-errno",
    "-fno-strict-aliasing",
)
# The first that the compiler accepts.
MACHINE_FLAGS = (("-march=native", "-mprefer-vector-width=512"), ("-march=native",), ("-mcpu=native",), ())


def missing(sources: Iterable[str]) -> list[str]:
    """Those texts whose compiled form is not in the cache."""
    command, folder = compiler(), cache_folder()
    return [source for source in dict.fromkeys(sources) if _entry(folder, _key(source, command)) is None]


def compile_all(sources: Iterable[str]) -> None:
    """Compile texts into the cache, as many at a time as there are processors.

    Errors: none for a text that does not compile; `library` will say why.
    """
    command, folder = compiler(), cache_folder()

    def compile_one(source: str) -> None:
        with suppress(BackendError):
            _found(source, command, folder)

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(compile_one, sources))


@lru_cache
def library(source: str) -> ctypes.CDLL:
    """The compiled form of a C++ text that includes the shared header and the loops.

    Errors: BackendError if there is no compiler, if it fails, or if the result cannot be loaded.

    Rules: CNF-5.
    """
    command = compiler()
    path = _found(source, command, cache_folder())
    try:
        return ctypes.CDLL(str(path))
    except OSError as error:
        raise BackendError("cpu", f"cannot load what {command[0]} made ({error})", rule="CNF-5") from None


def _found(source: str, command: list[str], folder: Path) -> Path:
    """The entry of a text, which is compiled if there is none."""
    key = _key(source, command)
    path = _entry(folder, key)
    if path is None:
        with _locked(folder / f"{key}.lock"):
            path = _entry(folder, key) or _compiled(source, command, folder, key)
    return path


def compiler() -> list[str]:
    """The command that $CXX names, or the first compiler found."""
    asked = shlex.split(os.environ.get("CXX", ""))
    for command in [asked] if asked else [[name] for name in COMPILERS]:
        found = shutil.which(command[0])
        if found:
            return [found, *command[1:]]
    tried = f"CXX={asked[0]} not found" if asked else f"{', '.join(COMPILERS)} not found"
    raise BackendError("no C++ compiler", tried, "one of them, or the environment variable CXX", "CNF-5")


def cache_folder() -> Path:
    """$FP4REF_CACHE_DIR, or the user's cache folder; one of this process if that cannot be written."""
    home = os.environ.get("FP4REF_CACHE_DIR")
    base = Path(home) if home else Path(os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser()) / "fp4ref"
    folder = base / "cpu"
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        with tempfile.TemporaryFile(dir=folder):
            return folder
    except OSError:
        return Path(_own_folder().name)


@lru_cache
def _own_folder() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="fp4ref-cpu-")


def _key(source: str, command: list[str]) -> str:
    """A hash of everything that decides the code: text, headers, flags, compiler, machine."""
    parts = [source, *_headers(), *command, _version(tuple(command)), *FLAGS, repr(MACHINE_FLAGS), _machine()]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]


@lru_cache
def _headers() -> tuple[str, ...]:
    folders = (fp4ref_numerics.INCLUDE / "fp4ref", SOURCES)
    return tuple(path.name + path.read_text("utf-8") for folder in folders for path in sorted(folder.glob("*.h")))


@lru_cache
def _version(command: tuple[str, ...]) -> str:
    """What the compiler says about itself; nothing if it cannot run, which compiling will then report."""
    with suppress(OSError, subprocess.SubprocessError):
        run = subprocess.run([*command, "--version"], capture_output=True, timeout=60, check=False)  # noqa: S603
        return run.stdout.decode(errors="replace")
    return ""


@lru_cache
def _machine() -> str:
    """The processor that "native" means: its name and its features."""
    lines = [platform.system(), platform.machine(), platform.processor()]
    with suppress(OSError):
        wanted = ("vendor_id", "cpu family", "model", "flags", "Features", "CPU ")
        info = Path("/proc/cpuinfo").read_text("utf-8", errors="replace").split("\n\n", 1)[0]
        lines += [line for line in info.splitlines() if line.startswith(wanted)]
    return "\n".join(lines)


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]


def _entry(folder: Path, key: str) -> Path | None:
    """The undamaged entry of a key; damaged ones are removed."""
    for path in sorted(folder.glob(f"{key}-*.so")):
        with suppress(OSError):
            if path.name == f"{key}-{_digest(path.read_bytes())}.so":
                return path
            path.unlink()
    return None


def _compiled(source: str, command: list[str], folder: Path, key: str) -> Path:
    """Compile into the cache."""
    with tempfile.TemporaryDirectory(prefix=f"{key}.", dir=folder) as work:
        made = Path(work) / "library.so"
        _compile(source, command, made)
        path = folder / f"{key}-{_digest(made.read_bytes())}.so"
        made.replace(path)
        return path


def _compile(source: str, command: list[str], made: Path) -> None:
    text = made.with_suffix(".cpp")
    text.write_text(source, "utf-8")
    includes = [f"-I{fp4ref_numerics.INCLUDE}", f"-I{SOURCES}"]
    failures = []
    for machine in MACHINE_FLAGS:
        line = [*command, *FLAGS, *machine, *includes, str(text), "-o", str(made)]
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
    raise BackendError("no C++ compiler that works", f"{command[0]}: {failures[-1]}", "C++17", "CNF-5")


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold a lock file, so that one of several processes compiles and the others wait for it."""
    if fcntl is None:
        yield
        return
    with path.open("w") as file:
        with suppress(OSError):  # a file system without locks
            fcntl.flock(file, fcntl.LOCK_EX)
        try:
            yield
        finally:
            path.unlink(missing_ok=True)
