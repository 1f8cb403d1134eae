"""A CUDA kernel as a library of the host: a text is compiled once, behind headers that are read once."""

from __future__ import annotations

import atexit
import ctypes
import hashlib
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path

import pytest

import fp4ref_cuda
import fp4ref_numerics

HERE, KERNELS = Path(__file__).parents[1], Path(fp4ref_cuda.__file__).parent / "kernels"
COMPILER = shutil.which("g++")
FLAGS = ("-std=c++17", "-O1", "-w", "-shared", "-fPIC", "-ffp-contract=off", "-U_FORTIFY_SOURCE")
HEADERS = '#include "cuda_on_host.h"\n#include <fp4ref/fp4ref.h>\n'
needs_compiler = pytest.mark.skipif(COMPILER is None, reason="needs g++, which compiles the kernels for the host")

_folder = Path(tempfile.mkdtemp(prefix="cuda-on-host-"))
atexit.register(shutil.rmtree, _folder, ignore_errors=True)


def _compile(source: Path, made: Path, kernels: Path, *flags: str) -> None:
    includes = [f"-I{folder}" for folder in (HERE, kernels, fp4ref_numerics.INCLUDE)]
    subprocess.run([str(COMPILER), *FLAGS, *flags, *includes, str(source), "-o", str(made)], check=True)


@cache
def _headers(flags: tuple[str, ...]) -> Path:
    """A header of the headers, which stand in front of every kernel; g++ takes what it has compiled of it."""
    header = _folder / hashlib.sha256(" ".join(flags).encode()).hexdigest()[:16] / "headers.h"
    header.parent.mkdir()
    header.write_text(HEADERS)
    _compile(header, Path(f"{header}.gch"), KERNELS, *flags, "-x", "c++-header")
    return header


@cache
def library(kernel: str, prelude: str, start: str, kernels: Path = KERNELS, flags: tuple[str, ...] = ()) -> ctypes.CDLL:
    """A kernel as a library, between a prelude and the function that starts it.

    kernels: the folder of the kernel. flags: more of the compiler's.
    """
    text = f'#include "{_headers(flags)}"\n{prelude}\n#include "{kernel}.cu"\n{start}'
    source = _folder / f"{kernel}-{hashlib.sha256(f'{kernels}{flags}{text}'.encode()).hexdigest()[:16]}.cpp"
    source.write_text(text)
    made = source.with_suffix(".so")
    _compile(source, made, kernels, *flags)
    return ctypes.CDLL(str(made))
