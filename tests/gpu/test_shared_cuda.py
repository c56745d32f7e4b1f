"""What CPU and CUDA share: the quartet, the properties, and everything a caller can get wrong."""

import pytest
from attention_properties import Properties
from attention_quartet import Quartet
from attention_wrong_inputs import WrongInputs


class TestQuartet(Quartet):
    device = "cuda"


class TestPortableVariants(Quartet):
    """The kernels that run without tensor cores, also where a tile would be chosen."""

    device = "cuda"

    @pytest.fixture(autouse=True, params=["gather", "two_pass"])
    def _variant(self, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("S2ATTN_CUDA_VARIANT", request.param)


class TestProperties(Properties):
    device = "cuda"


class TestWrongInputs(WrongInputs):
    device = "cuda"
    other = "cpu"
