"""Linear."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from fp4ref.te.module.compilation import not_compiled
from fp4ref.te.module.options import divide, require_only_supported
from fp4ref.te.module.parallel_module import LinearOptions, ParallelModule, parts_of
from fp4ref.te.quantization import QuantizerRole


class Linear(ParallelModule):
    """y = x W^T + b, with quantized operands inside `autocast`.

    in_features, out_features: of the whole weight; with parallel_mode "column" ("row") each process of the group has
    its part of the outputs (inputs). sequence_parallel: the rows of the input (of the output) are split, not repeated.
    parameters_split: names, or names and rows, of parameters that make up the weight. return_bias: return (y, bias) and
    do not add it. delay_wgrad_compute: leave the weight's gradient to `backward_dw()`. fsdp_group: keep parts of the
    quantized weight between the passes. Options of overlapped communication are refused by name.

    Errors: SettingError, NotSupportedError, TensorShapeError.
    """

    def __init__(
        self,
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
        parameters_split: tuple[str, ...] | dict[str, int] | None = None,
        device: torch.device | str | None = None,
        ub_overlap_ag: bool = False,
        ub_overlap_rs: bool = False,
        ub_overlap_rs_dgrad: bool = False,
        ub_bulk_dgrad: bool = False,
        ub_bulk_wgrad: bool = False,
        ub_name: str | None = None,
        delay_wgrad_compute: bool = False,
        symmetric_ar_type: str | None = None,
        save_original_input: bool = False,
        name: str | None = None,
        fsdp_group: Any = None,
    ) -> None:
        super().__init__(name)
        options = LinearOptions.of(locals())
        self.build(in_features, out_features, parameters_split, options)

    def build(self, in_features: int, out_features: int, parameters_split: Any, options: LinearOptions) -> None:
        """Keep the options, and register and fill the parameters."""
        self.read_options(options)
        mode = options.parallel_mode
        parts = parts_of("Linear", parameters_split, out_features, mode, self.tp_size)
        self.in_features = divide("Linear", "in_features", in_features, self.tp_size if mode == "row" else 1)
        self.out_features = sum(parts.values())
        shape = (self.out_features, self.in_features)
        names = self.register_linear(shape, parts, bias=options.bias, init=options.init_method, **options.memory)
        self.weight_names, self.bias_names = names
        self.mark_parallel(*names, mode=mode)
        if len(parts) > 1 and self.primary_weights_in_fp8:
            require_only_supported("Linear in quantized_model_init", parameters_split=parameters_split)
        if not options.bias:
            self.bias = torch.empty(0, **options.memory)
        self.reset_parameters(defer_init=options.memory["device"].type == "meta")

    def operand_roles(self, forward: bool) -> dict[str, QuantizerRole]:
        """Return operands of one direction."""
        names = ("input", "weight", "output") if forward else ("grad_output", "grad_input")
        return {name: QuantizerRole("linear", name, self.name or "") for name in names}

    def weight_operands(self) -> dict[str, str]:
        """Return names of the weight parameters, and the operands that they are."""
        return dict.fromkeys(self.weight_names, "weight")

    def _get_weight_quantizers(self) -> list[Any]:
        if not self.fp8:
            return [None]
        return [self.weight_quantizer("weight", getattr(self, self.weight_names[0]))]

    @not_compiled
    def forward(
        self,
        inp: torch.Tensor,
        is_first_microbatch: bool | None = None,
        fp8_output: bool = False,
        fp8_grad: bool = False,
    ) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor | None]:
        """inp [..., in_features] -> [..., out_features], and the bias if `return_bias`.

        is_first_microbatch: None quantizes the weight now and forgets it; True quantizes it and keeps the result; False
        uses what was kept.

        Errors: TensorShapeError, TensorDTypeError, SettingError, NotSupportedError.
        """
        return self.multiply(self.prepare_forward(inp), is_first_microbatch, fp8_output=fp8_output, fp8_grad=fp8_grad)

    def multiply(
        self,
        inp: torch.Tensor,
        is_first_microbatch: bool | None,
        norm: tuple[torch.Tensor | None, ...] | None = None,
        *,
        fp8_output: bool,
        fp8_grad: bool,
    ) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor | None]:
        """`forward` of an input that is prepared; norm: what made it, for the node of the graph."""
        if fp8_output is not False or fp8_grad is not False:
            require_only_supported(f"{type(self).__name__}.forward", fp8_output=fp8_output, fp8_grad=fp8_grad)
        bias = self.joined(self.bias_names) if self.use_bias else None
        fused = self.apply_bias and self.parallel_mode != "row"
        y = self.call_linear(
            inp,
            self.joined(self.weight_names),
            bias if fused else None,
            weight_names=self.weight_names,
            parallel=self.parallel,
            is_first_microbatch=is_first_microbatch,
            save_original_input=self.save_original_input,
            norm=norm,
        )
        if bias is not None and self.apply_bias and not fused:
            y = y + bias.to(self.activation_dtype)
        if self.return_bias:
            return y, None if bias is None else bias.to(self.activation_dtype)
        return y
