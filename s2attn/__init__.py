"""Neighborhood and global attention on the sphere: geometry, a readable reference, compiled kernels."""

from s2attn.errors import InvalidProblem, KernelsNotBuilt, S2AttnError, UnsupportedProblem
from s2attn.functional import neighborhood_attention
from s2attn.geometry import Neighborhood, neighborhood
from s2attn.modules import AttentionS2, NeighborhoodAttentionS2
from s2attn.problem import AttentionProblem

__version__ = "0.1.0"

__all__ = [
    "AttentionProblem",
    "AttentionS2",
    "InvalidProblem",
    "KernelsNotBuilt",
    "Neighborhood",
    "NeighborhoodAttentionS2",
    "S2AttnError",
    "UnsupportedProblem",
    "neighborhood",
    "neighborhood_attention",
]
