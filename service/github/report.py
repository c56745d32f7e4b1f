"""The text of a check and of the comment. Pure: from findings to Markdown of at most 65,535 characters.

The verdict comes first, then for each check and device class the table, the worst first. Lines that do not fit are left
out from the mildest up, over all tables together, and a link leads to them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from service import markdown
from service.github.conclusion import Conclusion, wrong_numbers
from service.github.explaining import kernel_section, noted, resource_section
from service.report import HEADINGS, SEVERITY, cells, sort_by_severity
from service.stack_report import COMMIT_HEADINGS, by_case, commit_cells, whole_cells

MAX_CHARACTERS = 65_535
MARKER = "<!-- s2bench: results -->"
RESERVE = 200
MAX_SECTIONS = 20
MAX_COMMIT_LINES = 60
DEFAULT_PAIRS = 48  # what `s2bench compare` takes unless told otherwise
_QUIET = frozenset({"unchanged"})
_SHOWN_ENVIRONMENT = (
    "gpu_name", "driver", "cuda", "torch", "compiler", "python", "cpu_model", "threads", "power_limit_w",
    "max_sm_clock_mhz", "platform",
)  # fmt: skip

Row = Mapping[str, Any]


@dataclass(frozen=True)
class DeviceFindings:
    """What was found on one device class; `error` of a measurement that failed.

    Resources are as builds report them, `kernels` as `service.kernels.pair_kernels` lays the two profiles side by side.
    """

    device_class: str
    state: str
    rows: Sequence[Row]
    error: Mapping[str, Any] | None = None
    environment: Mapping[str, Any] = field(default_factory=dict)
    sandbox: str | None = None
    before_resources: Mapping[str, Any] | None = None
    after_resources: Mapping[str, Any] | None = None
    kernels: Sequence[Row] = ()


@dataclass(frozen=True)
class Findings:
    """What was found for one check; `accepted` says in words why its regressions are no failure any more.

    `commit_rows` are those of a job of kind "stack": what each commit did; or the one that a bisection found.
    """

    name: str
    job_url: str
    compare_url: str
    head: str
    baseline: str
    cases: str
    conclusion: Conclusion
    devices: Sequence[DeviceFindings]
    max_pairs: int = DEFAULT_PAIRS
    accepted: str | None = None
    kind: str = "compare"
    commit_rows: Sequence[Row] = ()


@dataclass(frozen=True)
class Links:
    """Where things are: `repository` is the page on GitHub, `server` this service's."""

    repository: str
    server: str


def comment_body(findings: Sequence[Findings], links: Links, limit: int = MAX_CHARACTERS) -> str:
    """Return the comment of a pull request: every check of its head."""
    head = "\n".join([MARKER, *(_headline(one) for one in findings)]) + "\n"
    return _fitted(head, findings, links, limit)


def check_summary(findings: Findings, links: Links, limit: int = MAX_CHARACTERS) -> str:
    """Return the summary of a check."""
    return _fitted(_headline(findings) + "\n", [findings], links, limit)


def _headline(one: Findings) -> str:
    icon = {"success": "✅", "failure": "❌", "neutral": "⚪", "action_required": "✋"}
    mark = icon.get(one.conclusion.conclusion or "", "⏳")
    text = f"### {mark} {markdown.plain(one.name)}: {markdown.plain(one.conclusion.title)}"
    return text + (f"\nAccepted: {markdown.outside(one.accepted, 300)}" if one.accepted else "")


def _fitted(head: str, findings: Sequence[Findings], links: Links, limit: int) -> str:
    """Return head, tables and the rest, with as many lines of the tables as fit."""
    sections = [_Section(one, device) for one in findings for device in one.devices]
    # The tables come first: what is said beside them gets shorter until it leaves room.
    for tail, share in ((_tail, 0.5), (_short_tail, 0.75), (_rest, 1.0)):
        tails = [tail(one, links) for one in findings]
        fixed = len(head) + sum(map(len, tails)) + sum(len(section.render(frozenset())) for section in sections)
        if fixed <= share * (limit - RESERVE):
            break
    else:
        sections = sections[:MAX_SECTIONS]
        fixed = len(head) + sum(map(len, tails)) + sum(len(section.render(frozenset())) for section in sections)
    room = limit - RESERVE - fixed
    shown: dict[int, set[int]] = {number: set() for number in range(len(sections))}
    for number, position, text in _worst_first(sections):
        room -= len(text) + 1
        if room < 0:
            break
        shown[number].add(position)
    body = "".join(section.render(frozenset(shown[number])) for number, section in enumerate(sections))
    return (head + body + "".join(tails))[:limit]


def _worst_first(sections: Sequence[_Section]) -> Iterable[tuple[int, int, str]]:
    everything = [
        (SEVERITY.index(row["verdict"]), -abs(row["effect"] or 0.0), number, position, section.lines[position])
        for number, section in enumerate(sections)
        for position, row in enumerate(section.rows)
    ]
    return [(number, position, text) for _, _, number, position, text in sorted(everything)]


class _Section:
    """The tables of one check on one device class."""

    def __init__(self, findings: Findings, device: DeviceFindings) -> None:
        self._findings = findings
        self._device = device
        self.rows = sort_by_severity(device.rows)
        self.lines = [_row_line(row) for row in self.rows]

    def render(self, shown: frozenset[int]) -> str:
        """Return the section with these of its lines."""
        device = self._device
        title = f"\n#### {markdown.plain(device.device_class)}\n"
        if device.error is not None:
            code, message = str(device.error["code"]), str(device.error["message"])
            title += f"Not measured: {markdown.outside(code)}: {markdown.outside(message, 300)}\n"
        if not self.rows:
            return title + ("" if device.error else f"No result yet ({device.state}).\n")
        quiet = {number for number, row in enumerate(self.rows) if row["verdict"] in _QUIET}
        lines = {number: self.lines[number] for number in sorted(shown)}
        text = title
        if len(quiet) < len(self.rows):
            loud_lines = [line for number, line in lines.items() if number not in quiet]
            text += "\n" + markdown.table(HEADINGS, loud_lines)
        if quiet:
            quiet_lines = [line for number, line in lines.items() if number in quiet]
            text += "\n" + markdown.details(f"{len(quiet)} unchanged", markdown.table(HEADINGS, quiet_lines))
        hidden = len(self.rows) - len(shown)
        return text + f"\n{hidden} more rows: [all of them]({self._findings.job_url})\n" * (hidden > 0)


def _row_line(row: Row) -> str:
    case, *numbers, verdict = cells(row)
    return markdown.line([markdown.outside(case, 250), *map(markdown.plain, numbers), markdown.plain(verdict)])


def _tail(one: Findings, links: Links) -> str:
    return _per_commit(one) + _explained(one) + _short_tail(one, links)


def _short_tail(one: Findings, links: Links) -> str:
    return _numerics(one) + _rest(one, links) + _reproduce(one) + _environments(one) + _commits(one, links)


def _explained(one: Findings) -> str:
    return "".join(
        kernel_section(device.device_class, device.rows, device.kernels)
        + resource_section(device.device_class, device.rows, device.before_resources, device.after_resources)
        for device in one.devices
    )


def _per_commit(one: Findings) -> str:
    """Return a table per case of a stack, those in which a commit did something first; what is left out is counted."""
    tables = sorted(by_case(one.commit_rows).items(), key=lambda item: all(row["verdict"] in _QUIET for row in item[1]))
    wholes = {(device.device_class, row["case"]): row for device in one.devices for row in device.rows}
    parts, lines_left = [], MAX_COMMIT_LINES
    for (device_class, case), rows in tables:
        lines_left -= len(rows)
        if lines_left < 0:
            break
        lines = [_commit_line(commit_cells(row)) for row in rows]
        lines += [_commit_line(whole_cells(wholes[device_class, case]))] if (device_class, case) in wholes else []
        title = f"{markdown.outside(case, 120)} on {markdown.plain(device_class)}"
        parts.append(f"{title}\n\n{markdown.table(COMMIT_HEADINGS, lines)}")
    if not parts:
        ended = one.kind == "bisect" and any(device.rows for device in one.devices)
        return "\nNo single commit could be proven to have changed it.\n" * ended
    hidden = len(tables) - len(parts)
    more = f"\n{hidden} more cases: [all of them]({one.job_url})\n" * (hidden > 0)
    return f"\n**{markdown.plain(one.name)}**\n\n" + "\n".join(parts) + more


def _commit_line(cells: Sequence[str]) -> str:
    commit, subject, *rest = cells
    shown = markdown.outside(subject, 80) if subject else ""
    return markdown.line([markdown.plain(commit), shown, *map(markdown.plain, rest)])


def _numerics(one: Findings) -> str:
    notes = []
    for device in one.devices:
        for row in sort_by_severity(device.rows):
            numerics = row["numerics"] or {}
            if not wrong_numbers(row) and numerics.get("status") != "grew":
                continue
            detail = next((r["detail"] for r in row["reasons"] if r["code"].startswith("numerics")), "")
            notes.append(f"- {markdown.outside(row['case'])}: {markdown.outside(detail)}")
    return noted("Numbers that changed", notes)


def _rest(one: Findings, _links: Links) -> str:
    return f"\n[{markdown.plain(one.name)}: job, pairs and samples]({one.job_url}) · [plots]({one.compare_url})\n"


def _reproduce(one: Findings) -> str:
    kinds = sorted({"cuda" if device.device_class.startswith("gpu") else "cpu" for device in one.devices})
    between = f"{one.baseline}..{one.head}"
    pairs = ("--max-pairs", str(one.max_pairs)) if one.max_pairs != DEFAULT_PAIRS else ()
    what, cases, budget = {
        "stack": (("attribute", between), "--cases", ()),
        "bisect": (("bisect", between), "--case", ()),
    }.get(one.kind, (("compare", one.baseline, one.head), "--cases", pairs))
    lines = [markdown.command("s2bench", *what, "--device", kind, cases, one.cases, *budget) for kind in kinds]
    return "\n" + markdown.details("Reproduce", markdown.code_block("\n".join(lines))) if lines else ""


def _environments(one: Findings) -> str:
    lines = []
    for device in one.devices:
        known = device.environment
        parts = [f"{key} {markdown.outside(str(known[key]), 120)}" for key in _SHOWN_ENVIRONMENT if known.get(key)]
        if device.sandbox is not None:
            parts.append(f"sandbox {markdown.plain(device.sandbox)}")
        if parts:
            lines.append(f"- {markdown.plain(device.device_class)}: {', '.join(parts)}")
    return "\n" + markdown.details("Environment", "\n".join(lines) + "\n") if lines else ""


def _commits(one: Findings, links: Links) -> str:
    head, baseline = (f"[{sha[:10]}]({links.repository}/commit/{sha})" for sha in (one.head, one.baseline))
    return f"\n{head} against {baseline}\n"
