"""Train Megatron-LM's GPTModel with its Transformer Engine layers on a CPU, in bfloat16, MXFP8 and NVFP4.

    pip install 'fp4ref[torch]' megatron-core==0.16.1
    python docs/examples/te_megatron.py --steps 50 --plot losses.png
    python docs/examples/te_megatron.py --tensor-parallel 2 --sequence-parallel --checkpoint folder
    python docs/examples/te_megatron.py --tensor-parallel 2 --sequence-parallel --resume folder
    python docs/examples/te_megatron.py --data-parallel 2 --distributed-optimizer
    python docs/examples/te_megatron.py --recipes delayed,tensorwise,blockwise

Megatron is imported as it is. It asks CUDA for the current device even if it works on a CPU; without a GPU this script
answers for it. Every run starts from the same weights and sees the same bytes of the standard's text.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import tempfile
import warnings
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.overrides import TorchFunctionMode

from fp4ref import te
from fp4ref.spec_root import spec_root

WIDTH, HEADS, LAYERS, CONTEXT, BATCH = 128, 4, 2, 64, 4
RECIPES: dict[str, dict[str, Any]] = {
    "bf16": {},
    "mxfp8": {"fp8": "e4m3", "fp8_recipe": "mxfp8"},
    "nvfp4": {"fp4": "e2m1", "fp4_recipe": "nvfp4"},
    "delayed": {"fp8": "hybrid", "fp8_recipe": "delayed"},
    "tensorwise": {"fp8": "hybrid", "fp8_recipe": "tensorwise"},
    "blockwise": {"fp8": "e4m3", "fp8_recipe": "blockwise"},
}


def batches(done: int, steps: int) -> list[torch.Tensor]:
    """Return pieces of the standard's text, [BATCH, CONTEXT + 1] bytes each, without the first `done` batches."""
    text = b"".join(path.read_bytes() for path in sorted(spec_root().glob("*.md")))
    data = torch.frombuffer(bytearray(text), dtype=torch.uint8).long()
    generator = torch.Generator().manual_seed(1)
    starts = torch.randint(len(data) - CONTEXT - 1, (done + steps, BATCH), generator=generator)
    return [torch.stack([data[start : start + CONTEXT + 1] for start in row]) for row in starts[done:].tolist()]


def model(recipe: dict[str, Any], options: argparse.Namespace) -> Any:
    """Return Megatron's GPT with the layers of its Transformer Engine specification."""
    from megatron.core.models.gpt import GPTModel
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_with_transformer_engine_spec
    from megatron.core.transformer.transformer_config import TransformerConfig

    torch.manual_seed(0)
    config = TransformerConfig(
        num_layers=LAYERS,
        hidden_size=WIDTH,
        num_attention_heads=HEADS,
        normalization="RMSNorm",
        add_bias_linear=False,
        hidden_dropout=0.0,
        attention_dropout=0.0,
        bf16=True,
        params_dtype=torch.bfloat16,
        use_cpu_initialization=True,
        tensor_model_parallel_size=options.tensor_parallel,
        sequence_parallel=options.sequence_parallel,
        **recipe,
    )
    return GPTModel(
        config,
        get_gpt_layer_with_transformer_engine_spec(),
        vocab_size=256,
        max_sequence_length=CONTEXT,
        position_embedding_type="rope",
    ).bfloat16()


def with_distributed_optimizer(gpt: Any) -> tuple[Any, Any]:
    """Return the model in Megatron's buffers of gradients, and the optimizer whose states are split over data."""
    from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
    from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer

    for parameter in gpt.parameters():
        parameter.grad_added_to_main_grad = False
    wrapped = DistributedDataParallel(
        gpt.config, DistributedDataParallelConfig(use_distributed_optimizer=True, grad_reduce_in_fp32=True), gpt
    )
    config = OptimizerConfig(optimizer="adam", lr=2e-3, bf16=True, params_dtype=torch.bfloat16)
    config.use_distributed_optimizer = True
    return wrapped, get_megatron_optimizer(config, [wrapped])


class OnTheCpu(TorchFunctionMode):
    """Context in which tensors that are asked for on a GPU are made on the CPU; Megatron's optimizer names the GPU."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if str(kwargs.get("device", "")).startswith("cuda"):
            kwargs["device"] = "cpu"
        if func is torch.Tensor.cuda:
            return args[0]
        if func is torch.Tensor.type and len(args) == 1 and not kwargs:
            return func(*args).replace("torch.", "torch.cuda.")  # the optimizer knows these names only
        return func(*args, **kwargs)


def train_in_buffers(gpt: Any, options: argparse.Namespace, name: str) -> list[float]:
    """Return the loss of each step of Megatron's distributed optimizer."""
    from megatron.core.distributed import finalize_model_grads

    with contextlib.nullcontext() if torch.cuda.is_available() else OnTheCpu():
        wrapped, optimizer = with_distributed_optimizer(gpt)
        done = 0 if options.resume is None else load(gpt, optimizer, options.resume / name)
        places = torch.arange(CONTEXT).expand(BATCH, CONTEXT)
        losses = []
        for tokens in batches(done, options.steps):
            gpt.set_is_first_microbatch()
            wrapped.zero_grad_buffer()
            optimizer.zero_grad()
            loss = wrapped(tokens[:, :-1], places, None, labels=tokens[:, 1:]).float().mean()
            loss.backward()
            finalize_model_grads([wrapped])
            assert optimizer.step()[0]
            losses.append(loss.item())
        if options.checkpoint is not None:
            save(gpt, optimizer, done + options.steps, options.checkpoint / name)
    return losses


def train(gpt: Any, options: argparse.Namespace, name: str) -> list[float]:
    """Return the loss of each step; a microbatch is a whole batch, so every step quantizes the weights anew."""
    optimizer = te.optimizers.FusedAdam(gpt.parameters(), lr=2e-3, master_weights=True)
    done = 0 if options.resume is None else load(gpt, optimizer, options.resume / name)
    places = torch.arange(CONTEXT).expand(BATCH, CONTEXT)
    losses = []
    for tokens in batches(done, options.steps):
        gpt.set_is_first_microbatch()
        loss = gpt(tokens[:, :-1], places, None, labels=tokens[:, 1:]).float().mean()
        optimizer.zero_grad()
        loss.backward()
        finish_gradients(gpt)
        optimizer.step()
        losses.append(loss.item())
    if options.checkpoint is not None:
        save(gpt, optimizer, done + options.steps, options.checkpoint / name)
    return losses


def finish_gradients(gpt: Any) -> None:
    """Sum the gradients of the norms, of which each process saw some rows only."""
    from megatron.core import parallel_state

    for parameter in gpt.parameters():
        if getattr(parameter, "sequence_parallel", False) and parameter.grad is not None:
            dist.all_reduce(parameter.grad, group=parallel_state.get_tensor_model_parallel_group())


def whole_state(gpt: Any, optimizer: Any, done: int, *, is_loading: bool) -> dict[str, Any]:
    """Return the content of a distributed checkpoint: the model, the optimizer, and the state of each process."""
    from megatron.core import tensor_parallel
    from megatron.core.dist_checkpointing.mapping import ShardedObject

    state = {"model": gpt.sharded_state_dict()}
    own = {
        "steps": done,
        "random": torch.get_rng_state(),
        "tracker": tensor_parallel.get_cuda_rng_tracker().get_states(),
    }
    if hasattr(optimizer, "sharded_state_dict"):
        form = {"distrib_optim_sharding_type": "fully_reshardable"}
        state["optimizer"] = optimizer.sharded_state_dict(state["model"], is_loading=is_loading, metadata=form)
    else:
        own["optimizer"] = optimizer.state_dict()
    return state | {"own": ShardedObject("own", own, (dist.get_world_size(),), (dist.get_rank(),))}


def save(gpt: Any, optimizer: Any, done: int, folder: Path) -> None:
    """Write a distributed checkpoint; done: the steps that were made."""
    from megatron.core import dist_checkpointing

    if dist.get_rank() == 0:
        folder.mkdir(parents=True, exist_ok=True)
    dist.barrier()
    dist_checkpointing.save(whole_state(gpt, optimizer, done, is_loading=False), str(folder))


def load(gpt: Any, optimizer: Any, folder: Path) -> int:
    """Read a distributed checkpoint, and return the number of steps that it stands for."""
    from megatron.core import dist_checkpointing, tensor_parallel

    state = dist_checkpointing.load(whole_state(gpt, optimizer, 0, is_loading=True), str(folder))
    own = state["own"]
    gpt.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"] if "optimizer" in state else own["optimizer"])
    torch.set_rng_state(own["random"])
    tensor_parallel.get_cuda_rng_tracker().set_states(own["tracker"])
    return int(own["steps"])


def run(rank: int, options: argparse.Namespace, store: str) -> None:
    """Train by every recipe, as one of the processes; the first writes the losses."""
    warnings.simplefilter("ignore")  # Megatron's, of packages that it would use if they were there
    torch.set_num_threads(1)
    if not torch.cuda.is_available():
        torch.cuda.current_device = lambda: "cpu"  # type: ignore[assignment, return-value]
        torch.cuda.synchronize = lambda *args: None  # type: ignore[assignment]
    te.install_alias()
    from megatron.core import parallel_state, tensor_parallel

    size = options.tensor_parallel * options.data_parallel
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=size)
    parallel_state.initialize_model_parallel(options.tensor_parallel)
    tensor_parallel.model_parallel_cuda_manual_seed(1, te_rng_tracker=True)
    losses: dict[str, list[float]] = {}
    for name in options.recipes.split(","):
        gpt = model(RECIPES[name], options)
        te.debug.reset_operation_counts()
        losses[name] = (train_in_buffers if options.distributed_optimizer else train)(gpt, options, name)
        if rank == 0:
            quantized = te.debug.operation_counts()["quantize"]
            print(f"{name:10s} loss {losses[name][0]:.3f} -> {losses[name][-1]:.3f}, quantized {quantized}")
    if rank == 0 and options.json is not None:
        options.json.write_text(json.dumps(losses))
    if rank == 0 and options.plot is not None:
        plot(losses, options.plot)
    dist.destroy_process_group()


def plot(losses: dict[str, list[float]], path: Path) -> None:
    """Draw the losses."""
    from matplotlib import pyplot as plt

    for name, values in losses.items():
        plt.plot(values, label=name)
    plt.xlabel("step")
    plt.ylabel("loss")
    plt.legend()
    plt.savefig(path)


def main() -> None:
    """Read the options and start the processes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--recipes", default="bf16,mxfp8,nvfp4", help=f"some of {', '.join(RECIPES)}")
    parser.add_argument("--tensor-parallel", type=int, default=1)
    parser.add_argument("--data-parallel", type=int, default=1)
    parser.add_argument("--distributed-optimizer", action="store_true", help="Megatron's, in its buffers")
    parser.add_argument("--sequence-parallel", action="store_true")
    parser.add_argument("--checkpoint", type=Path, help="write a distributed checkpoint of each run here")
    parser.add_argument("--resume", type=Path, help="go on from the checkpoints that --checkpoint wrote here")
    parser.add_argument("--json", type=Path, help="write the losses")
    parser.add_argument("--plot", type=Path, help="draw the losses; needs matplotlib")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        store = str(Path(folder) / "store")
        processes = options.tensor_parallel * options.data_parallel
        if processes == 1:
            run(0, options, store)
        else:
            torch.multiprocessing.spawn(run, args=(options, store), nprocs=processes)


if __name__ == "__main__":
    main()
