"""The names under which scripts import the emulated library, for as long as the alias is installed."""

from __future__ import annotations

import importlib
import sys
from importlib import metadata
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

from fp4ref.te.absent import absent
from fp4ref.te.alias_absent import ABSENT
from fp4ref.te.alias_names import (
    ABSENT_PACKAGES,
    BESIDES,
    EXTENSION,
    GATHERED,
    PRESENT_IN_ABSENT,
    PYTORCH,
    RENAMED,
    ROOT,
    SAME,
    VERSION,
)
from fp4ref.te.errors import SettingError
from fp4ref.te.helpers import torch_version

_INSTALLED: dict[str, ModuleType] = {}


def install_alias() -> None:
    """Make `transformer_engine`, its submodules and `transformer_engine_torch` importable as this layer.

    Tools that look for the library find a module, a version and a distribution. Another call changes nothing.

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
            module.__spec__ = ModuleSpec(name, _FINDER, is_package=True)
        parent, _, child = name.rpartition(".")
        if parent:
            setattr(_INSTALLED[parent], child, module)
    vars(_INSTALLED[ROOT])["__version__"] = VERSION
    sys.modules.update(_INSTALLED)
    sys.meta_path.insert(0, _FINDER)
    for name in ABSENT_PACKAGES:  # as the library itself imports them
        importlib.import_module(name)
    vars(_INSTALLED[PYTORCH])["torch_version"] = torch_version  # a function, not the module of its name
    for name, missing in ABSENT.items():  # last, because a package and a function of it may have one name
        vars(_INSTALLED[name]).update({attribute: absent(attribute) for attribute in missing})


def _modules() -> dict[str, ModuleType]:
    """Return every module by its other name."""
    made = {name: importlib.import_module(f"fp4ref.te.{path}") for name, path in SAME.items()}
    for name, sources in GATHERED.items():
        module = made[name] = ModuleType(name, "An alias of fp4ref.te.")
        for source in sources:
            _gather(module, source)
    for name, sources in BESIDES.items():
        for source in sources:
            _gather(made[name], source)
    return made | {name: made[target] for name, target in RENAMED.items()}


def uninstall_alias() -> None:
    """Take the names away again; what was imported by them keeps working. Rules: TEL-82."""
    if not _INSTALLED:
        return
    for name in [name for name in sys.modules if name.partition(".")[0] in {ROOT, EXTENSION}]:
        del sys.modules[name]
    for name in SAME:  # our own modules lose what they were given
        besides = [other for source in BESIDES.get(name, ()) for other in source.partition(":")[2].split()]
        for attribute in (*ABSENT.get(name, ()), *besides):
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


class _AbsentModule(ModuleType):
    """A module whose names are those of the packages above it where these are emulated, and absent otherwise."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        package = self.__name__
        while "." in package:
            package = package.rpartition(".")[0]
            if package in PRESENT_IN_ABSENT:
                found = vars(sys.modules[package]).get(name)
                if found is not None and not isinstance(found, ModuleType):
                    return found
        return absent(f"{self.__name__}.{name}")


class _Distribution(metadata.Distribution):
    """The metadata that tools read about the library: its name and the version that is emulated."""

    def read_text(self, filename: str) -> str | None:
        return f"Metadata-Version: 2.1\nName: {ROOT}\nVersion: {VERSION}\n" if filename == "METADATA" else None

    def locate_file(self, path: Any) -> Path:
        return Path(__file__).parent / str(path)


class _AbsentFinder(metadata.DistributionFinder, MetaPathFinder, Loader):
    """Finds the absent packages and whatever is asked for below them, and the library's distribution."""

    def find_distributions(self, context: Any = None) -> list[metadata.Distribution]:
        name = None if context is None else context.name
        return [_Distribution()] if name is None or name.lower().replace("-", "_") in {ROOT, EXTENSION} else []

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
