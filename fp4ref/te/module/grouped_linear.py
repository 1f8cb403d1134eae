"""GroupedLinear."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any

import torch

from fp4ref.te.absent import refuse
from fp4ref.te.capability import get_device_compute_capability
from fp4ref.te.errors import SettingError, TensorDTypeError, TensorShapeError
from fp4ref.te.grouped import validate_grouped_quantizer_list
from fp4ref.te.module.base import TransformerEngineBaseModule
from fp4ref.te.module.compilation import not_compiled
from fp4ref.te.module.grouped_function import GroupedCall, grouped_linear
from fp4ref.te.module.options import divide
from fp4ref.te.module.parallel_module import UNSUPPORTED, LinearOptions, ParallelModule, require_main_grad
from fp4ref.te.quantization import FP8GlobalStateManager, QuantizerRole
from fp4ref.te.specifications import environment_flag
from fp4ref.te.together import kept, kinds, together

UNSUPPORTED_IN_GROUPS = ("fsdp_group", "single_grouped_weight", "single_grouped_bias")


class GroupedLinear(ParallelModule):
    """y_i = x_i W_i^T + b_i: the rows of one input belong to num_gemms groups, each with a weight of its own.

    Parameters are weight0, bias0, weight1, bias1 and so on, in this order; other options are those of Linear. With a
    tensor-parallel group the weights are split, and communication is the caller's. use_grouped_tensor chooses among the
    kernels of Transformer Engine, and changes no bytes; None asks NVTE_GROUPED_LINEAR_USE_FUSED_GROUPED_GEMM.

    Errors: SettingError, NotSupportedError, TensorShapeError.
    """

    def __init__(
        self,
        num_gemms: int,
        in_features: int,
        out_features: int,
        sequence_parallel: bool = False,
        fuse_wgrad_accumulation: bool = False,
        tp_group: Any = None,
        tp_size: int = 1,
        get_rng_state_tracker: Callable[[], Any] | None = None,
        rng_tracker_name: str | None = None,
        init_method: Callable[[torch.Tensor], Any] | None = None,
        bias: bool = True,
        return_bias: bool = False,
        params_dtype: torch.dtype | None = None,
        parallel_mode: str | None = None,
        device: torch.device | str | None = None,
        ub_overlap_rs: bool = False,
        ub_overlap_ag: bool = False,
        ub_name: str | None = None,
        delay_wgrad_compute: bool = False,
        save_original_input: bool = False,
        single_grouped_weight: bool = False,
        single_grouped_bias: bool = False,
        name: str | None = None,
        fsdp_group: Any = None,
        use_grouped_tensor: bool | None = None,
    ) -> None:
        super().__init__(name)
        if use_grouped_tensor is None:
            use_grouped_tensor = environment_flag("NVTE_GROUPED_LINEAR_USE_FUSED_GROUPED_GEMM")
        self.use_grouped_tensor = use_grouped_tensor
        options = LinearOptions.of(locals(), (*UNSUPPORTED, *UNSUPPORTED_IN_GROUPS))
        self.read_options(options)
        if self.tp_size > 1 and bias:
            raise SettingError("GroupedLinear", "bias=True with a tensor-parallel group", "bias=False")
        if num_gemms < 1:
            raise TensorShapeError("GroupedLinear", f"num_gemms {num_gemms}", "at least 1")
        self.num_gemms = num_gemms
        parts = {mode: self.tp_size if parallel_mode == mode else 1 for mode in ("row", "column")}
        self.in_features = divide("GroupedLinear", "in_features", in_features, parts["row"])
        self.out_features = divide("GroupedLinear", "out_features", out_features, parts["column"])
        memory = options.memory
        for group in range(num_gemms):
            shape = (self.out_features, self.in_features)
            self.register_weight(f"weight{group}", torch.empty(shape, **memory), init_method)
            if bias:
                value = torch.empty(self.out_features, **memory)
                self.register_weight(f"bias{group}", value, torch.nn.init.zeros_, seeded=False)
            else:
                setattr(self, f"bias{group}", torch.empty(0, **memory))
        self.reset_parameters(defer_init=memory["device"].type == "meta")

    def operand_roles(self, forward: bool) -> dict[str, QuantizerRole]:
        """Return operands of one direction, group after group."""
        kinds = ("input", "weight", "output") if forward else ("grad_output", "grad_input")
        return {
            f"{kind}{group}": QuantizerRole("grouped_linear", kind, self.name or "")
            for group in range(self.num_gemms)
            for kind in kinds
        }

    def weight_operands(self) -> dict[str, str]:
        """Return names of the weight parameters, and the operands that they are."""
        return {f"weight{group}": f"weight{group}" for group in range(self.num_gemms)}

    def _get_weight_quantizers(self) -> list[Any]:
        if not self.fp8:
            return [None] * self.num_gemms
        return [self.weight_quantizer(name, getattr(self, name)) for name in self.weight_operands()]

    @not_compiled
    def forward(
        self,
        inp: torch.Tensor,
        m_splits: Sequence[int] | torch.Tensor,
        is_first_microbatch: bool | None = None,
        out: torch.Tensor | None = None,
        dgrad_out: torch.Tensor | None = None,
    ) -> Any:
        """inp [..., in_features] of sum(m_splits) rows -> [..., out_features]; then the biases, if `return_bias`.

        m_splits: rows of each group, zero allowed. is_first_microbatch: as in Linear, for every weight. out: the buffer
        of the result, [rows, out_features]; dgrad_out: that of the input's gradient, [rows, in_features]. Both are
        contiguous, need no gradient, and have the type of the activations.

        Errors: TensorShapeError, TensorDTypeError, SettingError.
        """
        splits = [int(size) for size in m_splits]
        rows = inp.numel() // max(inp.shape[-1], 1)
        if len(splits) != self.num_gemms:
            raise TensorShapeError("GroupedLinear", f"{len(splits)} m_splits", f"{self.num_gemms}, one per group")
        if sum(splits) != rows or min(splits) < 0:
            raise TensorShapeError("GroupedLinear", f"m_splits {splits} of {rows} rows", "sizes that add up to them")
        inp = self.prepare_forward(inp)
        self._require_grouped_kernels()
        weights = [getattr(self, name) for name in self.weight_operands()]
        biases = [getattr(self, f"bias{group}") for group in range(self.num_gemms)] if self.use_bias else []
        call = GroupedCall(dtype=self.activation_dtype, m_splits=splits, save_original_input=self.save_original_input)
        call.out = self._buffer("out", out, (rows, self.out_features), inp.device)
        call.dgrad_out = self._buffer("dgrad_out", dgrad_out, (rows, self.in_features), inp.device)
        if self.fuse_wgrad_accumulation and weights[0].requires_grad:
            call.main_grads_of = [require_main_grad("GroupedLinear", weight) for weight in weights]
            call.overwrite_main_grad = is_first_microbatch is True
        if self.delay_wgrad_compute:
            call.defer = lambda compute: self.deferred.append(([*self.weight_operands()], compute))
        if self.fp8:
            self._quantize_operands(call, inp, weights, is_first_microbatch)
        else:
            weights = [weight.dequantize() if hasattr(weight, "_quantizer") else weight for weight in weights]
        y = grouped_linear(inp, weights, biases if self.apply_bias else [], call)
        if self.return_bias:
            return y, [bias.to(self.activation_dtype) for bias in biases]
        return y

    def _buffer(
        self, name: str, buffer: torch.Tensor | None, shape: tuple[int, int], device: torch.device
    ) -> torch.Tensor | None:
        """Return a caller's buffer if the result fits into it."""
        if buffer is None:
            return None
        if tuple(buffer.shape) != shape:
            raise TensorShapeError("GroupedLinear", f"{name} {list(buffer.shape)}", f"{list(shape)}")
        if buffer.dtype != self.activation_dtype:
            got, needed = f"{name} of dtype {buffer.dtype}", f"{self.activation_dtype}"
            raise TensorDTypeError("GroupedLinear", got, needed)
        for bad, got, needed in (
            (buffer.device != device, f"{name} on {buffer.device}", f"{device}"),
            (not buffer.is_contiguous(), f"{name} that is not contiguous", "a contiguous buffer"),
            (buffer.requires_grad, f"{name} that requires a gradient", "a buffer without, such as its detach()"),
        ):
            if bad:
                raise SettingError("GroupedLinear", got, needed)
        return buffer

    def make_grouped_weights(self, defer_init: bool = False) -> None:
        """Refuse to hold all weights as one parameter. Rules: TEL-39."""
        if not defer_init:
            refuse("GroupedLinear.make_grouped_weights")

    def _require_grouped_kernels(self) -> None:
        """Raise where Transformer Engine asks for kernels of whole groups that a device lacks. Rules: TEL-48."""
        asked = self.use_grouped_tensor and self.fp8 and self.fp8_meta["recipe"].float8_block_scaling()
        if asked and (10, 0) <= get_device_compute_capability() <= (11, 0):
            got = "use_grouped_tensor=True with block-scaled FP8 on an emulated device of capability 10.0 to 11.0"
            raise SettingError(
                "GroupedLinear", got, "use_grouped_tensor=False, since that path is Hopper-only", "TEL-48"
            )

    def _quantize_operands(
        self, call: GroupedCall, x: torch.Tensor, weights: list[torch.Tensor], is_first_microbatch: bool | None
    ) -> None:
        """Give the call its quantizers, and its weights from the cache or anew."""
        call.backward_override = self.backward_override
        if self.fp8_meta["recipe"].custom():
            weight_quantizers = [self.quantizer(name) for name in self.weight_operands().values()]
            validate_grouped_quantizer_list(weight_quantizers, operand_name="weight")
        call.save_original_input = self.save_original_input and self.reconstructs_input("input0")
        for group in range(self.num_gemms):
            call.input_quantizers.append(self.activation_quantizer(f"input{group}", communicated=False))
            call.grad_output_quantizers.append(self.activation_quantizer(f"grad_output{group}", communicated=False))

        def quantized(*given: torch.Tensor) -> tuple[Any, ...]:
            pairs = zip(self.weight_operands(), given, strict=False)  # behind the weights stands what quantizers keep
            return tuple(self.quantized_weight(x, weight, name, is_first_microbatch) for name, weight in pairs)

        plain = getattr(self.get_weight_workspace, "__func__", None) is TransformerEngineBaseModule.get_weight_workspace
        anew = is_first_microbatch is None and FP8GlobalStateManager.captured_skip_flag() is None
        kind, held = self._kind_of_weights(x, weights) if plain and anew else (None, [])
        call.quantized_weights = list(together(kind, (*weights, *held), quantized))

    def _kind_of_weights(
        self, x: torch.Tensor, weights: list[torch.Tensor]
    ) -> tuple[Hashable | None, list[torch.Tensor]]:
        """Return the key of weights that are quantized anew by the same kernels, and what their quantizers keep.

        The key is None if a quantizer has none.
        """
        quantizers = [
            self.prepared_weight_quantizer(x, weight, name)
            for name, weight in zip(self.weight_operands(), weights, strict=True)
        ]
        found = kinds(quantizers)
        return (None, []) if found is None else (("weights", self.activation_dtype, *found), kept(quantizers))


def is_module_grouped_tensor_path_supported(recipe: Any, dtype: torch.dtype) -> bool:
    """Return False: groups are multiplied member by member, whatever the recipe and the type."""
    return False
