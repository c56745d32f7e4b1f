"""The frames of the pages: routes, escaping, and what happens without their folder."""

from __future__ import annotations

from pathlib import Path

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from service import pages


@pytest.fixture
def client() -> TestClient:
    app = FastAPI()
    app.include_router(pages.router)
    pages.mount_static(app)
    return TestClient(app)


@pytest.mark.parametrize("path", ["/", "/series/7", "/compare?repository=a&base=b&head=c", "/jobs", "/jobs/7"])
def test_page_is_a_frame_without_inline_code(client: TestClient, path: str) -> None:
    answer = client.get(path)
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/html")
    scripts = answer.text.split("<script")[1:]
    assert len(scripts) == 1
    assert 'src="/static/js/' in scripts[0]
    assert " onclick=" not in answer.text
    assert " style=" not in answer.text


@pytest.mark.parametrize("path", ["/series/", "/jobs/"])
def test_path_is_escaped(client: TestClient, path: str) -> None:
    answer = client.get(path + "%22%3E%3Cb%3E")
    assert "<b>" not in answer.text
    assert "&#34;&gt;&lt;b&gt;" in answer.text


def test_scripts_name_only_files_that_exist(client: TestClient) -> None:
    folder = pages.SOURCE_DASHBOARDS / "web" / "static" / "js"
    for module in folder.glob("*.js"):
        for line in module.read_text().splitlines():
            if line.startswith("import ") or line.startswith("} from "):
                name = line.rsplit('"', 2)[1]
                assert (folder / name).is_file(), f"{module.name} imports {name}"


def test_static_files_are_asked_for_again(client: TestClient) -> None:
    first = client.get("/static/js/api.js")
    assert first.headers["cache-control"] == "no-cache"
    again = client.get("/static/js/api.js", headers={"If-None-Match": first.headers["etag"]})
    assert again.status_code == 304


def test_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(pages.PagesNotFoundError, match=r"dashboards_dir: got .*web/templates.*S2BENCH_DASHBOARDS_DIR"):
        pages.mount_static(FastAPI(), tmp_path)
