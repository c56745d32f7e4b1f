"""The limit on writes."""

from __future__ import annotations

import pytest

from service.errors import TooManyRequests
from service.rates import WriteRate


def test_without_a_limit_nothing_is_counted() -> None:
    rate = WriteRate(None)
    for _ in range(1000):
        rate.count("somebody")


def test_each_client_has_its_own_count() -> None:
    rate = WriteRate("2/hour")
    for client in ("one", "other"):
        rate.count(client)
        rate.count(client)
    with pytest.raises(TooManyRequests) as caught:
        rate.count("one")
    assert 1 <= int(caught.value.headers["Retry-After"]) <= 3600
    assert "2 per 1 hour" in str(caught.value)
