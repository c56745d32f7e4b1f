"""A branch and a device class in one small picture."""

from __future__ import annotations

from collections import Counter
from html import escape
from uuid import UUID

from sqlalchemy.orm import Session

from service.badges import queries
from service.context import AppContext
from service.errors import InvalidInput, NotFound
from service.models import Repository
from service.report import SEVERITY
from service.repositories.service import find_commit
from service.repositories.service import get as get_repository

GREEN, RED, GRAY = "#1a7f37", "#cf222e", "#6e7781"
CHARACTER_PX = 6.6
_SVG = """\
<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="20" role="img" aria-label="{label}: {text}">
<title>{label}: {text}</title>
<rect width="{left}" height="20" rx="3" fill="#24292f"/>
<rect x="{left}" width="{right}" height="20" rx="3" fill="{color}"/>
<g fill="#fff" font-family="Verdana,DejaVu Sans,sans-serif" font-size="11" text-anchor="middle">
<text x="{left_middle}" y="14">{label}</text>
<text x="{right_middle}" y="14">{text}</text>
</g>
</svg>
"""


def badge(context: AppContext, session: Session, repository_name: str, branch: str | None, device_class: str) -> str:
    """Return the picture of a branch (default: the default one) as SVG.

    Of the default branch it shows the furthest commit that was measured, of another one its head.
    """
    repository = get_repository(session, repository_name)
    counts: Counter[str] = Counter()
    measurement = _measurement(context, session, repository, branch, device_class)
    if measurement is not None:
        counts.update(verdict for verdict, _ in queries.verdicts(session, measurement))
    text = ", ".join(f"{counts[name]} {name.replace('_', ' ')}" for name in SEVERITY if counts[name])
    return draw(device_class, text or "not measured", _color(counts))


def draw(label: str, text: str, color: str) -> str:
    """Return two texts side by side as SVG."""
    left, right = (round(CHARACTER_PX * len(one)) + 12 for one in (label, text))
    return _SVG.format(
        width=left + right,
        left=left,
        right=right,
        left_middle=left / 2,
        right_middle=left + right / 2,
        label=escape(label),
        text=escape(text),
        color=color,
    )


def _measurement(
    context: AppContext, session: Session, repository: Repository, branch: str | None, device_class: str
) -> UUID | None:
    if branch is None or branch == repository.default_branch:
        return queries.newest_on_default_branch(session, repository.id, device_class)
    try:
        sha = find_commit(context, session, repository, branch, "branch")
    except (NotFound, InvalidInput):
        return None
    return queries.measurement_of(session, repository.id, sha, device_class)


def _color(counts: Counter[str]) -> str:
    if counts["regressed"] or counts["failed"]:
        return RED
    return GREEN if counts and set(counts) <= {"improved", "unchanged"} else GRAY
