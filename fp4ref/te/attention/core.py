"""softmax(scale q k^T + bias) v, with masks, groups of heads that share keys, and sinks."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad, scaled_dot_product_attention


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    scale: float,
    hidden: Tensor | None = None,
    bias: Tensor | None = None,
    sink: Tensor | None = None,
    dropout: float = 0.0,
) -> Tensor:
    """Attend from q [b, h, i, d] to k [b, g, j, d] and v [b, g, j, e]: [b, h, i, e], in the type of q.

    hidden: True where a query does not see a key; a query that sees none gives 0. bias: added to the scaled scores.
    sink: one more score per head, float32 [h], of a key whose value is 0. Head n reads the keys of group n g // h.
    """
    k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
    if sink is not None:
        k, v, hidden, bias = _with_sink(q, k, v, hidden, bias, sink)
    blind = None if hidden is None else hidden.all(-1, keepdim=True)  # such a row has no softmax
    mask = bias
    if hidden is not None and blind is not None:
        seen = ~hidden | blind
        mask = seen if bias is None else bias.to(q.dtype).masked_fill(~seen, float("-inf"))
    y = scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=dropout, scale=scale)
    return y if blind is None else y.masked_fill(blind, 0.0)


def _with_sink(
    q: Tensor, k: Tensor, v: Tensor, hidden: Tensor | None, bias: Tensor | None, sink: Tensor
) -> tuple[Tensor, Tensor, Tensor | None, Tensor]:
    """Append a key of zeros whose value is zero, which every query sees; its score is the sink, as a bias."""
    scores = q.new_zeros(1, 1, 1, k.shape[2]) if bias is None else bias.to(q.dtype)
    column = sink.to(q.dtype).view(1, -1, 1, 1).expand(q.shape[0], -1, q.shape[2], 1)
    bias = torch.cat((scores.expand(*q.shape[:3], -1), column), -1)
    k, v = (torch.cat((x, x.new_zeros(*x.shape[:2], 1, x.shape[3])), 2) for x in (k, v))
    return k, v, None if hidden is None else pad(hidden, (0, 1), value=False), bias


@torch.no_grad()
def largest_scores(
    q: Tensor, k: Tensor, *, scale: float, hidden: Tensor | None = None, bias: Tensor | None = None
) -> Tensor:
    """Return the largest score of each head, float32 [h], over all queries and the keys that they see."""
    k = k.repeat_interleave(q.shape[1] // k.shape[1], 1)
    scores = (q.float() * scale) @ k.float().transpose(-1, -2)
    scores = scores if bias is None else scores + bias
    scores = scores if hidden is None else scores.masked_fill(hidden, float("-inf"))
    return scores.amax((0, 2, 3))
