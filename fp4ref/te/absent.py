"""Parts of the emulated library that are not emulated: they import, and raise an error with their name when used."""

from __future__ import annotations

from functools import cache
from typing import Any, NoReturn

from fp4ref.te.errors import NotEmulatedError


class Absent(type):
    """The type of everything absent: attributes that it does not have are absent as well."""

    path: str

    def __getattr__(cls, name: str) -> NoReturn:
        if name.startswith("__"):
            raise AttributeError(f"{cls.__name__} has no attribute {name}")
        refuse(f"{cls.path}.{name}")

    def __used(cls, *_: Any) -> NoReturn:
        refuse(cls.path)

    __lt__ = __le__ = __gt__ = __ge__ = __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __used
    __iter__ = __getitem__ = __index__ = __int__ = __float__ = __enter__ = __used


@cache
def absent(path: str) -> type:
    """Return the class that stands for a name, the same one each time; to call it raises NotEmulatedError.

    Rules: TEL-39.
    """

    def construct(self: Any, *args: Any, **kwargs: Any) -> None:
        refuse(path)

    return Absent(path.rpartition(".")[2], (), {"__init__": construct, "__doc__": "Not emulated.", "path": path})


def refuse(path: str) -> NoReturn:
    """Raise NotEmulatedError with a name. Rules: TEL-39."""
    raise NotEmulatedError("fp4ref.te", path, "a part of the interface that is emulated", "TEL-39")
