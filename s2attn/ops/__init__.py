"""Operators: the reference in torch, layout moves, and the registration of the compiled ones."""
