"""Errors of the emulation layer.

Transformer Engine reports wrong settings and shapes by assertions, RuntimeError or ValueError, depending on the layer
that notices. These are all three, so that code and tests written for it catch them.
"""

from fp4ref.errors import DomainError, DTypeError, ShapeError


class SettingError(DomainError, AssertionError, RuntimeError):
    """A setting, or a combination of settings, that the emulated library refuses."""


class TensorShapeError(ShapeError, AssertionError, RuntimeError):
    """A shape that the emulated library refuses."""


class TensorDTypeError(DTypeError, AssertionError, RuntimeError):
    """An element type that the emulated library refuses."""


class NotSupportedError(DomainError, NotImplementedError):
    """Something that the emulated library, or this layer, does not do; the message names it."""


class NotEmulatedError(NotSupportedError, AttributeError):
    """A part of the emulated library that this layer lacks; also an AttributeError, so that hasattr returns False."""
