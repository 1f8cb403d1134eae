"""TransformerLayer: attention and an MLP on a residual stream."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from fp4ref.te.attention.multi_head_attention import MultiheadAttention, Rotary
from fp4ref.te.distributed import get_distributed_world_size
from fp4ref.te.errors import SettingError
from fp4ref.te.module.compilation import not_compiled
from fp4ref.te.module.layernorm_mlp import LayerNormMLP
from fp4ref.te.module.norm_modules import LayerNorm, RMSNorm

NORMS = {"LayerNorm": LayerNorm, "RMSNorm": RMSNorm}


class TransformerLayer(torch.nn.Module):
    """x + attention(x), then the same plus its MLP; a "decoder" attends to an encoder's output in between.

    Submodules: self_attention, inter_attention (of a decoder), layernorm_mlp, layernorm (with output_layernorm, which
    normalizes at the end instead of before the attention). apply_residual_connection_post_layernorm: the residual is
    the norm's output. parallel_attention_mlp: both read the same states. drop_path_rate: leave out a layer's
    contribution to some samples. Other options are those of MultiheadAttention and LayerNormMLP.

    Errors: SettingError, NotSupportedError, TensorShapeError.

    Rules: TEM-30.
    """

    def __init__(
        self,
        hidden_size: int,
        ffn_hidden_size: int,
        num_attention_heads: int,
        num_gqa_groups: int | None = None,
        layernorm_epsilon: float = 1e-5,
        hidden_dropout: float = 0.1,
        attention_dropout: float = 0.1,
        init_method: Callable[[Tensor], Any] | None = None,
        output_layer_init_method: Callable[[Tensor], Any] | None = None,
        layer_number: int | None = None,
        kv_channels: int | None = None,
        self_attn_mask_type: str = "causal",
        window_size: tuple[int, int] | None = None,
        bottom_right_diagonal: bool | None = None,
        enc_dec_attn_mask_type: str = "no_mask",
        enc_dec_bottom_right_diagonal: bool | None = None,
        enc_dec_window_size: tuple[int, int] | None = None,
        tp_group: Any = None,
        tp_size: int = 1,
        params_dtype: torch.dtype | None = None,
        get_rng_state_tracker: Callable[[], Any] | None = None,
        fuse_wgrad_accumulation: bool = False,
        seq_length: int | None = None,
        micro_batch_size: int | None = None,
        sequence_parallel: bool = False,
        apply_residual_connection_post_layernorm: bool = False,
        output_layernorm: bool = False,
        parallel_attention_mlp: bool = False,
        layer_type: str = "encoder",
        drop_path_rate: float = 0.0,
        set_parallel_mode: bool = False,
        fuse_qkv_params: bool = False,
        rotary_pos_interleaved: bool = False,
        zero_centered_gamma: bool = False,
        qkv_weight_interleaved: bool = True,
        ub_tp_comm_overlap: bool = False,
        ub_overlap_ag: bool = True,
        ub_overlap_rs: bool = True,
        ub_overlap_rs_dgrad: bool = False,
        ub_bulk_dgrad: bool = True,
        ub_bulk_wgrad: bool = True,
        bias: bool = True,
        activation: str = "gelu",
        activation_params: dict[str, Any] | None = None,
        normalization: str = "LayerNorm",
        device: torch.device | str | None = None,
        attn_input_format: str = "sbhd",
        name: str | None = None,
        qk_norm_type: str | None = None,
        qk_norm_eps: float = 1e-6,
        qk_norm_before_rope: bool = False,
        softmax_type: str = "vanilla",
    ) -> None:
        super().__init__()
        _require_settings(
            layer_type, parallel_attention_mlp, apply_residual_connection_post_layernorm, output_layernorm
        )
        if fuse_wgrad_accumulation and not fuse_qkv_params:
            got = "fuse_wgrad_accumulation without fuse_qkv_params"
            raise SettingError("TransformerLayer", got, "a weight in one piece")
        self.name, self.layer_type, self.layer_number = name, layer_type, layer_number
        self.self_attn_mask_type, self.enc_dec_attn_mask_type = self_attn_mask_type, enc_dec_attn_mask_type
        self.window_size, self.enc_dec_window_size = window_size, enc_dec_window_size
        self.bottom_right_diagonal = bottom_right_diagonal
        self.enc_dec_bottom_right_diagonal = enc_dec_bottom_right_diagonal
        self.apply_residual_connection_post_layernorm = apply_residual_connection_post_layernorm
        self.output_layernorm, self.parallel_attention_mlp = output_layernorm, parallel_attention_mlp
        self.hidden_dropout, self.drop_path_rate = hidden_dropout, drop_path_rate
        tp_size = tp_size if tp_group is None else get_distributed_world_size(tp_group)
        shared: dict[str, Any] = {
            "init_method": init_method,
            "output_layer_init_method": output_layer_init_method,
            "tp_group": tp_group,
            "tp_size": tp_size,
            "fuse_wgrad_accumulation": fuse_wgrad_accumulation,
            "get_rng_state_tracker": get_rng_state_tracker,
            "sequence_parallel": sequence_parallel and tp_size > 1,
            "params_dtype": params_dtype,
            "return_layernorm_output": apply_residual_connection_post_layernorm,
            "set_parallel_mode": set_parallel_mode,
            "zero_centered_gamma": zero_centered_gamma,
            "ub_bulk_wgrad": ub_tp_comm_overlap and ub_bulk_wgrad,
            "ub_bulk_dgrad": ub_tp_comm_overlap and ub_bulk_dgrad,
            "ub_overlap_ag": ub_tp_comm_overlap and ub_overlap_ag,
            "ub_overlap_rs": ub_tp_comm_overlap and ub_overlap_rs,
            "ub_overlap_rs_dgrad": ub_tp_comm_overlap and ub_overlap_rs_dgrad,
            "bias": bias,
            "return_bias": not parallel_attention_mlp,
            "normalization": normalization,
            "device": device,
            "seq_length": seq_length,
            "micro_batch_size": micro_batch_size,
        }

        def attention(kind: str, attention_type: str, **options: Any) -> MultiheadAttention:
            return MultiheadAttention(
                hidden_size,
                num_attention_heads,
                kv_channels,
                attention_dropout,
                layernorm_epsilon,
                layer_number=layer_number,
                num_gqa_groups=num_gqa_groups,
                fuse_qkv_params=fuse_qkv_params,
                qkv_weight_interleaved=qkv_weight_interleaved,
                rotary_pos_interleaved=rotary_pos_interleaved,
                qkv_format=attn_input_format,
                softmax_type=softmax_type,
                attention_type=attention_type,
                qk_norm_type=qk_norm_type,
                qk_norm_eps=qk_norm_eps,
                qk_norm_before_rope=qk_norm_before_rope,
                name=None if name is None else f"{name}.{kind}",
                **options,
                **shared,
            )

        self.self_attention = attention("self_attention", "self", input_layernorm=not output_layernorm)
        if layer_type == "decoder":
            self.inter_attention = attention(
                "inter_attention", "cross", input_layernorm=True, attn_mask_type=enc_dec_attn_mask_type
            )
        self.layernorm_mlp = LayerNormMLP(
            hidden_size,
            ffn_hidden_size,
            eps=layernorm_epsilon,
            activation=activation,
            activation_params=activation_params,
            name=None if name is None else f"{name}.layernorm_mlp",
            **shared,
        )
        if output_layernorm:
            self.layernorm = NORMS[normalization](
                hidden_size,
                eps=layernorm_epsilon,
                sequence_parallel=sequence_parallel and tp_size > 1,
                params_dtype=params_dtype,
                zero_centered_gamma=zero_centered_gamma,
                device=device,
            )

    @not_compiled
    def forward(
        self,
        hidden_states: Tensor,
        attention_mask: Tensor | tuple[Tensor, Tensor] | None = None,
        self_attn_mask_type: str | None = None,
        window_size: tuple[int, int] | None = None,
        bottom_right_diagonal: bool | None = None,
        encoder_output: Tensor | None = None,
        enc_dec_attn_mask: Tensor | tuple[Tensor, Tensor] | None = None,
        enc_dec_attn_mask_type: str | None = None,
        enc_dec_window_size: tuple[int, int] | None = None,
        enc_dec_bottom_right_diagonal: bool | None = None,
        is_first_microbatch: bool | None = None,
        checkpoint_core_attention: bool = False,
        inference_params: Any = None,
        rotary_pos_emb: Rotary = None,
        core_attention_bias_type: str = "no_bias",
        core_attention_bias: Tensor | None = None,
        alibi_slopes: Tensor | None = None,
        cu_seqlens_q: Tensor | None = None,
        cu_seqlens_kv: Tensor | None = None,
        cu_seqlens_q_padded: Tensor | None = None,
        cu_seqlens_kv_padded: Tensor | None = None,
        max_seqlen_q: int | None = None,
        max_seqlen_kv: int | None = None,
        fast_zero_fill: bool = True,
        pad_between_seqs: bool | None = None,
    ) -> Tensor:
        """Return the states [..., hidden] after the layer.

        attention_mask, enc_dec_attn_mask: True for what is hidden, as in `DotProductAttention`; `enc_dec_*` are those
        of the attention to encoder_output.

        Errors: SettingError, NotSupportedError, TensorShapeError, TensorDTypeError.
        """
        shared = {
            "is_first_microbatch": is_first_microbatch,
            "checkpoint_core_attention": checkpoint_core_attention,
            "inference_params": inference_params,
            "rotary_pos_emb": rotary_pos_emb,
            "core_attention_bias_type": core_attention_bias_type,
            "core_attention_bias": core_attention_bias,
            "alibi_slopes": alibi_slopes,
            "cu_seqlens_q": cu_seqlens_q,
            "cu_seqlens_q_padded": cu_seqlens_q_padded,
            "max_seqlen_q": max_seqlen_q,
            "fast_zero_fill": fast_zero_fill,
            "pad_between_seqs": pad_between_seqs,
        }
        x = hidden_states.contiguous()
        if torch.is_autocast_enabled(x.device.type):  # the stream and its sums have the lower type, too
            x = x.to(torch.get_autocast_dtype(x.device.type))
        attended = self.self_attention(
            x,
            attention_mask=attention_mask,
            attn_mask_type=self_attn_mask_type or self.self_attn_mask_type,
            window_size=window_size or self.window_size,
            bottom_right_diagonal=_first(bottom_right_diagonal, self.bottom_right_diagonal),
            cu_seqlens_kv=cu_seqlens_q,
            cu_seqlens_kv_padded=cu_seqlens_q_padded,
            max_seqlen_kv=max_seqlen_q,
            **shared,
        )
        if self.parallel_attention_mlp:
            return self._added(attended, self.layernorm_mlp(x, is_first_microbatch), x)
        x = self._after(attended, x, has_norm=not self.output_layernorm)
        if self.layer_type == "decoder":
            attended = self.inter_attention(
                x,
                attention_mask=enc_dec_attn_mask,
                attn_mask_type=enc_dec_attn_mask_type or self.enc_dec_attn_mask_type,
                window_size=enc_dec_window_size or self.enc_dec_window_size,
                bottom_right_diagonal=_first(enc_dec_bottom_right_diagonal, self.enc_dec_bottom_right_diagonal),
                encoder_output=encoder_output,
                cu_seqlens_kv=cu_seqlens_kv,
                cu_seqlens_kv_padded=cu_seqlens_kv_padded,
                max_seqlen_kv=max_seqlen_kv,
                **shared,
            )
            x = self._after(attended, x, drops_paths=False)
        x = self._after(self.layernorm_mlp(x, is_first_microbatch), x)
        return self.layernorm(x) if self.output_layernorm else x

    def _after(self, made: Any, x: Tensor, *, has_norm: bool = True, drops_paths: bool = True) -> Tensor:
        """Return the stream after a block that returned its result, its bias and perhaps its norm's output."""
        after_norm = self.apply_residual_connection_post_layernorm and has_norm
        y, bias, residual = made if after_norm else (*made, x)
        return self._added(y, bias, residual, drops_paths)

    def _added(self, y: Tensor, bias: Tensor | None, residual: Tensor, drops_paths: bool = True) -> Tensor:
        """Return residual + dropout(y + bias), without it for the samples whose path is dropped."""
        y = y if bias is None else y + bias
        y = torch.nn.functional.dropout(y, self.hidden_dropout, self.training)
        if drops_paths and self.drop_path_rate and self.training:
            kept = 1.0 - self.drop_path_rate
            shape = (y.shape[0],) + (1,) * (y.dim() - 1)
            y = y / kept * (kept + torch.rand(shape, dtype=y.dtype, device=y.device)).floor()
        return residual + y


def _first(given: bool | None, otherwise: bool | None) -> bool | None:
    return otherwise if given is None else given


def _require_settings(layer_type: str, parallel: bool, after_norm: bool, output_norm: bool) -> None:
    """Raise SettingError for settings that exclude each other."""
    if layer_type not in {"encoder", "decoder"}:
        raise SettingError("TransformerLayer", f"layer_type {layer_type!r}", "encoder or decoder")
    for excluded, other in (
        (layer_type != "encoder", "layer_type 'decoder'"),
        (after_norm, "apply_residual_connection_post_layernorm"),
        (output_norm, "output_layernorm"),
    ):
        if parallel and excluded:
            raise SettingError("TransformerLayer", f"parallel_attention_mlp with {other}", "one of them")
