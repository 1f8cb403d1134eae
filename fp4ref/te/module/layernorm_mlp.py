"""LayerNormMLP: a normalization, fc1, an activation, fc2."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from fp4ref.te.checkpoint import checkpoint
from fp4ref.te.distributed import gather_rows
from fp4ref.te.errors import SettingError
from fp4ref.te.module.activation import activate, is_gated
from fp4ref.te.module.calls import Parallel
from fp4ref.te.module.compilation import not_compiled
from fp4ref.te.module.layernorm_linear import register_norm
from fp4ref.te.module.normalization import normalize, require_normalization
from fp4ref.te.module.options import divide
from fp4ref.te.module.parallel_module import LinearOptions, ParallelModule
from fp4ref.te.quantization import QuantizerRole

LAYERS = ("fc1", "fc2")


class LayerNormMLP(ParallelModule):
    """y = act(norm(x) W1^T + b1) W2^T + b2, with quantized operands inside `autocast`.

    activation: gelu, qgelu, relu, srelu, silu; gated, with fc1 twice as wide: geglu, qgeglu, reglu, sreglu, swiglu,
    glu, clamped_swiglu (activation_params: limit, alpha, glu_linear_offset). set_parallel_mode: split fc1 by outputs
    and fc2 by inputs over the group. checkpoint: keep the input only, and compute the rest again in the backward pass;
    values do not change. seq_length, micro_batch_size: only tell kernels their sizes in advance.

    Errors: SettingError, NotSupportedError, TensorShapeError.
    """

    layer_norm_weight: torch.nn.Parameter
    layer_norm_bias: torch.nn.Parameter | None
    fc1_bias: torch.Tensor
    fc2_bias: torch.Tensor

    def __init__(
        self,
        hidden_size: int,
        ffn_hidden_size: int,
        eps: float = 1e-5,
        sequence_parallel: bool = False,
        return_bias: bool = False,
        get_rng_state_tracker: Callable[[], Any] | None = None,
        tp_group: Any = None,
        tp_size: int = 1,
        init_method: Callable[[torch.Tensor], Any] | None = None,
        bias: bool = True,
        normalization: str = "LayerNorm",
        activation: str = "gelu",
        activation_params: dict[str, Any] | None = None,
        output_layer_init_method: Callable[[torch.Tensor], Any] | None = None,
        fuse_wgrad_accumulation: bool = False,
        params_dtype: torch.dtype | None = None,
        return_layernorm_output: bool = False,
        return_layernorm_output_gathered: bool = False,
        seq_length: int | None = None,
        micro_batch_size: int | None = None,
        set_parallel_mode: bool = False,
        zero_centered_gamma: bool = False,
        device: torch.device | str | None = None,
        ub_overlap_ag: bool = False,
        ub_overlap_rs: bool = False,
        ub_overlap_rs_dgrad: bool = False,
        ub_bulk_dgrad: bool = False,
        ub_bulk_wgrad: bool = False,
        delay_wgrad_compute: bool = False,
        symmetric_ar_type: str | None = None,
        checkpoint: bool = False,
        name: str | None = None,
        fsdp_group: Any = None,
    ) -> None:
        super().__init__(name)
        require_normalization("LayerNormMLP", normalization)
        widening = 2 if is_gated(activation) else 1
        options = LinearOptions.of(locals())
        self.read_options(options)
        self.set_parallel_mode, self.normalization, self.eps = set_parallel_mode, normalization, eps
        self.activation, self.activation_params = activation, activation_params
        self.zero_centered_gamma, self.checkpoint = zero_centered_gamma, checkpoint
        self.return_layernorm_output = return_layernorm_output
        self.return_layernorm_output_gathered = return_layernorm_output_gathered
        ffn = divide("LayerNormMLP", "ffn_hidden_size", ffn_hidden_size, self.tp_size if set_parallel_mode else 1)
        memory = options.memory
        register_norm(self, hidden_size, normalization, zero_centered_gamma, memory)
        for layer, features, init in (
            ("fc1", (widening * ffn, hidden_size), init_method),
            ("fc2", (hidden_size, ffn), output_layer_init_method or init_method),
        ):
            parts = {"": features[0]}
            names = self.register_linear(features, parts, prefix=f"{layer}_", bias=bias, init=init, **memory)
            if set_parallel_mode:
                self.mark_parallel(*names, mode="column" if layer == "fc1" else "row")
        if not bias:
            self.fc1_bias = self.fc2_bias = torch.empty(0, **memory)
        self.reset_parameters(defer_init=memory["device"].type == "meta")

    def operand_roles(self, forward: bool) -> dict[str, QuantizerRole]:
        """Return operands of one direction."""
        kinds = ("input", "weight", "output") if forward else ("grad_output", "grad_input")
        return {
            f"{layer}_{kind}": QuantizerRole("linear", kind, f"{self.name or ''}.{layer}".lstrip("."))
            for layer in LAYERS
            for kind in kinds
        }

    def inner_consumers(self) -> dict[str, QuantizerRole]:
        """Return the results between both products: fc2's input, and the gradient of fc1's output."""
        inputs, gradients = self.operand_roles(forward=True), self.operand_roles(forward=False)
        return {"fc1_output": inputs["fc2_input"], "fc2_grad_input": gradients["fc1_grad_output"]}

    def weight_operands(self) -> dict[str, str]:
        """Return names of the weight parameters, and the operands that they are."""
        return {f"{layer}_weight": f"{layer}_weight" for layer in LAYERS}

    def _get_weight_quantizers(self) -> list[Any]:
        if not self.fp8:
            return [None, None]
        return [self.weight_quantizer(name, getattr(self, name)) for name in self.weight_operands()]

    @not_compiled
    def forward(self, inp: torch.Tensor, is_first_microbatch: bool | None = None) -> Any:
        """inp [..., hidden] -> [..., hidden]; then the bias of fc2, then the norm's output, where asked for.

        is_first_microbatch: as in Linear, for both weights.

        Errors: TensorShapeError, TensorDTypeError, SettingError.
        """
        if self.checkpoint and torch.is_grad_enabled():
            return checkpoint(self._computed, inp, is_first_microbatch)
        return self._computed(inp, is_first_microbatch)

    def _computed(self, inp: torch.Tensor, is_first_microbatch: bool | None) -> Any:
        """Return the results; an override is refused. Rules: TEM-43."""
        inp = self.prepare_forward(inp)
        if self.backward_override is not None:
            got = f"backward_override={self.backward_override}"
            raise SettingError("LayerNormMLP", got, "LayerNormLinear and Linear in its place", "TEM-43")
        normed = normalize(
            inp,
            self.layer_norm_weight,
            self.layer_norm_bias,
            normalization=self.normalization,
            eps=self.eps,
            zero_centered_gamma=self.zero_centered_gamma,
            dtype=self.activation_dtype,
        )
        split = self.set_parallel_mode and self.tp_size > 1
        hidden = self._layer("fc1", normed, self._parallel("column", split), self.use_bias, is_first_microbatch)
        hidden = activate(self.activation, hidden, self.activation_params)
        fused = self.apply_bias and not split
        y = self._layer("fc2", hidden, self._parallel("row", split), fused, is_first_microbatch)
        if self.apply_bias and not fused:
            y = y + self.fc2_bias.to(self.activation_dtype)
        results: list[torch.Tensor | None] = [y]
        if self.return_bias:
            results.append(self.fc2_bias.to(self.activation_dtype) if self.use_bias else None)
        if self.return_layernorm_output:
            gathered = self.return_layernorm_output_gathered and self.sequence_parallel
            results.append(gather_rows(normed, self.tp_group) if gathered else normed)
        return results[0] if len(results) == 1 else tuple(results)

    def _parallel(self, mode: str, split: bool) -> Parallel:
        return Parallel(
            mode=mode if split else None,
            group=self.tp_group,
            size=self.tp_size if split else 1,
            sequence_parallel=split and self.sequence_parallel,
        )

    def _layer(
        self, layer: str, x: torch.Tensor, parallel: Parallel, with_bias: bool, is_first_microbatch: bool | None
    ) -> torch.Tensor:
        return self.call_linear(
            x,
            getattr(self, f"{layer}_weight"),
            getattr(self, f"{layer}_bias") if with_bias else None,
            layer=f"{layer}_",
            weight_names=[f"{layer}_weight"],
            parallel=parallel,
            is_first_microbatch=is_first_microbatch,
        )
