"""The fake's benchmarks."""
