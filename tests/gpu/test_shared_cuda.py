"""What CPU and CUDA share: the quartet, the properties, and everything a caller can get wrong."""

from attention_properties import Properties
from attention_quartet import Quartet
from attention_wrong_inputs import WrongInputs


class TestQuartet(Quartet):
    device = "cuda"


class TestProperties(Properties):
    device = "cuda"


class TestWrongInputs(WrongInputs):
    device = "cuda"
    other = "cpu"
