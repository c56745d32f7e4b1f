"""Logging."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator

import pytest

from service import logs


@pytest.fixture(autouse=True)
def _root_logger() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


def test_json_lines_from_both_kinds_of_loggers(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure("INFO", as_json=True)
    logs.logger.info("job_taken", job="1")
    logs.logger.debug("too much")
    logging.getLogger("library").warning("old %s", "style")
    try:
        raise ValueError("a defect")
    except ValueError:
        logs.logger.exception("request_failed")
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert [line["event"] for line in lines] == ["job_taken", "old style", "request_failed"]
    assert lines[0]["job"] == "1"
    assert lines[0]["timestamp"].endswith("Z")
    assert lines[1]["level"] == "warning"
    assert "ValueError: a defect" in lines[2]["exception"]


def test_lines_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure("WARNING")
    logs.logger.info("too much")
    try:
        raise ValueError("a defect")
    except ValueError:
        logs.logger.exception("request_failed", path="/x")
    text = capsys.readouterr().err
    assert "too much" not in text
    assert "request_failed" in text
    assert "path=/x" in text
    assert "ValueError: a defect" in text
    assert "\x1b[" not in text
