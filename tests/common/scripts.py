"""Modules by their files: the scripts of the checkout, and second copies of modules."""

from __future__ import annotations

import sys
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from types import ModuleType


def load(path: Path, name: str | None = None) -> ModuleType:
    """Import the file at `path` as a module of its own; `name` is needed where two copies of one file are."""
    loader = SourceFileLoader(name or path.stem, str(path))
    spec = spec_from_loader(loader.name, loader)
    assert spec is not None
    module = sys.modules[loader.name] = module_from_spec(spec)  # where dataclasses look
    loader.exec_module(module)
    return module
