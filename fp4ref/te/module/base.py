"""The base of quantizing modules: their operands' quantizers, their cached weights, their parameters."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch

from fp4ref.te.errors import SettingError, TensorDTypeError
from fp4ref.te.module.device import default_device
from fp4ref.te.module.initial_values import keep_initial_value, normal
from fp4ref.te.module.operands import QuantizedOperands
from fp4ref.te.module.weights import (
    _2X_ACC_DGRAD,
    _2X_ACC_FPROP,
    _2X_ACC_WGRAD,
    enable_weight_preswizzle,
    get_dummy_wgrad,
    get_multi_stream_cublas_workspace,
    get_workspace,
    parameters_of,
    quantize_weight,
)
from fp4ref.te.quantization import FP8GlobalStateManager
from fp4ref.te.tensor import QuantizedTensor

__all__ = [
    "_2X_ACC_DGRAD",
    "_2X_ACC_FPROP",
    "_2X_ACC_WGRAD",
    "TransformerEngineBaseModule",
    "get_dummy_wgrad",
    "get_multi_stream_cublas_workspace",
    "get_workspace",
    "quantize_weight",
]
Init = Callable[[torch.Tensor], Any]


class TransformerEngineBaseModule(QuantizedOperands):
    """A module whose GEMM operands are quantized inside `autocast`, by the quantizers of `QuantizedOperands`."""

    def __init__(self, name: str | None = None) -> None:
        super().__init__(name)
        self.fp8 = self.fp8_calibration = False
        self.preserve_high_precision_init_val = FP8GlobalStateManager.with_high_precision_init_val()
        self.activation_dtype = torch.get_default_dtype()
        self.tp_group: Any = None
        self.tp_size = 1
        self.sequence_parallel = False
        self.parallel_mode: str | None = None
        self.fwd_ln_sm_margin = self.bwd_ln_sm_margin = self.inf_ln_sm_margin = 0
        self.param_init: dict[str, tuple[Init, bool]] = {}
        self.get_rng_state_tracker: Callable[[], Any] | None = None
        self.rng_tracker_name: str | None = None
        self.fsdp_group: Any = None

    # One call

    def prepare_forward(
        self,
        x: torch.Tensor,
        num_gemms: int = 1,
        allow_non_contiguous: bool = False,
        allow_different_data_and_param_types: bool = False,
    ) -> torch.Tensor:
        """Read the context: whether to quantize, by what, and in which type to compute. Returns x, contiguous.

        Errors: TensorDTypeError if parameters and input differ in type outside of torch.autocast, SettingError if
        packed parameters were made for another recipe.
        """
        state, dtype = FP8GlobalStateManager.quantization_state, x.dtype
        device = "cuda" if x.is_cuda else x.device.type  # which takes torch five times as long
        casts = torch.is_autocast_enabled(device)
        packed: list[tuple[str, QuantizedTensor]] = []
        for name, parameter in parameters_of(self):
            if parameter.dtype is not dtype and not (casts or allow_different_data_and_param_types):
                got = f"input {dtype} with {name} {parameter.dtype}"
                raise TensorDTypeError(type(self).__name__, got, "one type, or torch.autocast")
            if isinstance(parameter, QuantizedTensor):
                packed.append((name, parameter))
        dtype = torch.get_autocast_dtype(device) if casts else dtype
        enabled, calibrates = state.fp8_enabled, state.fp8_calibration
        self.__dict__.update(fp8=enabled, fp8_calibration=calibrates, activation_dtype=dtype)
        if enabled or calibrates:
            self.init_fp8_metadata()
        if enabled:
            self._require_own_recipe(packed)
            FP8GlobalStateManager.add_fp8_tensors_to_global_buffer(self.fp8_meta)
        return x if allow_non_contiguous else x.contiguous()

    def end_forward(self) -> None:
        """Do nothing after a call."""

    @property
    def is_fsdp2(self) -> bool:
        """True if fully_shard wraps this very module, whose weights are then gathered anew for each pass."""
        return hasattr(self, "_get_fsdp_state")

    @property
    def backward_override(self) -> str | None:
        """The operands of the backward pass: None for quantized ones, "dequantized", or "high_precision"."""
        return self.fp8_meta["recipe"].backward_override if self.fp8 else None

    def _require_own_recipe(self, packed: Iterable[tuple[str, QuantizedTensor]]) -> None:
        for name, parameter in packed:
            for quantizer in self._get_weight_quantizers():
                if type(made_by := getattr(parameter, "_quantizer", None)) is not type(quantizer):
                    under = type(self.fp8_meta["recipe"]).__name__
                    got = f"Recipe mismatch for {name}: packed by {type(made_by).__name__} under {under}"
                    raise SettingError(type(self).__name__, got, "the recipe that it was made with")

    # Weights

    def _get_weight_quantizers(self) -> list[Any]:
        raise NotImplementedError

    def _get_weight_tensors(self) -> list[torch.Tensor]:
        return [getattr(self, name) for name in self.weight_operands()]

    def _enable_weight_preswizzle(self, quantizer: Any, weight: torch.Tensor) -> bool:
        """Return True if a weight of this module is quantized into the GEMM layout of its scales."""
        return not self.primary_weights_in_fp8 and enable_weight_preswizzle(quantizer, weight)

    def weight_quantizer(self, operand: str, weight: torch.Tensor) -> Any:
        """Return the quantizer of a weight, set to this module's layout of scales and to internal results."""
        quantizer = self.quantizer(operand)
        quantizer.internal = True
        quantizer.optimize_for_gemm = self._enable_weight_preswizzle(quantizer, weight)
        return quantizer

    def get_weight_workspace(
        self,
        *,
        tensor: torch.Tensor | None = None,
        quantizer: Any = None,
        cache_name: str | None = None,
        update_workspace: bool = True,
        skip_update_flag: torch.Tensor | None = None,
        fsdp_group: Any = None,
        workspace_dtype: torch.dtype | None = None,
    ) -> Any:
        """Return a quantized weight: the packed parameter itself, a cached one, or a new one.

        cache_name: keep it under this name; then update_workspace quantizes again into the same buffers, whose
        addresses never change, and skip_update_flag [1] on the device prevents that if it holds 1.

        Errors: SettingError without what is needed to make one.

        Rules: TEM-3.
        """
        weight, made = quantize_weight(
            tensor=tensor,
            quantizer=quantizer,
            workspace=self._fp8_workspaces.get(cache_name) if cache_name is not None else None,
            update_workspace=update_workspace,
            skip_update_flag=skip_update_flag,
            fsdp_group=fsdp_group,
            workspace_dtype=workspace_dtype,
            cache=cache_name is not None,
        )
        if cache_name is not None and made is not None:
            self._fp8_workspaces[cache_name] = made
        return weight

    # Parameters

    def register_weight(self, name: str, value: torch.Tensor, init: Init | None, seeded: bool = True) -> None:
        """Register a parameter and how `reset_parameters` fills it; seeded: inside the caller's random state."""
        self.register_parameter(name, torch.nn.Parameter(value))
        self.param_init[name] = (init or normal, seeded)

    def reset_parameters(self, defer_init: bool = False) -> None:
        """Fill every parameter, moving it off the meta device; inside `quantized_model_init` pack the weights."""
        if not defer_init:
            self.fill_parameters(self.param_init)

    def fill_parameters(self, names: Iterable[str]) -> None:
        """Fill the parameters of these names as they were registered."""
        for name in [name for name in names if name in self.param_init]:
            init, seeded = self.param_init[name]
            parameter = getattr(self, name)
            attributes = vars(parameter)
            if parameter.device.type == "meta":
                parameter = torch.empty_like(parameter, device=default_device(None))
            with torch.no_grad():
                self._fill(parameter, init, seeded)
            if self.primary_weights_in_fp8 and name in self.weight_operands():
                parameter = self._packed(name, parameter.detach())
            if not isinstance(parameter, torch.nn.Parameter):
                parameter = torch.nn.Parameter(parameter)
            vars(parameter).update(attributes)
            setattr(self, name, parameter)

    def _fill(self, parameter: torch.Tensor, init: Init, seeded: bool) -> None:
        if seeded and self.get_rng_state_tracker is not None:
            named = () if self.rng_tracker_name is None else (self.rng_tracker_name,)
            with self.get_rng_state_tracker().fork(*named):
                init(parameter)
        else:
            init(parameter)

    def _packed(self, name: str, value: torch.Tensor) -> torch.Tensor:
        self.init_fp8_metadata()
        quantizer = self.quantizer(self.weight_operands()[name])
        quantizer.internal = quantizer.optimize_for_gemm = False
        quantizer.set_usage(rowwise=True, columnwise=torch.is_grad_enabled())
        parameter = torch.nn.Parameter(quantizer(value))
        if self.preserve_high_precision_init_val:
            keep_initial_value(parameter, value)
        return parameter

    def set_tensor_parallel_group(self, tp_group: Any) -> None:
        """Set the process group over which this module's weights are split."""
        self.tp_group = tp_group
        self._recipe_seen = None
