"""Fixtures of the histories' tests."""

from __future__ import annotations

import pytest
from history_fixtures import Line

from service.db import Database


@pytest.fixture
def line(database: Database) -> Line:
    """A repository of which nothing was measured yet."""
    return Line(database)
