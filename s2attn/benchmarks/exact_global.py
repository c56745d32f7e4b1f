"""Global attention and its gradients in float64 at chosen points, from the formula, a block of scores at a time.

Independent of `s2attn.ops.weighted_attention`: the weights enter as logarithms added to the scores, not as channels.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from s2attn.benchmarks.exact import by_point

# Scores of one block, over batch and heads: 32 MiB and 512 MiB of float64 for each of about four temporaries. All
# scores of the 1 degree grid would be 34 GB.
_BLOCK_SCORES = {"cpu": 1 << 22, "cuda": 1 << 26}


class ExactGlobalAttention:
    """float64 values of one problem of global attention at chosen points.

    Parameters
    ----------
    q, k, v
        NHWC, any floating dtype, heads packed in the channels, scale already in q.
    latitude_weights
        float64 [nlat_in], positive: the weight of a key is that of its latitude.
    heads
        Number of heads.
    """

    def __init__(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, latitude_weights: torch.Tensor, *, heads: int
    ) -> None:
        self._heads = heads
        self._q, self._k, self._v = (_by_head(x, heads) for x in (q, k, v))
        self._log_weights = latitude_weights.to(q.device).log().repeat_interleave(k.shape[2])
        scores_of_a_query = self._k.shape[0] * self._k.shape[1] * self._k.shape[2]
        self._rows = max(1, _BLOCK_SCORES[q.device.type] // scores_of_a_query)

    def forward(self, queries: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return y [n, B, heads, Cv] and the logarithm of the softmax's denominator [n, B, heads] of ``queries``."""
        parts = [self._forward(part) for part in torch.split(queries, self._rows)]
        y, lse = (torch.cat(tensors, dim=2) for tensors in zip(*parts, strict=True))
        return y.permute(2, 0, 1, 3), lse.permute(2, 0, 1)

    def backward(
        self, dy: torch.Tensor, queries: torch.Tensor, keys: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return dq [n, B, heads, C] at ``queries`` and dk, dv [m, B, heads, ...] at ``keys`` (flat points).

        With p the softmax weights and delta = dy . y: dq = sum p (dy.v - delta) k, dk = sum p (dy.v - delta) q,
        dv = sum p dy. A key is seen by every query, so the forward is computed for all of them.
        """
        gradient = _by_head(dy, self._heads)
        dq = torch.cat([self._dq(gradient, part) for part in torch.split(queries, self._rows)], dim=2)
        dk, dv = (torch.zeros_like(x[:, :, keys]) for x in (self._k, self._v))
        for query in self._all_queries():
            y, lse = self._forward(query)
            dy_part = gradient[:, :, query]
            p = torch.exp(self._scores(query, keys) - lse.unsqueeze(-1))
            dv += p.mT @ dy_part
            dk += (p * self._slope(dy_part, y, keys)).mT @ self._q[:, :, query]
        return tuple(x.permute(2, 0, 1, 3) for x in (dq, dk, dv))  # type: ignore[return-value]

    def _all_queries(self) -> Iterator[torch.Tensor]:
        yield from torch.split(torch.arange(self._q.shape[2], device=self._q.device), self._rows)

    def _forward(self, queries: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        scores = self._scores(queries, slice(None))
        lse = torch.logsumexp(scores, dim=-1)
        return torch.exp(scores - lse.unsqueeze(-1)) @ self._v, lse

    def _dq(self, gradient: torch.Tensor, queries: torch.Tensor) -> torch.Tensor:
        y, lse = self._forward(queries)
        p = torch.exp(self._scores(queries, slice(None)) - lse.unsqueeze(-1))
        return (p * self._slope(gradient[:, :, queries], y, slice(None))) @ self._k

    def _scores(self, queries: torch.Tensor, keys: torch.Tensor | slice) -> torch.Tensor:
        """Return q . k + log w as [B, heads, queries, keys]."""
        return self._q[:, :, queries] @ self._k[:, :, keys].mT + self._log_weights[keys]

    def _slope(self, dy: torch.Tensor, y: torch.Tensor, keys: torch.Tensor | slice) -> torch.Tensor:
        """Return dy . v - dy . y as [B, heads, queries, keys]."""
        return dy @ self._v[:, :, keys].mT - (dy * y).sum(-1, keepdim=True)


def _by_head(tensor: torch.Tensor, heads: int) -> torch.Tensor:
    """Return an NHWC tensor as float64 [B, heads, points, channels]."""
    return by_point(tensor.double(), heads).permute(1, 2, 0, 3)
