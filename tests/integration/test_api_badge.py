"""Badges: what a branch's last verdicts look like in a README."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from typing import Any

from starlette.testclient import TestClient

from service.badges.service import GRAY, GREEN, RED, draw

PATH = "/api/v1/badge.svg"


def shown(client: TestClient, **query: str) -> tuple[str, str]:
    """Return the text of a badge and its color."""
    answer = client.get(PATH, params={"repository": "kernels"} | query)
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == "image/svg+xml"
    assert "no-cache" in answer.headers["cache-control"]
    root = ElementTree.fromstring(answer.text)
    colors = [rect.get("fill") for rect in root.iter("{http://www.w3.org/2000/svg}rect")]
    return root.get("aria-label") or "", colors[1] or ""


def test_badge(client: TestClient, database: Any, history: Any) -> None:
    assert shown(client) == ("cpu: not measured", GRAY)
    with database.transaction() as session:
        for position, commit in enumerate(history.commits):
            session.merge(commit).first_parent_position = position + 1
    assert shown(client) == ("cpu: 2 regressed", RED)
    assert shown(client, branch="main") == ("cpu: 2 regressed", RED)
    assert shown(client, branch="light") == ("cpu: 1 unchanged", GREEN)
    assert shown(client, branch="topic") == ("cpu: not measured", GRAY)
    assert shown(client, branch="nowhere") == ("cpu: not measured", GRAY)
    assert shown(client, device_class="gpu:NVIDIA H200") == ("gpu:NVIDIA H200: not measured", GRAY)


def test_bad_queries(client: TestClient, history: Any) -> None:
    for query in ({"repository": "nope"}, {"device_class": "<svg>"}, {"branch": "-x"}, {"color": "red"}):
        assert client.get(PATH, params={"repository": "kernels"} | query).status_code == 422, query


def test_texts_stay_texts() -> None:
    root = ElementTree.fromstring(draw("<script>&\"'", "</text><b>", "#fff"))
    assert [element.tag.rpartition("}")[2] for element in root.iter()].count("script") == 0
    assert root.get("aria-label") == "<script>&\"': </text><b>"
