"""Products with a weight, as operations."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from fp4ref.memory import require_apart
from fp4ref.te.errors import NotSupportedError, SettingError, TensorShapeError
from fp4ref.te.module.options import divide
from fp4ref.te.module.parallel_module import MODES, LinearOptions, ParallelModule
from fp4ref.te.ops.elementwise import Bias, ConstantScale, adds_in_place
from fp4ref.te.ops.fused import (
    BackwardLinearAdd,
    BackwardLinearScale,
    ForwardLinearBiasActivation,
    ForwardLinearBiasAdd,
    ForwardLinearScaleAdd,
    Together,
)
from fp4ref.te.ops.gradients import joined, scaled_forward
from fp4ref.te.ops.operation import BasicOperation
from fp4ref.te.ops.quantize import QuantizingOperation
from fp4ref.te.quantization import FP8GlobalStateManager, QuantizerRole

Tensor = torch.Tensor


NARROW = {torch.float16, torch.bfloat16}


def uniform(parameter: Tensor) -> None:
    """Fill as torch.nn.Linear fills its weight."""
    torch.nn.init.kaiming_uniform_(parameter, a=math.sqrt(5))


class WeightedOperation(QuantizingOperation, ParallelModule):
    """An operation with quantized weights, and the parameters of a linear module."""

    def pre_first_fuser_forward(self) -> None:
        """Make the parameters, if they are on the meta device."""
        missing = [name for name, parameter in self.named_parameters() if parameter.device.type == "meta"]
        if missing and self.primary_weights_in_fp8 and not FP8GlobalStateManager.is_fp8_enabled():
            raise SettingError(
                type(self).__name__, "a first call outside autocast", "a recipe to pack the weights with"
            )
        self.fill_parameters(missing)


class BasicLinear(WeightedOperation):
    """y = x W^T; W is initialized as torch.nn.Linear does.

    tensor_parallel_mode: None, "column" or "row", over a group; a group of one process is none.
    accumulate_into_main_grad: add the weight's gradient to its `main_grad`, or store it there if the weight has a true
    `overwrite_main_grad`.

    Errors: SettingError, NotSupportedError, TensorShapeError.
    """

    weight: torch.nn.Parameter

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        tensor_parallel_mode: str | None = None,
        tensor_parallel_group: Any = None,
        sequence_parallel: bool = False,
        rng_state_tracker_function: Any = None,
        accumulate_into_main_grad: bool = False,
        userbuffers_options: dict[str, Any] | None = None,
    ) -> None:
        super().__init__()
        if tensor_parallel_mode not in MODES:
            raise SettingError("BasicLinear", f"tensor_parallel_mode {tensor_parallel_mode!r}", "'column', 'row', None")
        alone = tensor_parallel_mode is None or torch.distributed.get_world_size(tensor_parallel_group) == 1
        options = LinearOptions(
            sequence_parallel=sequence_parallel and not alone,
            fuse_wgrad_accumulation=accumulate_into_main_grad,
            tp_group=None if alone else tensor_parallel_group or torch.distributed.group.WORLD,
            tp_size=1,
            get_rng_state_tracker=rng_state_tracker_function,
            init_method=uniform,
            bias=False,
            return_bias=False,
            params_dtype=dtype,
            parallel_mode=None if alone else tensor_parallel_mode,
            device=device,
            delay_wgrad_compute=False,
            unsupported={"userbuffers_options": userbuffers_options},
        )
        self.read_options(options)
        parts = {mode: self.tp_size if self.parallel_mode == mode else 1 for mode in ("row", "column")}
        self.in_features, self.out_features = in_features, out_features
        self.local_in_features = divide("BasicLinear", "in_features", in_features, parts["row"])
        self.local_out_features = divide("BasicLinear", "out_features", out_features, parts["column"])
        shape = (self.local_out_features, self.local_in_features)
        self.register_linear(shape, {"": shape[0]}, bias=False, init=uniform, **options.memory)
        self.reset_parameters(defer_init=options.memory["device"].type == "meta")

    def operand_roles(self, forward: bool) -> dict[str, QuantizerRole]:
        """Return operands of one direction."""
        names = ("input", "weight") if forward else ("grad_output",)
        return {name: QuantizerRole("linear", name, self.name or "") for name in names}

    def weight_operands(self) -> dict[str, str]:
        """Return the weight's name, and the operand that it is."""
        return {"weight": "weight"}

    def _get_weight_quantizers(self) -> list[Any]:
        return [self.weight_quantizer("weight", self.weight)] if self.fp8 else [None]

    def run(self, x: Tensor) -> tuple[Tensor, tuple[()]]:
        """Return the product."""
        return self.product(x), ()

    def product(
        self,
        x: Tensor,
        added: Tensor | None = None,
        *,
        bias: Tensor | None = None,
        scale: float | None = None,
        forks: bool = False,
    ) -> Any:
        """Return the product, with a bias or a factor of the operation behind it; forks: x as well, for another path.

        added: the sum with it is rounded once and takes its place in memory.

        Errors: TensorShapeError for another shape of `added`, BackendError if it shares memory with x, which the
        backward pass reads.

        Rules: TEM-33, TEM-34, TEM-40, TEM-54.
        """
        self.enter(x, self.weight.dtype)
        if added is not None:
            self._require_apart(x, added)
        y = self.call_linear(
            x,
            self.weight,
            bias,
            weight_names=["weight"],
            parallel=self.parallel,
            is_first_microbatch=None,
            gradient_factor=1.0 if scale is None else scale,
            result_factor=1.0 if scale is None or added is None else scale,
            added=added,
            forks=forks,
        )
        y, *same = y if forks else (y,)
        y = y.reshape(*x.shape[:-1], -1) if x.dim() == 1 else y
        if added is not None:
            y = joined(y, added)
        elif scale is not None:
            y = scaled_forward(y, scale)
        return (y, *same) if forks else y

    def _require_apart(self, x: Tensor, added: Tensor) -> None:
        shape = (*x.shape[:-1], self.weight.shape[0])
        if added.numel() != math.prod(shape) or added.shape[-1:] != shape[-1:]:
            raise TensorShapeError("AddExtraInput", f"{list(added.shape)} in place", f"{list(shape)}", "TEM-54")
        require_apart("AddExtraInput", {"an extra input in place": added.detach()}, {"x": x.detach()})

    def with_next(self, following: Sequence[BasicOperation]) -> Together | None:
        """Return the product with a bias or a scale behind it, and a sum in place. Rules: TEM-33, TEM-34, TEM-40."""
        scale = following[0] if following and isinstance(following[0], ConstantScale) else None
        if scale is None or self.parallel_mode == "column":
            return self.with_bias(following)
        if len(following) > 1 and adds_in_place(following[1]) and self.parallel_mode is None:
            kinds: Any = {"forward": ForwardLinearScaleAdd, "backward": BackwardLinearScale, "backward_of": (0, 2)}
            return Together(lambda x, added: (self.product(x, added, scale=scale.scale), ()), 3, **kinds)
        return Together(lambda x: (self.product(x, scale=scale.scale), ()), backward=BackwardLinearScale)

    def with_bias(self, following: Sequence[BasicOperation]) -> Together | None:
        """Return the product with a bias behind it, and a sum in place. Rules: TEM-33, TEM-40."""
        owner = following[0] if following and isinstance(following[0], Bias) else None
        behind = following[1:] if owner else following
        adds = bool(behind) and adds_in_place(behind[0])
        if self.parallel_mode == "row" or not (adds or (owner and self.weight.dtype in NARROW)):
            return None

        def call(x: Tensor, added: Tensor | None = None) -> tuple[Tensor, tuple[()]]:
            return self.product(x, added, bias=owner.bias if owner else None), ()

        kind = ForwardLinearBiasAdd if adds else ForwardLinearBiasActivation
        return Together(call, 1 + bool(owner) + adds, forward=kind)

    def behind_fork(self, following: Sequence[BasicOperation]) -> Together | None:
        """Return the product behind an extra output whose gradient is added in place. Rules: TEM-46, TEM-47.

        Errors: NotSupportedError for a scale, or an addition in place, behind the product.
        """
        if self.parallel_mode == "column":
            return None
        inner = self.with_bias(following)
        if (inner and inner.forward is ForwardLinearBiasAdd) or (following and isinstance(following[0], ConstantScale)):
            got = "a product between an extra output and an addition in place, or before a scale"
            raise NotSupportedError("Sequential", got, "in_place=False of the extra output", "TEM-47")
        bias = following[0] if inner else None

        def call(x: Tensor) -> tuple[Tensor, tuple[Tensor]]:
            y, same = self.product(x, bias=bias.bias if isinstance(bias, Bias) else None, forks=True)
            return y, (same,)

        kinds: Any = {"backward": BackwardLinearAdd, "backward_of": (0, 2), "forward_of": (1, 3)}
        return Together(call, 2 + bool(inner), forward=inner.forward if inner else None, **kinds)

    def require_neighbour(self, before: Sequence[BasicOperation]) -> None:
        """Raise if a product before this one would have to write a quantized result. Rules: TEM-36."""
        if not isinstance(before[0], BasicLinear) or isinstance(before[-1], ConstantScale):
            return
        if not FP8GlobalStateManager.is_fp8_enabled() or FP8GlobalStateManager.get_fp8_recipe().delayed():
            return
        recipe = type(FP8GlobalStateManager.get_fp8_recipe()).__name__
        got, needed = f"two products in a row under {recipe}", "an operation between them, or DelayedScaling"
        raise NotSupportedError("Sequential", got, needed, "TEM-36")
