"""The quartet of tests/attention_quartet.py on the CPU."""

from attention_quartet import Quartet


class TestCpu(Quartet):
    device = "cpu"
