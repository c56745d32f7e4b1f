"""What every test on a GPU needs."""

import pytest
import torch


@pytest.fixture(scope="session", autouse=True)
def _gpu() -> None:
    assert torch.cuda.is_available(), "these tests need a GPU"
