"""Options shared by all tests."""

from pathlib import Path

import pytest

pytest.register_assert_rewrite(
    "attention_cases", "attention_layers", "attention_properties", "attention_quartet", "attention_wrong_inputs"
)

GPU_TESTS = Path(__file__).parent / "gpu"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--gpu", action="store_true", help="also run tests/gpu; without a GPU they fail")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    if collection_path == GPU_TESTS and not config.getoption("--gpu"):
        return True
    return None
