"""Repositories that may be measured, and the resolver of their refs."""
