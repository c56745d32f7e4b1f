"""Options shared by all tests."""

import os
import shutil
import tempfile
from pathlib import Path

import pytest

pytest.register_assert_rewrite(
    "attention_cases", "attention_layers", "attention_properties", "attention_quartet", "attention_wrong_inputs"
)

GPU_TESTS = Path(__file__).parent / "gpu"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--gpu", action="store_true", help="also run tests/gpu; without a GPU they fail")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """Return how many processes share the tests: one per core, few enough for PostgreSQL; one alone uses a GPU."""
    return 0 if config.getoption("--gpu") else min(4, len(os.sched_getaffinity(0)))


def pytest_configure(config: pytest.Config) -> None:
    """Give each of several test processes its own folder for temporary files, since the locks of devices lie there.

    Otherwise a worker under test would wait for the CPU until the tests beside it have ended.
    """
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = tempfile.mkdtemp(prefix="s2bench-tests-")
        os.chmod(folder, 0o755)  # PostgreSQL servers of tests run as another user
        os.environ["TMPDIR"] = tempfile.tempdir = folder
        config.add_cleanup(lambda: shutil.rmtree(folder, ignore_errors=True))


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    if collection_path == GPU_TESTS and not config.getoption("--gpu"):
        return True
    return None
