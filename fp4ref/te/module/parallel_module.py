"""A module with one or more weights that may be split over a process group, and calls of `linear` with them."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import torch

from fp4ref.te.errors import SettingError
from fp4ref.te.float8_quantizer import Float8Quantizer
from fp4ref.te.module.base import TransformerEngineBaseModule
from fp4ref.te.module.calls import LinearCall, Parallel, directed
from fp4ref.te.module.device import default_device
from fp4ref.te.module.initial_values import zeros
from fp4ref.te.module.linear_function import linear
from fp4ref.te.module.options import divide, require_only_supported, split_names
from fp4ref.te.quantization import FP8GlobalStateManager
from fp4ref.te.tensor import QuantizedTensor

MODES = ("column", "row", None)
# Options of linear modules that have no emulation: overlapped communication.
UNSUPPORTED = (
    *("ub_overlap_ag", "ub_overlap_rs", "ub_overlap_rs_dgrad", "ub_bulk_dgrad", "ub_bulk_wgrad"),
    "symmetric_ar_type",
)


@dataclass(frozen=True, kw_only=True)
class LinearOptions:
    """Options that the constructors of linear modules share, with the names and meanings of Transformer Engine's.

    unsupported: options without an emulation, by name; only their neutral values (None, False) are accepted.
    """

    sequence_parallel: bool
    fuse_wgrad_accumulation: bool
    tp_group: Any
    tp_size: int
    get_rng_state_tracker: Callable[[], Any] | None
    rng_tracker_name: str | None = None
    init_method: Callable[[torch.Tensor], Any] | None
    bias: bool
    return_bias: bool
    params_dtype: torch.dtype | None
    parallel_mode: str | None = None
    device: torch.device | str | None
    delay_wgrad_compute: bool
    save_original_input: bool = False
    fsdp_group: Any = None
    unsupported: Mapping[str, Any]

    @classmethod
    def of(cls, arguments: Mapping[str, Any], unsupported: Iterable[str] = UNSUPPORTED) -> LinearOptions:
        """Select the options from the arguments of a constructor, which are its `locals()` when it begins."""
        refused = {name: arguments[name] for name in unsupported if name in arguments}
        names = {field.name for field in fields(cls)} - set(refused)
        return cls(**{name: arguments[name] for name in names if name in arguments}, unsupported=refused)

    @property
    def memory(self) -> dict[str, Any]:
        """The type and the device of parameters, as arguments of torch.empty."""
        return {"dtype": self.params_dtype or torch.get_default_dtype(), "device": default_device(self.device)}


class ParallelModule(TransformerEngineBaseModule):
    """Reads the options that all linear modules have in common."""

    def read_options(self, options: LinearOptions) -> None:
        """Keep the options of a constructor, refusing those without an emulation by name.

        Errors: NotSupportedError, SettingError.
        """
        kind = type(self).__name__
        require_only_supported(kind, **options.unsupported)
        if options.parallel_mode not in MODES:
            raise SettingError(kind, f"parallel_mode {options.parallel_mode!r}", "'column', 'row' or None")
        group = options.tp_group
        self.fsdp_group, self.parallel_mode = options.fsdp_group, options.parallel_mode
        self.tp_size = options.tp_size if group is None else torch.distributed.get_world_size(group)
        self.set_tensor_parallel_group(group)
        self.sequence_parallel = options.sequence_parallel and self.tp_size > 1
        self.get_rng_state_tracker = options.get_rng_state_tracker
        self.rng_tracker_name = options.rng_tracker_name
        self.fuse_wgrad_accumulation = options.fuse_wgrad_accumulation
        self.delay_wgrad_compute = options.delay_wgrad_compute
        self.save_original_input = options.save_original_input
        self.use_bias, self.return_bias = options.bias, options.return_bias
        self.apply_bias = options.bias and not options.return_bias
        self.deferred: list[tuple[list[str], Callable[[], Any]]] = []

    def register_linear(
        self,
        features: tuple[int, int],
        parts: dict[str, int],
        *,
        prefix: str = "",
        bias: bool,
        dtype: torch.dtype,
        device: torch.device,
        init: Callable[[torch.Tensor], Any] | None,
    ) -> tuple[list[str], list[str]]:
        """Register weight [out, in] and bias [out], in parts along the first axis; the names of both."""
        out_features, in_features = features
        weight = torch.empty(out_features, in_features, dtype=dtype, device=device)
        weights, biases = [], []
        for part, value in zip(parts, torch.split(weight, list(parts.values())), strict=True):
            weights.append(f"{prefix}{part}weight")
            self.register_weight(weights[-1], value, init)
        if bias:
            values = torch.split(torch.empty(out_features, dtype=dtype, device=device), list(parts.values()))
            for part, value in zip(parts, values, strict=True):
                biases.append(f"{prefix}{part}bias")
                self.register_weight(biases[-1], value, zeros, seeded=False)
        return weights, biases

    def mark_parallel(self, weights: list[str], biases: list[str], *, mode: str | None) -> None:
        """Say on the parameters, as training frameworks read it, along which axis a group splits them.

        The bias of a split input is whole, and with sequence parallelism its gradient is a sum over the group.
        """
        split = [(name, 1 if mode == "row" else 0) for name in weights]
        if mode == "column":
            split += [(name, 0) for name in biases]
        for name, axis in split:
            vars(getattr(self, name)).update(tensor_model_parallel=True, partition_dim=axis, partition_stride=1)
        if mode == "row":
            for name in biases:
                getattr(self, name).sequence_parallel = self.sequence_parallel

    @property
    def parallel(self) -> Parallel:
        """The split of this module's weight."""
        return Parallel(self.parallel_mode, self.tp_group, self.tp_size, self.sequence_parallel)

    def need_backward_dw(self) -> bool:
        """Return True if `backward_dw` has to be called after each backward pass."""
        return self.delay_wgrad_compute

    def backward_dw(self) -> None:
        """Compute the gradients of the weights that a backward pass put off, and add them to the parameters'."""
        with torch.no_grad():
            for names, compute in self.deferred:
                computed = compute()
                parameters = [getattr(self, name) for name in names]
                if isinstance(computed, torch.Tensor):
                    computed = torch.split(computed, [parameter.shape[0] for parameter in parameters])
                for parameter, grad in zip(parameters, computed or (), strict=False):
                    if grad is not None:
                        total = grad if parameter.grad is None else parameter.grad + grad
                        parameter.grad = total.to(parameter.dtype)
        self.deferred.clear()

    def joined(self, names: Sequence[str]) -> torch.Tensor:
        """Return the parameters of these names, one below the other."""
        if len(names) == 1:
            value = self._parameters.get(names[0])  # which getattr finds last
            return getattr(self, names[0]) if value is None else value
        return torch.cat([getattr(self, name) for name in names])

    def call_linear(
        self,
        x: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        *,
        layer: str = "",
        weight_names: list[str],
        parallel: Parallel,
        is_first_microbatch: bool | None,
        **others: Any,
    ) -> torch.Tensor:
        """Return one linear operation with the quantizers of the operands "input", "weight", "grad_output".

        layer: the beginning of the operands' names. others: of `LinearCall`, such as factors, and what is added.
        """
        call = LinearCall(dtype=self.activation_dtype, parallel=parallel, **others)
        if self.delay_wgrad_compute:
            call.defer = lambda compute: self.deferred.append((weight_names, compute))
        if self.fuse_wgrad_accumulation and weight.requires_grad:
            call.main_grad_of = require_main_grad(type(self).__name__, weight)
            overwrites = bool(getattr(weight, "overwrite_main_grad", False))
            call.overwrite_main_grad = is_first_microbatch is True or overwrites
        if self.fp8:
            call.backward_override, call.fsdp_group = self.backward_override, self.fsdp_group
            read, kept, given = f"{layer}input", f"{layer}weight", f"{layer}grad_output"
            call.input_quantizer = self.activation_quantizer(read, communicated=parallel.gathers_input)
            call.grad_output_quantizer = self.activation_quantizer(given, communicated=parallel.gathers_grad_output)
            if is_first_microbatch is None and self._is_quantized_within(weight):
                call.weight_quantizer = self.prepared_weight_quantizer(x, weight, kept)
            else:
                call.quantized_weight = self.quantized_weight(x, weight, kept, is_first_microbatch)
            call.save_original_input = call.save_original_input and self.reconstructs_input(read)
        elif isinstance(weight, QuantizedTensor):
            weight = weight.dequantize()
        if self.fp8_calibration and not self.fp8:
            self.quantizer(f"{layer}input").calibrate(x.detach())
            self.quantizer(f"{layer}weight").calibrate(weight.detach())
        return linear(x, weight, bias, call)  # type: ignore[no-any-return]

    def reconstructs_input(self, operand: str) -> bool:
        """Return True if an input can be quantized again for wgrad, with the same columns; warn if not.

        Errors: SettingError for the recipe of delayed scaling, whose scale may have changed since.

        Rules: TEL-44, TEM-42.
        """
        quantizer = self.quantizer(operand)
        if self.backward_override is not None or quantizer.reconstructs_from_original():
            return True
        delayed = type(quantizer) is Float8Quantizer
        if delayed and not self.fp8_meta["recipe"].custom():
            got = "save_original_input=True: DelayedScaling recipe is not supported with save_original_input"
            raise SettingError(type(self).__name__, got, "save_original_input=False", "TEL-44")
        reason = "the input quantizer cannot safely reconstruct the backward operand from the original input"
        if delayed:
            reason = "save_original_input is incompatible with delayed-scaling quantizers (Float8Quantizer)"
        warnings.warn(f"Ignoring save_original_input=True because {reason}.", stacklevel=2)
        return False

    def activation_quantizer(self, operand: str, *, communicated: bool) -> Any:
        """Return the quantizer of an operand that lives for one call; only one that is not communicated is swizzled."""
        quantizer = self.quantizer(operand)
        quantizer.internal, quantizer.optimize_for_gemm = True, not communicated
        if communicated:
            self.reduce_amax(operand)
        return quantizer

    def prepared_weight_quantizer(self, x: torch.Tensor, weight: torch.Tensor, operand: str) -> Any:
        """Return a copy of a weight's quantizer, in the directions that this call needs."""
        needs_columns = torch.is_grad_enabled() and x.requires_grad and self.backward_override is None
        return directed(self.weight_quantizer(operand, weight), rowwise=True, columnwise=needs_columns)

    def _is_quantized_within(self, weight: torch.Tensor) -> bool:
        """Return True if nothing of a quantized weight is kept for other calls, and no graph has to skip it."""
        plain = not isinstance(weight, QuantizedTensor) and weight.dtype is self.activation_dtype
        return plain and self.fsdp_group is None and FP8GlobalStateManager.captured_skip_flag() is None

    def quantized_weight(
        self, x: torch.Tensor, weight: torch.Tensor, operand: str, is_first_microbatch: bool | None
    ) -> Any:
        """Return the weight operand, kept under its name."""
        quantizer = self.prepared_weight_quantizer(x, weight, operand)
        skip = FP8GlobalStateManager.captured_skip_flag()
        if skip is not None:
            is_first_microbatch = False
        return self.get_weight_workspace(
            tensor=weight,
            quantizer=quantizer,
            cache_name=None if is_first_microbatch is None or self.is_fsdp2 else operand,
            update_workspace=is_first_microbatch is not False or self.is_fsdp2,
            skip_update_flag=skip,
            workspace_dtype=self.activation_dtype if weight.dtype is not self.activation_dtype else None,
        )


def require_main_grad(module: str, weight: torch.Tensor) -> torch.Tensor:
    """Return the weight, if it has the buffer that its gradient is to be added to; SettingError otherwise."""
    if not hasattr(weight, "main_grad"):
        needed = "a weight in one piece, with a main_grad attribute"
        raise SettingError(module, "fuse_wgrad_accumulation without main_grad", needed)
    return weight


def parts_of(
    module: str, parameters_split: Any, out_features: int, parallel_mode: str | None, tp_size: int
) -> dict[str, int]:
    """Return rows of each part of a weight, on this process."""
    parts = split_names(module, parameters_split, out_features)
    if parallel_mode != "column":
        return parts
    return {name: divide(module, f"{name}out_features", size, tp_size) for name, size in parts.items()}
