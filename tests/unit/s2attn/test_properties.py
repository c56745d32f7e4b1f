"""The properties of tests/attention_properties.py on the CPU."""

from attention_properties import Properties


class TestCpu(Properties):
    device = "cpu"
