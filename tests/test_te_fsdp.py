from __future__ import annotations

import os
import warnings

import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402

from fp4ref import te  # noqa: E402
from fp4ref.te import quantizer_factory_zoo  # noqa: E402
from te_samples import of_two_processes  # noqa: E402

RECIPES = {
    "nvfp4": lambda: te.recipe.NVFP4BlockScaling(disable_rht=True, disable_stochastic_rounding=True),
    "mxfp8": te.recipe.MXFP8BlockScaling,
    "current": te.recipe.Float8CurrentScaling,
    "squares": te.recipe.Float8BlockScaling,
    "hybrid": lambda: te.recipe.CustomRecipe(qfactory=quantizer_factory_zoo.mxfp8_fwd_high_precision_bwd_factory),
}
PACKED = {
    "nvfp4": "NVFP4Tensor",
    "mxfp8": "MXFP8Tensor",
    "current": "Float8Tensor",
    "squares": "Float8BlockwiseQTensor",
    "hybrid": "HybridQuantizedTensor",
}
CASES = (*((name, True) for name in PACKED), ("mxfp8", False))  # recipe, packed weights
SIZES = ((128, 256), (256, 256))


def _step(model, recipe, x):
    with te.autocast(recipe=recipe):
        y = model(x)
    y.sum().backward()
    return y.detach()


def _member(rank, address, results):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    warnings.simplefilter("ignore")  # of outputs that are views
    dist.init_process_group("gloo", init_method=f"file://{address}", rank=rank, world_size=2)
    try:
        mesh = init_device_mesh("cpu", (2,))
        for name, packed in CASES:
            torch.manual_seed(0)
            recipe = RECIPES[name]()
            with te.quantized_model_init(packed, recipe=recipe):
                layers = [te.Linear(i, o, params_dtype=torch.bfloat16, device="cpu", bias=False) for i, o in SIZES]
            model = torch.nn.Sequential(*layers)
            x = torch.randn(64, 128).to(torch.bfloat16)
            whole = _step(model, recipe, x)
            gradients = [layer.weight.grad for layer in layers]
            for layer in layers:
                layer.weight.grad = None
                fully_shard(layer, mesh=mesh)
            fully_shard(model, mesh=mesh)
            shard = type(layers[0].weight._local_tensor).__name__
            sharded = [_step(model, recipe, x) for _ in range(2)]

            same = [
                torch.equal(layer.weight.grad._local_tensor, (2 * gradient).chunk(2)[rank])
                for layer, gradient in zip(layers, gradients, strict=True)
            ]
            results[name, packed, rank] = shard, all(torch.equal(y, whole) for y in sharded), same
    finally:
        dist.destroy_process_group()
    os._exit(0)  # gloo's threads may abort an interpreter that ends while a module keeps its group


@pytest.mark.filterwarnings("ignore")  # of outputs that are views
@pytest.mark.rule("TEL-15")
def test_one_process_has_the_whole(tmp_path):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    dist.init_process_group("gloo", init_method=f"file://{tmp_path / 'store'}", rank=0, world_size=1)
    try:
        for name, packed in CASES:
            torch.manual_seed(0)
            recipe = RECIPES[name]()
            with te.quantized_model_init(packed, recipe=recipe):
                layer = te.Linear(128, 128, params_dtype=torch.bfloat16, device="cpu", bias=False)
            x = torch.randn(32, 128).to(torch.bfloat16)
            whole, gradient = _step(layer, recipe, x), layer.weight.grad
            layer.weight.grad = None
            fully_shard(layer, mesh=init_device_mesh("cpu", (1,)))
            for count in (1, 2):
                assert torch.equal(_step(layer, recipe, x), whole)
                assert torch.equal(layer.weight.grad._local_tensor, count * gradient)
    finally:
        dist.destroy_process_group()


@pytest.mark.heavy  # starts two processes
@pytest.mark.slow
@pytest.mark.rule("TEL-15")
def test_fully_sharded_training_is_the_whole_one(tmp_path):
    gathered = of_two_processes(_member, tmp_path)
    for rank in range(2):
        for name, kind in PACKED.items():
            assert gathered[name, True, rank] == (kind, True, [True, True]), name
        assert gathered["mxfp8", False, rank] == ("Tensor", True, [True, True])
