"""Products with a weight, as operations."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from fp4ref.te.errors import NotSupportedError, SettingError
from fp4ref.te.module.linear_function import Parallel
from fp4ref.te.module.options import divide
from fp4ref.te.module.parallel_module import MODES, LinearOptions, ParallelModule
from fp4ref.te.ops.collectives import AllReduce, ReduceScatter
from fp4ref.te.ops.elementwise import Bias, ConstantScale
from fp4ref.te.ops.operation import BasicOperation, FusibleOperation
from fp4ref.te.ops.quantize import QuantizingOperation
from fp4ref.te.quantization import FP8GlobalStateManager, QuantizerRole

Tensor = torch.Tensor


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

    def product(self, x: Tensor, *, bias: Tensor | None = None, scale: float | None = None) -> Tensor:
        """Return the product, with a bias or a factor of the operation behind it.

        Rules: TEM-33, TEM-34.
        """
        self.enter(x, self.weight.dtype)
        parallel = Parallel(
            mode=self.parallel_mode, group=self.tp_group, size=self.tp_size, sequence_parallel=self.sequence_parallel
        )
        y = self.call_linear(
            x,
            self.weight,
            bias,
            operands={"input": "input", "weight": "weight", "grad_output": "grad_output"},
            workspace="weight",
            weight_names=["weight"],
            parallel=parallel,
            is_first_microbatch=None,
            gradient_factor=1.0 if scale is None else scale,
        )
        y = y.reshape(*x.shape[:-1], -1) if x.dim() == 1 else y
        return y if scale is None else _ScaledForward.apply(y, scale)  # type: ignore[no-untyped-call]

    def with_next(self, following: BasicOperation) -> Callable[[Tensor], tuple[Tensor, Sequence[Tensor]]] | None:
        """Return the product with a bias or a scale behind it. Rules: TEM-33, TEM-34."""
        narrow = self.weight.dtype in {torch.float16, torch.bfloat16}
        if isinstance(following, Bias) and narrow and self.parallel_mode != "row":
            return lambda x: (self.product(x, bias=following.bias), ())
        if isinstance(following, ConstantScale) and self.parallel_mode != "column":
            return lambda x: (self.product(x, scale=following.scale), ())
        return None

    def require_neighbour(self, before: Sequence[BasicOperation]) -> None:
        """Raise if a product before this one would have to write a quantized result. Rules: TEM-36."""
        if not isinstance(before[0], BasicLinear) or isinstance(before[-1], ConstantScale):
            return
        if not FP8GlobalStateManager.is_fp8_enabled() or FP8GlobalStateManager.get_fp8_recipe().delayed():
            return
        recipe = type(FP8GlobalStateManager.get_fp8_recipe()).__name__
        got, needed = f"two products in a row under {recipe}", "an operation between them, or DelayedScaling"
        raise NotSupportedError("Sequential", got, needed, "TEM-36")


class _ScaledForward(torch.autograd.Function):
    """y = x * scale, whose gradient was multiplied elsewhere."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, scale: float) -> Tensor:  # noqa: ARG004 - torch's signature
        return x * scale

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:  # noqa: ARG004
        return grads[0], None


class LinearOperation(FusibleOperation):
    """y = x W^T + b: a BasicLinear, a Bias, and for tensor_parallel_mode "row" the sum over the group behind both.

    `weight` and `bias` are parameters of these, and have their names: basic_ops.0.weight and basic_ops.1.bias.
    """

    is_fused_op = True

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        bias: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        tensor_parallel_mode: str | None = None,
        tensor_parallel_group: Any = None,
        sequence_parallel: bool = False,
        rng_state_tracker_function: Any = None,
        accumulate_into_main_grad: bool = False,
    ) -> None:
        super().__init__()
        mode, group = tensor_parallel_mode, tensor_parallel_group
        size = 1 if mode is None else torch.distributed.get_world_size(group)
        row, split = mode == "row" and size > 1, mode == "column" and size > 1
        linear = BasicLinear(
            divide("Linear", "in_features", in_features, size) if row else in_features,
            out_features,
            device=device,
            dtype=dtype,
            tensor_parallel_mode=None if row else mode,
            tensor_parallel_group=None if row else group,
            sequence_parallel=sequence_parallel and not row,
            rng_state_tracker_function=rng_state_tracker_function,
            accumulate_into_main_grad=accumulate_into_main_grad,
        )
        operations: list[BasicOperation] = [linear]
        if bias:
            memory: Any = {"device": device, "dtype": dtype}
            operations.append(Bias(out_features, **memory, tensor_parallel=split, tensor_parallel_group=group))
        if row:
            operations.append(ReduceScatter(group) if sequence_parallel else AllReduce(group))
        self.basic_ops = torch.nn.ModuleList(operations)

    def basic_operations(self) -> list[BasicOperation]:
        """Return the operations that this one consists of, in order."""
        return list(self.basic_ops)  # type: ignore[arg-type]

    @property
    def weight(self) -> torch.nn.Parameter:
        """The weight, which the product owns."""
        return self.basic_ops[0].weight  # type: ignore[return-value]

    @weight.setter
    def weight(self, parameter: torch.nn.Parameter) -> None:
        self.basic_ops[0].weight = parameter

    @property
    def bias(self) -> torch.nn.Parameter | None:
        """The bias, or None."""
        owner = next((op for op in self.basic_ops if isinstance(op, Bias)), None)
        return None if owner is None else owner.bias

    @bias.setter
    def bias(self, parameter: torch.nn.Parameter) -> None:
        owner = next((op for op in self.basic_ops if isinstance(op, Bias)), None)
        if owner is None:
            raise SettingError("ops.Linear", "a bias for bias=False", "bias=True")
        owner.bias = parameter

    def get_quantizer(self, mode: str, index: int) -> Any:
        """Return one of the quantizers of the product."""
        linear: Any = self.basic_ops[0]
        return linear.get_quantizer(mode, index)

    def __setattr__(self, name: str, value: Any) -> None:
        """Give a parameter to its owner; torch would register it here as well."""
        if name in {"weight", "bias"}:
            object.__setattr__(self, name, value)
        else:
            super().__setattr__(name, value)
