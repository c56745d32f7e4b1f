"""The layers under compile, export and deterministic mode (tests/attention_layers.py) on the CPU."""

from attention_layers import Layers


class TestCpu(Layers):
    device = "cpu"
