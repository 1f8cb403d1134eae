"""The base of all quantizers."""

from __future__ import annotations

import abc
from collections.abc import Callable, Hashable, Iterable
from operator import attrgetter
from typing import Any, NamedTuple, Self, TypeAlias

import torch
from torch import Tensor

from fp4ref.te.cast import quantize as cast
from fp4ref.te.recipe import Recipe

LASTING = ("internal", "optimize_for_gemm", "role")  # settings of all quantizers that do not choose directions
_lasting_of = attrgetter(*LASTING)
Facts: TypeAlias = tuple[torch.dtype, tuple[int, ...], torch.device]  # type, shape and device of a tensor


class InSteps(NamedTuple):
    """Operations of backends that make tensors of a kind: `results` arrays of each, or None in the place of one.

    hold: makes a quantized tensor of these, by its quantizer.
    """

    act: Callable[[Tensor], tuple[Tensor | None, ...]]
    results: int
    hold: Callable[[tuple[Any, ...], Any], Any]


class _Quantize(torch.autograd.Function):
    """Quantize; the gradient passes unchanged."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, function: Callable[[Tensor], Any]) -> Any:  # noqa: ARG004 - torch's signature
        return function(tensor)  # which detaches it where it reads more than its address

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:  # noqa: ARG004
        return grad, None


def can_reconstruct_wgrad_input_from_original(quantizer: Quantizer) -> bool:
    """Return True if the columns of an input can be made later, from the input as it came. Rules: TEM-42."""
    return quantizer.reconstructs_from_original()


class Quantizer(abc.ABC):
    """Settings, and the methods that make quantized tensors with them.

    rowwise_usage, columnwise_usage: the directions to produce. internal: produce storage without the interface of a
    tensor. optimize_for_gemm: leave the scales as the matrix product reads them. role: the operand's name in
    `te.debug.operation_counts`.

    Modules quantize by copies, so that calls in several threads do not direct each other. A copy has the same values
    of attributes: a subclass that counts, say, does it in an object that all copies have, not in an attribute.
    """

    dtype: Any

    def __init__(self, *, rowwise: bool, columnwise: bool) -> None:
        self.rowwise_usage = rowwise
        self.columnwise_usage = columnwise
        self.internal = False
        self.optimize_for_gemm = False
        self.role = "tensor"

    def __repr__(self) -> str:
        return f"{type(self).__name__}(rowwise_usage={self.rowwise_usage}, columnwise_usage={self.columnwise_usage})"

    def __call__(self, tensor: Tensor) -> Any:
        """`quantize` by its short name."""
        return self.quantize(tensor)

    def quantize(self, tensor: Tensor, *, out: Any = None, dtype: torch.dtype | None = None) -> Any:
        """Quantize a tensor [..., K], into `out` if given; `dtype` is applied first. Autograd passes gradients through.

        Errors: TensorShapeError, TensorDTypeError, SettingError.

        Rules: TEL-3.
        """
        if dtype is not None:
            tensor = tensor.to(dtype)
        if out is not None:
            return self.update_quantized(tensor, out)
        if tensor.requires_grad and torch.is_grad_enabled() and not self.internal:
            return _Quantize.apply(tensor, self.quantize_impl)  # type: ignore[no-untyped-call]
        return self.quantize_impl(tensor)

    def quantize_impl(self, tensor: Tensor) -> Any:
        """Quantize without autograd."""
        return cast(tensor, self)

    def kind(self) -> Hashable | None:
        """Return all that decides, beside what is `kept`, what quantizing does on a device; None if it may do more."""
        return None

    def kept(self) -> tuple[Tensor, ...]:
        """Return the tensors that last from one call to the next, by which codes are made, or which calls change."""
        return ()

    def kind_of_call(self) -> Hashable | None:
        """Return all that decides, with the kinds of its tensors, about one call; None if something else does, too."""
        return self.kind()

    @property
    def lasting(self) -> tuple[Hashable, ...]:
        """The settings of all quantizers that do not choose directions."""
        found: tuple[Hashable, ...] = _lasting_of(self)
        return found

    def draw(self, tensor: Tensor) -> tuple[Tensor | None, Tensor | None] | None:
        """Return the random bytes of both directions that quantizing a tensor takes, drawn now; None for none."""
        return None

    def multi_quantize(self, tensors: Iterable[Tensor]) -> list[Any]:
        """Quantize each of several tensors."""
        return [self.quantize(tensor) for tensor in tensors]

    def update_quantized(self, src: Tensor, dst: Any, *, noop_flag: Tensor | None = None) -> Any:
        """Quantize into the buffers of `dst`, whose addresses stay; nothing changes where noop_flag[0] is 1.

        Rules: TEL-5, TEL-24.
        """
        self.require_destination(dst)
        if src.device != dst.device:
            src = src.to(dst.device)
        cast(src, self, dst, noop_flag)
        return dst

    @staticmethod
    def get_columnwise_shape(shape: Iterable[int]) -> tuple[int, ...]:
        """Return the shape of columnwise codes: the last dimension first, where a format transposes them."""
        sizes = tuple(shape)
        return (*sizes[-1:], *sizes[:-1])

    @abc.abstractmethod
    def require_destination(self, dst: Any) -> None:
        """Raise unless `dst` holds this quantizer's kind of bytes."""

    @abc.abstractmethod
    def allocate(self, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device, **options: Any) -> Any:
        """Make a quantized tensor with uninitialized buffers for the directions in use."""

    @abc.abstractmethod
    def prepare(self, dst: Any, shape: tuple[int, ...], device: torch.device) -> None:
        """Fit an existing tensor to the directions in use; buffers that exist stay."""

    @abc.abstractmethod
    def fill(self, tensor: Tensor, dst: Any, noop: Tensor | None = None) -> None:
        """Quantize a contiguous tensor with elements into the buffers of `dst`, unless noop, uint8 [], is not 0."""

    def make(self, tensor: Tensor, drawn: Any = None) -> Any:
        """Quantize a contiguous tensor into new buffers. drawn: what `draw` returned for it; None draws now."""
        made = self.allocate(tuple(tensor.shape), tensor.dtype, tensor.device)
        self.fill(tensor, made)
        return made

    def made_again(self, tensor: Tensor) -> Callable[[Tensor, Self], Any] | None:
        """Return a function that makes tensors of a kind, as `make` just made one of it, with nothing decided again.

        The function gets the quantizer, of the same kind, to copy it. Where there is no such function, return None.
        """
        return None

    def in_steps(self, tensor: Tensor) -> InSteps | None:
        """Return operations of backends alone that make tensors of a kind; None where making takes more than these."""
        return None

    def filled_again(
        self, tensor: Tensor, dst: Any, flag: Tensor | None
    ) -> Callable[[Tensor, Self, Any, Tensor | None], None] | None:
        """Return a function that fills tensors of a kind as `fill` just filled one, with nothing decided again.

        flag: on a device, where 1 keeps the buffers as they are. The function gets a tensor, the quantizer, which has
        the same kind, the tensor to fill with its scales where the quantizer wants them, and a flag of this one's kind.
        Where there is no such function, return None.
        """
        return None

    def takes_noop(self, tensor: Tensor) -> bool:
        """Return True if `fill` of this tensor protects the buffers by itself."""
        return True

    @abc.abstractmethod
    def bakes_swizzled_scales(self, shape: tuple[int, ...]) -> bool:
        """Return True if quantizing a tensor of this shape writes its scales in the GEMM layout. Rules: TEL-28."""

    @abc.abstractmethod
    def require(self, shape: tuple[int, ...], dtype: torch.dtype | None) -> None:
        """Raise unless the settings fit each other, and a tensor's shape and dtype."""

    @abc.abstractmethod
    def is_quantizable(self, inp: Tensor) -> bool:
        """Return True if a tensor's shape and the settings allow to quantize it for an all-gather."""

    def make_empty(
        self,
        shape: Iterable[int],
        *,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str | None = None,
        pin_memory: bool = False,
        requires_grad: bool = False,
    ) -> Any:
        """Return a quantized tensor with uninitialized buffers. Rules: TEL-4."""
        sizes = tuple(int(size) for size in shape)
        self.require(sizes, None)
        where = torch.device(device if device is not None else "cuda" if torch.cuda.is_available() else "cpu")
        return self.allocate(sizes, dtype, where, pin_memory=pin_memory, requires_grad=requires_grad)

    def set_usage(self, *, rowwise: bool | None = None, columnwise: bool | None = None) -> None:
        """Choose the directions to produce; None leaves one as it is."""
        if rowwise is not None:
            self.rowwise_usage = rowwise
        if columnwise is not None:
            self.columnwise_usage = columnwise

    def get_usages(self) -> dict[str, bool]:
        """Return the directions to produce."""
        return {"rowwise": self.rowwise_usage, "columnwise": self.columnwise_usage}

    def copy(self) -> Self:
        """Return a quantizer with the same settings, process group included, which can be changed on its own."""
        other = object.__new__(type(self))
        other.__dict__ = self.__dict__.copy()
        return other

    def calibrate(self, tensor: Tensor) -> None:  # noqa: B027 - a hook for recipes with a history
        """Nothing: scales come from the tensor itself."""

    def is_requantization_safe(self) -> bool:
        """Return True if quantizing again gives the same bytes: nothing is drawn or remembered. Rules: TEM-42."""
        return False

    def reconstructs_from_original(self) -> bool:
        """Return True if the columns of an input can be made later, from the input as it came. Rules: TEM-42."""
        return self.is_requantization_safe()

    def supports_only_rowwise_all_gather(self) -> bool:
        """Return True if only the row direction can be gathered."""
        return False

    def _get_compatible_recipe(self) -> type[Recipe] | None:
        return None
