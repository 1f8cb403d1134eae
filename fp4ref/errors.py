"""Errors: one base, and children by what does not fit. Each says operation, what was got, what is needed, rule."""

import re


class Fp4Error(ValueError):
    """A request that the specification does not define, or a machine that cannot serve it.

    Prints as one line, `operation: got, need needed [RULE]`; the parts are attributes of the same names. A
    whole message alone is an error, too, because frameworks raise `type(error)(message)` with more words.

    Rules: RES-4.
    """

    def __init__(self, operation: str, got: str = "", needed: str = "", rule: str = "") -> None:
        super().__init__(operation, got, needed, rule)
        self.operation, self.got, self.needed, self.rule = operation, got, needed, rule

    def __str__(self) -> str:
        needed = f", need {self.needed}" if self.needed else ""
        got = f": {self.got}" if self.got else ""
        said, rule = f"{self.operation}{got}{needed}", f" [{self.rule}]" if self.rule else ""
        said = re.sub(r"\s*\n\s*", " ", said)  # what a user gave may print as several lines
        return said if said.endswith(rule) else said + rule  # an error that tells another one names their rule once


class ShapeError(Fp4Error):
    """An array's shape does not fit the format."""


class DTypeError(Fp4Error):
    """An array's element type is not one that the operation takes."""


class DomainError(Fp4Error):
    """A value, name or combination of settings lies outside what is defined."""


class UnknownNameError(DomainError, KeyError):
    """A name that nobody registered; also a KeyError, as a mapping's users expect."""


class BackendError(Fp4Error):
    """A backend that was asked for cannot run, or cannot run this."""


class LayoutError(Fp4Error):
    """Scale bytes are not stored as the operation needs them."""


class UnknownLayoutError(LayoutError, UnknownNameError):
    """A scale layout that nobody registered."""


class FileError(Fp4Error):
    """A file is truncated, hostile, or not what its header says."""
