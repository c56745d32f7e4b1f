"""Puts the table into one comment of the pull request, edited in place: a program of the Action, beside `submit`.

What was commented before is known by its marker and its author; a comment of anybody else with the marker is left
alone. That the comment cannot be made is a warning: the check is the workflow's own.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import httpx2

MARKER = "<!-- s2bench: action -->"
MAX_CHARACTERS = 65_535
PAGE, MAX_PAGES = 100, 30
HEADLINES = {
    0: "### ✅ s2bench: no regression",
    1: "### ❌ s2bench: regressed, or failed",
    4: "### ⚪ s2bench: too little evidence to tell",
}
BROKEN = "### ⚪ s2bench: could not be measured"


def body_of(table: str, code: int, run_url: str) -> str:
    """Return the comment: the verdict first, then as many lines of the table as fit, and a link to the run."""
    head = f"{MARKER}\n{HEADLINES.get(code, BROKEN)}\n\n"
    tail = f"\n[the run]({run_url})\n"
    room = MAX_CHARACTERS - len(head) - len(tail)
    if len(table) > room:
        note = "\nThe rest is in the summary of the run.\n"
        table = table[: room - len(note)].rpartition("\n")[0] + "\n" + note
    return head + table + tail


def put(github: httpx2.Client, number: int, author: str, body: str) -> None:
    """Make the comment, or edit the one that is there."""
    known = find(github, number, author)
    if known is None:
        github.post(f"issues/{number}/comments", json={"body": body}).raise_for_status()
    else:
        github.patch(f"issues/comments/{known}", json={"body": body}).raise_for_status()


def find(github: httpx2.Client, number: int, author: str) -> int | None:
    """Return the id of the comment that `author` made before."""
    for page in range(1, MAX_PAGES + 1):
        answer = github.get(f"issues/{number}/comments", params={"per_page": PAGE, "page": page}).raise_for_status()
        found: list[dict[str, Any]] = answer.json()
        for comment in found:
            if (comment.get("user") or {}).get("login") == author and str(comment["body"]).startswith(MARKER):
                return int(comment["id"])
        if len(found) < PAGE:
            break
    return None


def main() -> int:
    """Comment; every input is a variable of the environment."""
    given = os.environ
    run_url = f"{given['GITHUB_SERVER_URL']}/{given['GITHUB_REPOSITORY']}/actions/runs/{given['GITHUB_RUN_ID']}"
    table = Path(given["S2BENCH_TABLE"]).read_text(encoding="utf-8")
    body = body_of(table, int(given["S2BENCH_EXIT"]), run_url)
    client = httpx2.Client(
        base_url=f"{given['GITHUB_API_URL']}/repos/{given['GITHUB_REPOSITORY']}/",
        headers={"Authorization": f"token {given['INPUT_GITHUB_TOKEN']}", "Accept": "application/vnd.github+json"},
        timeout=30,
    )
    try:
        with client:
            put(client, int(given["INPUT_PULL_REQUEST"]), given["INPUT_COMMENT_AUTHOR"], body)
    except httpx2.HTTPError as error:
        reason = error.response.status_code if isinstance(error, httpx2.HTTPStatusError) else type(error).__name__
        print(f"::warning::s2bench: no comment was made ({reason}); it takes the permission pull-requests: write")
    return 0


if __name__ == "__main__":
    sys.exit(main())
