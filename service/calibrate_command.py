"""`s2bench calibrate`: a commit against itself, by a server's workers or on this machine alone."""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from service.calibration.table import calibration_table
from service.command_options import (
    DEFAULT_SERVER,
    AsJson,
    DataDir,
    Server,
    TokenOption,
    connection,
    local_sha,
    print_json,
    stop,
)
from service.report import Exit

if TYPE_CHECKING:
    from service.client import Client
    from service.worker.comparison import ComparisonOptions
    from service.worker.evidence import CaseSummary

LAST_PRIORITY = 1000  # of those that may be asked for
CHANGES = frozenset({"regressed", "improved"})
DECIDED = CHANGES | {"unchanged"}


def calibrate(
    commit: Annotated[str, typer.Argument(help="Commit to measure against itself.")] = "HEAD",
    device: Annotated[
        list[str] | None, typer.Option(help="cpu, cuda or a device class; may be repeated; default: all, locally cpu.")
    ] = None,
    cases: Annotated[str, typer.Option(help="Glob over case names.")] = "*",
    jobs: Annotated[int, typer.Option(min=1, help="So many jobs, one after the other.")] = 1,
    max_pairs: Annotated[int | None, typer.Option(min=2, max=200, help="At most so many pairs of processes.")] = None,
    repository: Annotated[
        str | None, typer.Option(help="Registered name, or locally a git work tree; default: the one around here.")
    ] = None,
    local: Annotated[
        bool | None, typer.Option("--local/--remote", help="Default: by the server if it answers.")
    ] = None,
    save: Annotated[Path | None, typer.Option(help="Locally: write everything measured to this JSON file.")] = None,
    server: Server = DEFAULT_SERVER,
    token: TokenOption = None,
    data_dir: DataDir = None,
    no_sandbox: Annotated[bool, typer.Option("--no-sandbox", help="Locally: plain child processes.")] = False,
    as_json: AsJson = False,
) -> None:
    """Measure a commit against itself: how often is identical code called a change, and what could be seen?"""
    if local is None:
        local = not _answers(server)
        where = f"on this machine: no server answers at {server}" if local else f"by the server at {server}"
        print(f"s2bench: calibrating {where}", file=sys.stderr)
    if local:
        from service.worker.comparison import ComparisonOptions

        options = ComparisonOptions(
            repository=Path(repository or "."),
            cases=cases,
            max_pairs=max_pairs,
            data_dir=data_dir,
            sandbox="none" if no_sandbox else "auto",
        )
        raise typer.Exit(_locally(commit, device or ["cpu"], jobs, options, save=save, as_json=as_json))
    if save is not None:
        stop("--save: is for --local; a server keeps everything itself", Exit.USAGE)
    body = _job_body(commit, repository) | {"cases": cases}
    if max_pairs is not None:
        body["max_pairs"] = max_pairs
    with connection(server, token) as client:
        raise typer.Exit(_remotely(client, body, device, jobs, as_json=as_json))


def _answers(server: str) -> bool:
    import httpx2

    try:
        return httpx2.get(f"{server.rstrip('/')}/healthz", timeout=3).is_success
    except (httpx2.HTTPError, httpx2.InvalidURL):
        return False


# ---- by a server -----------------------------------------------------------------------------------------------------


def _job_body(commit: str, repository: str | None) -> dict[str, Any]:
    from service.embedded import repository_root

    root = repository_root(Path.cwd())
    if repository is None:
        if root is None:
            stop("--repository: got nothing, expected a registered name (this is no git work tree)", Exit.USAGE)
        repository, commit = root.name, local_sha(root, commit)
    return {
        "repository": repository,
        "commit": commit,
        "baseline": commit,
        "reason": "calibrate",
        "priority": LAST_PRIORITY,
    }


def _remotely(client: Client, body: dict[str, Any], device: list[str] | None, jobs: int, *, as_json: bool) -> Exit:
    """Post the jobs, follow them, and print the running rates of what they measured."""
    from rich.console import Console

    from service.progress import JobProgress

    if device is not None:
        body["devices"] = _device_classes(client, device)
    posted = [client.submit(body) for _ in range(jobs)]
    rows: list[dict[str, Any]] = []
    ended = []
    with JobProgress(Console(stderr=True)) as progress:
        for job in posted:
            print(f"job {job['id']}  {client.server}/jobs/{job['id']}", file=sys.stderr)
            ended.append(client.follow(job["id"], progress.show))
            rows += client.verdict_rows(job["id"])
    rates = client.request("GET", "/calibration", params={"repository": body["repository"]})
    classes = {one["device_class"] for job in ended for one in job["measurements"]}
    sums = [one for part in ("devices", "groups") for one in rates[part] if one["device_class"] in classes]
    if as_json:
        print_json({"jobs": ended, "rows": rows, "calibration": rates})
    else:
        print(f"All calibrations of the last {rates['days']} days:\n\n{calibration_table(sums)}", end="")
    return _finish(rows, {job["state"] for job in ended})


def _device_classes(client: Client, wanted: Sequence[str]) -> list[str]:
    """Return device classes; `cuda` stands for those of every GPU that a worker has reported."""
    if "cuda" not in wanted:
        return sorted(set(wanted))
    known = {one["device_class"] for one in client.request("GET", "/devices")["items"]}
    gpus = {name for name in known if name.startswith("gpu:")}
    if not gpus:
        stop("--device: got cuda, expected a device that a worker of this server has reported", Exit.USAGE)
    return sorted(gpus | (set(wanted) - {"cuda"}))


# ---- on this machine -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Found:
    """What one local job found on one device class."""

    device_class: str
    summaries: tuple[CaseSummary, ...]
    document: dict[str, Any]


def _locally(
    commit: str, devices: Sequence[str], jobs: int, options: ComparisonOptions, *, save: Path | None, as_json: bool
) -> Exit:
    """Run the jobs one after the other, and print what they come to; nothing is kept but by `--save`."""
    from rich.console import Console

    from service.local_comparison import report_failure
    from service.progress import ComparisonProgress
    from service.worker.comparison import compare_commits
    from service.worker.errors import JobError

    found: list[_Found] = []
    try:
        for device in devices:
            kind = "cuda" if device.startswith("gpu:") else device
            for number in range(jobs):
                with ComparisonProgress(Console(stderr=True), f"{device} {number + 1} of {jobs}") as progress:
                    one = compare_commits(commit, commit, replace(options, device=kind), progress)
                found.append(_Found(one.device.device_class, one.summaries, one.to_dict()))
    except JobError as error:
        return report_failure(error)
    except KeyboardInterrupt:
        print(f"s2bench: interrupted after {len(found)} jobs", file=sys.stderr)
        if not found:
            return Exit.INFRASTRUCTURE
    if save is not None:
        save.write_text(json.dumps([one.document for one in found], indent=1), encoding="utf-8")
    sums = local_sums((one.device_class, summary) for one in found for summary in one.summaries)
    rows = [summary.row.to_dict() for one in found for summary in one.summaries]
    print_json({"rows": rows, "groups": sums}) if as_json else print(calibration_table(sums), end="")
    return _finish(rows, {"done"})


def local_sums(found: Iterable[tuple[str, CaseSummary]]) -> list[dict[str, Any]]:
    """Return what verdicts on identical code come to, for each device class and for each of its kernel groups."""
    from service.stats.calibration import Calibration, IdenticalVerdict, pair_scatter
    from service.stats.verdict import Verdict

    parts: defaultdict[tuple[str, str], list[IdenticalVerdict]] = defaultdict(list)
    for device_class, summary in found:
        row = summary.row
        verdict = IdenticalVerdict(
            Verdict(row.verdict), row.effect, pair_scatter(summary.evidence), row.minimum_detectable_effect
        )
        for group in ("", row.group):
            parts[device_class, group].append(verdict)
    return [
        {"device_class": device_class, "group": group or None, **Calibration.of(verdicts).to_dict()}
        for (device_class, group), verdicts in sorted(parts.items())
    ]


def _finish(rows: Sequence[dict[str, Any]], states: set[str]) -> Exit:
    """Say how many verdicts were false alarms; return 1 if any, 3 where a job failed, 4 where nothing was decided."""
    false = [row for row in rows if row["verdict"] in CHANGES]
    decided = [row for row in rows if row["verdict"] in DECIDED]
    for row in false:
        print(f"s2bench: FALSE ALARM: {row['case']} {row['verdict']}, {row['effect']:+.2%}", file=sys.stderr)
    print(f"s2bench: {len(false)} false alarms in {len(decided)} decided verdicts of {len(rows)}", file=sys.stderr)
    if false:
        return Exit.REGRESSION
    if "failed" in states:
        return Exit.INFRASTRUCTURE
    return Exit.OK if decided else Exit.INCONCLUSIVE
