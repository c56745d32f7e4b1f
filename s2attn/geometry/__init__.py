"""Geometry of attention on the sphere: grids, quadrature, neighborhoods and their arcs."""

from s2attn.geometry.arcs import GatherTable, arcs_from_csr, csr_from_arcs, key_table, query_table
from s2attn.geometry.grids import GRIDS, GridPair, colatitudes
from s2attn.geometry.neighborhood import (
    Neighborhood,
    NeighborhoodTensors,
    Psi,
    build_psi,
    default_theta_cutoff,
    neighborhood,
)
from s2attn.geometry.quadrature import latitude_weights, quadrature_weights

__all__ = [
    "GRIDS",
    "GatherTable",
    "GridPair",
    "Neighborhood",
    "NeighborhoodTensors",
    "Psi",
    "arcs_from_csr",
    "build_psi",
    "colatitudes",
    "csr_from_arcs",
    "default_theta_cutoff",
    "key_table",
    "latitude_weights",
    "neighborhood",
    "quadrature_weights",
    "query_table",
]
