"""Tensors with a part per direction: one is read by rows, the other by columns."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from fp4ref.te.dtypes import FLOATS
from fp4ref.te.errors import NotSupportedError, SettingError, TensorDTypeError
from fp4ref.te.identity_tensor import IdentityTensorStorage
from fp4ref.te.storage import QuantizedTensorStorage, sharing_buffers
from fp4ref.te.tensor import QuantizedTensor

NAMES = {"row": "_rowwise_storage", "column": "_columnwise_storage"}


class HybridQuantizedTensorStorage(QuantizedTensorStorage):
    """Two quantized tensors of one tensor's values: one is read by rows, the other by columns."""

    SETTINGS = tuple(NAMES.values())
    _rowwise_storage: Any
    _columnwise_storage: Any

    def _assign(self, quantizer: Any = None, fake_dtype: torch.dtype | None = None, **values: Any) -> None:
        if not hasattr(quantizer, "columnwise_quantizer"):
            got = f"{type(self).__name__} requires a parent HybridQuantizer, got {type(quantizer).__name__}"
            raise TypeError(got)
        super()._assign(quantizer, fake_dtype, **values)

    @property
    def rowwise_sub_storage(self) -> Any:
        """The part that is read by rows, or None."""
        return self._rowwise_storage

    @property
    def columnwise_sub_storage(self) -> Any:
        """The part that is read by columns, or None."""
        return self._columnwise_storage

    def parts(self) -> dict[str, Any]:
        """Return the parts that there are, by direction."""
        held = {direction: getattr(self, name) for direction, name in NAMES.items()}
        return {direction: part for direction, part in held.items() if part is not None}

    def buffers(self) -> list[Tensor]:
        """Return the buffers of both parts."""
        return [buffer for part in self.parts().values() for buffer in part.buffers()]

    def get_data_tensors(self) -> tuple[Tensor | None, ...]:
        """Return the buffers of elements of each part, one part after the other."""
        return tuple(data for part in self.parts().values() for data in part.get_data_tensors())

    def with_buffers(self, change: Callable[[Tensor], Tensor]) -> dict[str, Any]:
        """Return parts with changed buffers, by name."""
        return self._with_parts(lambda part: _remade(part, part.with_buffers(change)))

    def _with_parts(self, change: Callable[[Any], Any]) -> dict[str, Any]:
        parts = self.parts()
        return {
            name.lstrip("_"): change(parts[direction]) if direction in parts else None
            for direction, name in NAMES.items()
        }

    def _some_buffer(self) -> Tensor:
        buffers = self.buffers()
        if not buffers:
            raise SettingError(type(self).__name__, "no data", "a tensor with one direction")
        return buffers[0]

    def logical_shape(self) -> torch.Size:
        """Return the shape of the tensor that was quantized."""
        for part in self.parts().values():
            return part.logical_shape()  # type: ignore[no-any-return]
        raise SettingError("HybridQuantizedTensor", "no data", "a tensor with one direction")

    def directions(self) -> list[str]:
        """Return the directions that have a part."""
        return list(self.parts())

    def read_in(self, direction: str) -> Any:
        """Return the part that a product reads in one direction. Rules: TEL-88."""
        part = getattr(self, NAMES[direction])
        if part is None:
            got = f"has no {direction}wise sub-storage"
            raise SettingError("HybridQuantizedTensor", got, f"one quantized with {direction}wise=True", "TEL-25")
        return part

    def update_usage(self, rowwise_usage: bool | None = None, columnwise_usage: bool | None = None) -> None:
        """Keep the wanted parts and let go of the others.

        Errors: SettingError for a part that is missing; nothing is let go of then.

        Rules: TEL-25.
        """
        wanted = {"row": rowwise_usage, "column": columnwise_usage}
        for direction, use in wanted.items():
            if use:
                self.read_in(direction)
        for direction, use in wanted.items():
            if use is False:
                setattr(self, NAMES[direction], None)

    def decode(self, dtype: torch.dtype) -> Tensor:
        """Return the values of the rows, or of the columns if there are no rows. Rules: TEL-8."""
        values: Tensor = self.read_in(self.directions()[0] if self.directions() else "row").decode(dtype)
        return values

    def copy_from_storage(self, src: Any) -> None:
        """Copy the bytes of both parts.

        Errors: NotSupportedError for other parts than those of this tensor.
        """
        if src.directions() != self.directions():
            got = f"requires matching rowwise/columnwise usages, got {src.get_usages()}"
            raise NotSupportedError("HybridQuantizedTensor.copy_", got, f"{self.get_usages()}", "TEL-56")
        for direction, part in self.parts().items():
            part.copy_from_storage(src.read_in(direction))

    def prepare_for_saving(self) -> tuple[list[Tensor | None], Any]:
        """Return the buffers of both parts, and this object, whose parts let go of them."""
        saved: list[Tensor | None] = []
        for direction, part in self.parts().items():
            tensors, kept = sharing_buffers(part).prepare_for_saving()  # others may hold the same part
            setattr(self, NAMES[direction], kept)
            saved += tensors
        return saved, self

    def restore_from_saved(self, tensors: list[Tensor | None]) -> list[Tensor | None]:
        """Take the buffers back from the front of a list; returns the rest of it."""
        for part in self.parts().values():
            tensors = part.restore_from_saved(tensors)
        return tensors

    def view(self, *shape: Any) -> Any:
        """Return the same parts under another shape."""
        sizes = shape[0] if len(shape) == 1 and not isinstance(shape[0], int) else shape
        parts = self._with_parts(lambda part: part if tuple(sizes) == tuple(self.logical_shape()) else part.view(sizes))
        return HybridQuantizedTensorStorage(**parts, quantizer=self._quantizer, fake_dtype=self._dtype)

    def shown(self) -> str:
        """Return the kinds of both parts."""
        kinds = {direction: type(part).__name__ for direction, part in self.parts().items()}
        return ", ".join(f"{direction}wise={kinds.get(direction, 'None')}" for direction in NAMES)


class HybridQuantizedTensor(QuantizedTensor, HybridQuantizedTensorStorage):  # type: ignore[misc]
    """The same as a tensor of torch; views, pieces and copies are those of both parts. Rules: TEL-56."""

    def rebuilt(
        self, changes: dict[str, Any] | None = None, *, shape: Iterable[int] | None = None, dtype: Any = None
    ) -> Any:
        """Return a tensor of other parts, or of parts that share the buffers of these.

        Errors: NotSupportedError for a part without the interface of a tensor.
        """
        own = {} if changes else self._with_parts(lambda part: self._require_tensor(part, "detach").detach())
        values = self.get_metadata() | own | (changes or {})
        sizes = self.shape if shape is None else tuple(shape)
        return type(self)(shape=sizes, dtype=dtype or self._dtype, device=self.device, **values)

    def _require_tensor(self, part: Any, operation: str) -> Any:
        if not isinstance(part, QuantizedTensor):
            direction = next(direction for direction, each in self.parts().items() if each is part)
            got = f"does not support storage-only {direction}wise sub-storage {type(part).__name__}"
            raise NotSupportedError(f"HybridQuantizedTensor.{operation}", got, "parts that are tensors", "TEL-56")
        return part

    def viewed(self, shape: tuple[int, ...]) -> Any:
        """Return the same bytes under another shape; the values if a part cannot be seen so."""
        if shape == tuple(self.shape):
            return self.rebuilt()
        return self._of_results([part.viewed(shape) for part in self.parts().values()])

    def viewed_through(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Return a view of both parts, if it leaves their bytes as they are."""
        return self._of_results([func(part, *args[1:], **kwargs) for part in self.parts().values()])

    def pieces(self, sizes: list[int], dim: int) -> Any:
        """Return pieces of both parts along the first dimension.

        Errors: NotSupportedError for pieces that do not hold whole blocks.

        Rules: TEL-27.
        """
        if dim:
            return NotImplemented
        by_part = {direction: torch.split(part, sizes, dim) for direction, part in self.parts().items()}
        for direction, pieces in by_part.items():
            for piece in pieces:
                if not isinstance(piece, QuantizedTensor):
                    got = f"split produced a high-precision {type(piece).__name__} for the {direction}wise sub-storage"
                    raise NotSupportedError("HybridQuantizedTensor", got, "pieces of whole blocks", "TEL-27")
        return tuple(self._of_results(list(pieces)) for pieces in zip(*by_part.values(), strict=True))

    def _of_results(self, made: list[Any]) -> Any:
        if not made or not all(isinstance(part, QuantizedTensor) for part in made):
            return NotImplemented
        changes: dict[str, Any] = dict.fromkeys(name.lstrip("_") for name in NAMES.values())
        for direction, part in zip(self.directions(), made, strict=True):
            changes[NAMES[direction].lstrip("_")] = part
        return self.rebuilt(changes, shape=made[0].shape)

    def like(self, source: Any) -> bool:
        """Return True: `copy_from_storage` takes every hybrid tensor, or refuses it."""
        return True

    def zeros(self, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Any:
        """Return zeros in the formats of both parts.

        Errors: SettingError without a part, TensorDTypeError for a type that a part's format does not take.
        """
        if not self.parts():
            raise SettingError("HybridQuantizedTensor.new_zeros", "no data", "at least one present sub-storage")
        for direction, part in self.parts().items():
            if not isinstance(part, IdentityTensorStorage) and dtype not in FLOATS:
                got = f"{dtype} with a {direction}wise {type(part).__name__}"
                raise TensorDTypeError("HybridQuantizedTensor.new_zeros", got, "float32, float16 or bfloat16", "TEL-3")
        parts = self._with_parts(lambda part: _zeros(self._require_tensor(part, "new_zeros"), shape, dtype, device))
        quantizer = self._quantizer.copy()
        quantizer.set_usage(rowwise="row" in self.parts(), columnwise="column" in self.parts())
        return type(self)(shape=shape, dtype=dtype, device=device, quantizer=quantizer, **parts)

    def fsdp_buffer_fields(self) -> tuple[str, ...]:
        """Return the attributes of the buffers of both parts. Rules: TEL-15."""
        return tuple(name for part in self._gathered_parts() for name in part.fsdp_buffer_fields())

    def fsdp_extract_buffers(self) -> tuple[tuple[Tensor | None, ...], dict[str, Any]]:
        """Return the buffers of both parts. Rules: TEL-15, TEL-38.

        Errors: NotSupportedError for a part without the interface of a tensor, or whose shards cannot be gathered.
        """
        sent = [part.fsdp_extract_buffers() for part in self._gathered_parts()]
        counts = [len(buffers) for buffers, _ in sent]
        return tuple(each for buffers, _ in sent for each in buffers), {"counts": counts, "parts": [m for _, m in sent]}

    def fsdp_assign_gathered(self, gathered: tuple[Tensor | None, ...], meta: dict[str, Any]) -> None:
        """Let each part take over its buffers, which it did not share. Rules: TEL-15."""
        rest = list(gathered)
        for direction, count, how in zip(self.directions(), meta["counts"], meta["parts"], strict=True):
            part = type(self.read_in(direction)).make_like(self.read_in(direction), shape=rest[0].shape)  # type: ignore[union-attr]
            part.fsdp_assign_gathered(tuple(rest[:count]), how)
            setattr(self, NAMES[direction], part)
            rest = rest[count:]

    def _gathered_parts(self) -> list[Any]:
        return [self._require_tensor(part, "fsdp_pre_all_gather") for part in self.parts().values()]

    def contiguous(self, memory_format: torch.memory_format = torch.contiguous_format) -> Any:
        """Return a tensor whose parts are contiguous, itself if they are.

        Errors: NotSupportedError for a part without the interface of a tensor.
        """
        made = self._with_parts(
            lambda part: self._require_tensor(part, "contiguous").contiguous(memory_format=memory_format)
        )
        same = all(made[NAMES[direction].lstrip("_")] is part for direction, part in self.parts().items())
        return self if same else self.rebuilt(made)


def _zeros(part: Any, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Any:
    made = part.zeros(shape, dtype, device)
    return part.rebuilt(dtype=dtype).zeros(shape, dtype, device) if made is NotImplemented else made


def _remade(part: Any, changes: dict[str, Any]) -> Any:
    """Return a part with changed buffers."""
    if isinstance(part, QuantizedTensor):
        return part.rebuilt(changes)
    return type(part)(**(part.get_metadata() | changes), fake_dtype=part._dtype)


def read_in(x: Any, direction: str) -> Any:
    """Return the operand that a product reads in a direction. Rules: TEL-88."""
    while isinstance(x, (HybridQuantizedTensorStorage, IdentityTensorStorage)):
        x = x.read_in(direction)
    return x


def _unwrap_tensor(x: Any, usage: str) -> Any:
    """Return the operand that a product with "rowwise" or "columnwise" reads of it. Rules: TEL-88."""
    if usage not in {"rowwise", "columnwise"}:
        raise ValueError(f"Unsupported GEMM tensor usage ({usage}), need rowwise or columnwise")
    direction = {"rowwise": "row", "columnwise": "column"}[usage]
    if isinstance(x, HybridQuantizedTensorStorage) and direction not in x.directions():
        got = f"GEMM requested the {usage} representation, but it is unavailable"
        raise SettingError("general_gemm", got, f"a tensor with {usage} data", "TEL-25")
    return read_in(x, direction)
