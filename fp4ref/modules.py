"""Modules that users name: `package.module`, or the path of a Python file."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

from fp4ref.errors import DomainError

PREFIX = "fp4ref_kernel_"  # of a file's module whose own name is taken
_files: dict[tuple[Path, int, int], str] = {}  # files that were imported, as they were then, and their modules


def load_module(place: str, operation: str = "kernel") -> ModuleType:
    """Import a module by its name or its file; a file that has not changed since is not run again.

    Other modules that it imports are looked for beside it last.

    Errors: DomainError where there is no such file; whatever the import raises.

    Rules: CNF-15, CNF-98.
    """
    if not place.endswith(".py"):
        _look_in(Path.cwd())
        return importlib.import_module(place)
    path = Path(place)
    if not path.is_file():
        raise DomainError(operation, f"no file {place}", "a Python file", "CNF-8")
    state = path.stat()
    known = path.resolve(), state.st_mtime_ns, state.st_size
    if (loaded := sys.modules.get(_files.get(known, ""))) is not None:
        return loaded
    name = _free_name(path)
    _look_in(path.resolve().parent)
    described = importlib.util.spec_from_file_location(name, path)
    assert described is not None
    assert described.loader is not None
    module = importlib.util.module_from_spec(described)
    sys.modules[name] = module
    described.loader.exec_module(module)
    _files[known] = name
    return module


def _look_in(folder: Path) -> None:
    """Let imports look in a folder after all others, so that nothing in it stands for a library."""
    if str(folder) not in sys.path:
        sys.path.append(str(folder))


def _free_name(path: Path) -> str:
    """Return the name of a file as a module, or one with a prefix if a module of that name is another file."""
    prefixed = f"{PREFIX}{path.stem}"
    if not path.stem.isidentifier():
        return prefixed
    try:
        known = importlib.util.find_spec(path.stem)
    except ValueError:  # a module without a specification
        return prefixed
    if known is None:
        return path.stem
    same = known.origin is not None and Path(known.origin).resolve() == path.resolve()
    return path.stem if same else prefixed
