"""LayerNormLinear: a normalization, then Linear."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from fp4ref.te.distributed import gather_rows
from fp4ref.te.module.compilation import not_compiled
from fp4ref.te.module.initial_values import ones, zeros
from fp4ref.te.module.linear import Linear
from fp4ref.te.module.normalization import normalize_with_statistics, require_normalization
from fp4ref.te.module.parallel_module import LinearOptions, ParallelModule


class LayerNormLinear(Linear):
    """y = norm(x) W^T + b, with quantized operands inside `autocast`.

    normalization: "LayerNorm" or "RMSNorm". zero_centered_gamma: the norm's factor is 1 + layer_norm_weight.
    return_layernorm_output: also return norm(x), `..._gathered` the rows of all processes of it. Other options are
    those of Linear, where parallel_mode is "column" or None.

    Errors: SettingError, NotSupportedError, TensorShapeError.
    """

    layer_norm_weight: torch.nn.Parameter
    layer_norm_bias: torch.nn.Parameter | None

    def __init__(
        self,
        in_features: int,
        out_features: int,
        eps: float = 1e-5,
        sequence_parallel: bool = False,
        fuse_wgrad_accumulation: bool = False,
        tp_group: Any = None,
        tp_size: int = 1,
        get_rng_state_tracker: Callable[[], Any] | None = None,
        rng_tracker_name: str | None = None,
        init_method: Callable[[torch.Tensor], Any] | None = None,
        bias: bool = True,
        normalization: str = "LayerNorm",
        return_bias: bool = False,
        params_dtype: torch.dtype | None = None,
        parallel_mode: str | None = None,
        return_layernorm_output: bool = False,
        return_layernorm_output_gathered: bool = False,
        parameters_split: tuple[str, ...] | dict[str, int] | None = None,
        zero_centered_gamma: bool = False,
        device: torch.device | str | None = None,
        ub_bulk_wgrad: bool = False,
        ub_bulk_dgrad: bool = False,
        ub_overlap_ag: bool = False,
        ub_overlap_rs: bool = False,
        ub_overlap_rs_dgrad: bool = False,
        ub_name: str | None = None,
        delay_wgrad_compute: bool = False,
        symmetric_ar_type: str | None = None,
        name: str | None = None,
        fsdp_group: Any = None,
    ) -> None:
        require_normalization("LayerNormLinear", normalization)
        ParallelModule.__init__(self, name)
        options = LinearOptions.of(locals())
        self.build(in_features, out_features, parameters_split, options)
        self.normalization, self.eps, self.zero_centered_gamma = normalization, eps, zero_centered_gamma
        self.return_layernorm_output = return_layernorm_output
        self.return_layernorm_output_gathered = return_layernorm_output_gathered
        linear_parameters = list(self._parameters)
        register_norm(self, self.in_features, normalization, zero_centered_gamma, options.memory)
        for own in linear_parameters:  # the norm's come first
            self._parameters[own] = self._parameters.pop(own)

    @not_compiled
    def forward(
        self,
        inp: torch.Tensor,
        is_first_microbatch: bool | None = None,
        fp8_output: bool = False,
        fp8_grad: bool = False,
    ) -> Any:
        """inp [..., in_features] -> [..., out_features]; then the bias, then the norm's output, where asked for.

        Errors: TensorShapeError, TensorDTypeError, SettingError, NotSupportedError.
        """
        inp = self.prepare_forward(inp)
        normed, mean, rstd = normalize_with_statistics(
            inp,
            self.layer_norm_weight,
            self.layer_norm_bias,
            normalization=self.normalization,
            eps=self.eps,
            zero_centered_gamma=self.zero_centered_gamma,
            dtype=self.activation_dtype,
        )
        made_by = (inp, self.layer_norm_weight, mean, rstd)
        y = self.multiply(normed, is_first_microbatch, made_by, fp8_output=fp8_output, fp8_grad=fp8_grad)
        if not self.return_layernorm_output:
            return y
        if self.return_layernorm_output_gathered and self.sequence_parallel:
            normed = gather_rows(normed, self.tp_group)
        return (*y, normed) if isinstance(y, tuple) else (y, normed)


def register_norm(
    module: Any, features: int, normalization: str, zero_centered_gamma: bool, options: dict[str, Any]
) -> None:
    """Register layer_norm_weight [features], and layer_norm_bias where the normalization has one."""
    module.register_weight(
        "layer_norm_weight", torch.empty(features, **options), zeros if zero_centered_gamma else ones, seeded=False
    )
    module.layer_norm_weight.sequence_parallel = module.sequence_parallel
    if normalization == "RMSNorm":
        module.layer_norm_bias = None
    else:
        module.register_weight("layer_norm_bias", torch.empty(features, **options), zeros, seeded=False)
        module.layer_norm_bias.sequence_parallel = module.sequence_parallel
    if options["device"].type != "meta":
        module.fill_parameters(["layer_norm_weight", "layer_norm_bias"])
