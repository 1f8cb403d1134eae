"""The names under which scripts import the emulated library, for as long as the alias is installed."""

from __future__ import annotations

import importlib
import sys
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from fp4ref.te.alias_names import (
    ABSENT,
    ABSENT_PACKAGES,
    BESIDES,
    EXTENSION,
    GATHERED,
    PRESENT_IN_ABSENT,
    RENAMED,
    ROOT,
    SAME,
)
from fp4ref.te.errors import NotSupportedError, SettingError

_INSTALLED: dict[str, ModuleType] = {}


def install_alias() -> None:
    """Make `transformer_engine`, its submodules and `transformer_engine_torch` importable as this layer.

    Doing it twice is doing it once.

    Errors: SettingError if the real library is loaded.

    Rules: TEL-14.
    """
    if _INSTALLED:
        return
    for name in (ROOT, EXTENSION):
        if name in sys.modules:
            raise SettingError("install_alias", f"{name} already imported", "a process without it", "TEL-14")
    _INSTALLED.update(_modules())
    for name, module in _INSTALLED.items():
        if name not in SAME:
            module.__path__ = []  # a package, so that its submodules are looked up
        parent, _, child = name.rpartition(".")
        if parent:
            setattr(_INSTALLED[parent], child, module)
    sys.modules.update(_INSTALLED)
    sys.meta_path.insert(0, _FINDER)


def _modules() -> dict[str, ModuleType]:
    """Return every module by its other name."""
    made = {name: importlib.import_module(f"fp4ref.te.{path}") for name, path in SAME.items()}
    for name, sources in GATHERED.items():
        module = made[name] = ModuleType(name, "An alias of fp4ref.te.")
        for source in sources:
            _gather(module, source)
    for name, missing in ABSENT.items():
        vars(made[name]).update({attribute: _absent(attribute) for attribute in missing})
    for name, source in BESIDES.items():
        _gather(made[name], source)
    return made | {name: made[target] for name, target in RENAMED.items()}


def uninstall_alias() -> None:
    """Take the names away again; what was imported by them keeps working. Rules: TEL-14."""
    if not _INSTALLED:
        return
    for name in [name for name in sys.modules if name.partition(".")[0] in {ROOT, EXTENSION}]:
        del sys.modules[name]
    for name in SAME:  # our own modules lose what they were given
        for attribute in (*ABSENT.get(name, ()), *BESIDES.get(name, "").partition(":")[2].split()):
            delattr(_INSTALLED[name], attribute)
    sys.meta_path.remove(_FINDER)
    _INSTALLED.clear()


def _gather(module: ModuleType, source: str) -> None:
    path, _, names = source.partition(":")
    if path == "__init__":
        path = ""
    origin = importlib.import_module(f"fp4ref.te.{path}".rstrip("."))
    wanted = names.split()
    chosen = [name for name in vars(origin) if not name.startswith("__")] if wanted == ["*"] else wanted
    for name in chosen:
        setattr(module, name, getattr(origin, name))


def _absent(name: str) -> type:
    """Make a class that raises with this name when it is used. Rules: TEL-39."""

    def refuse(self: Any, *args: Any, **kwargs: Any) -> None:
        raise NotSupportedError("fp4ref.te", name, "a part of the interface that is emulated", "TEL-39")

    return type(name, (), {"__init__": refuse, "__doc__": "Not emulated."})


class _AbsentModule(ModuleType):
    """A module each of whose names is something absent."""

    def __getattr__(self, name: str) -> type:
        if name.startswith("__"):
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        thing = _absent(name)
        setattr(self, name, thing)
        return thing


class _AbsentFinder(MetaPathFinder, Loader):
    """Finds the absent packages and whatever is asked for below them."""

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> ModuleSpec | None:
        if not any(f"{fullname}.".startswith(f"{package}.") for package in ABSENT_PACKAGES):
            return None
        return ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _AbsentModule(spec.name, "Not emulated.")

    def exec_module(self, module: ModuleType) -> None:
        if module.__name__ in PRESENT_IN_ABSENT:
            _gather(module, PRESENT_IN_ABSENT[module.__name__])


_FINDER = _AbsentFinder()
