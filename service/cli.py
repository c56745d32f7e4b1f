"""The `s2bench` command. Exit codes: 0 ok, 1 regression, 2 usage, 3 infrastructure, 4 inconclusive.

Heavy imports (engine, web framework, database) happen inside the commands, so that `compare` runs on a bare GPU host
and `--help` answers at once.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from uuid import UUID

import typer

from service.administration import db_app, repository_app, token_app
from service.alert_commands import alert_app
from service.attribution_commands import attribute, bisect
from service.calibrate_command import calibrate
from service.command_options import (
    DEFAULT_SERVER,
    AsJson,
    DataDir,
    LocalDevice,
    Server,
    TokenOption,
    connection,
    console,
    local_sha,
    print_json,
    settings_for,
    stop,
)
from service.evaluate_command import evaluate
from service.history_commands import history_app
from service.report import Exit, exit_code, failure_exit_code, markdown_report

if TYPE_CHECKING:
    from service.client import Client

app = typer.Typer(
    name="s2bench",
    help="What did this commit do to speed and to correctness?",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.add_typer(token_app, name="token")
app.add_typer(db_app, name="db")
app.add_typer(repository_app, name="repository")
app.add_typer(alert_app, name="alert")
app.add_typer(history_app, name="history")

Host = Annotated[str | None, typer.Option(help="Address to listen on; default 127.0.0.1 (S2BENCH_HOST).")]
Port = Annotated[int | None, typer.Option(help="Port to listen on; default 8272 (S2BENCH_PORT).")]
NoSandbox = Annotated[
    bool, typer.Option("--no-sandbox", help="Run code of commits in plain child processes (recorded).")
]


# ---- running the service ---------------------------------------------------------------------------------------------


@app.command()
def up(
    host: Host = None,
    port: Port = None,
    data_dir: DataDir = None,
    repository: Annotated[
        Path | None, typer.Option(help="Git work tree to register; default: the one around here.")
    ] = None,
    no_sandbox: NoSandbox = False,
) -> None:
    """Run API and worker on one host: the embedded default, on SQLite unless S2BENCH_DATABASE_URL says otherwise."""
    from service.embedded import serve

    settings = settings_for(data_dir, host=host, port=port)
    raise typer.Exit(serve(settings, repository or Path.cwd(), sandbox=not no_sandbox))


@app.command()
def demo(
    data_dir: DataDir = None,
    stay: Annotated[
        bool | None, typer.Option("--stay/--no-stay", help="Keep the page up at the end; default: on a terminal.")
    ] = None,
) -> None:
    """Measure the last changes of this source tree's CPU kernels and show the verdicts."""
    from service.demo import DemoError, run_demo
    from service.embedded import ServerError, repository_root

    settings = settings_for(data_dir)
    root = repository_root(Path(__file__).parent)
    if root is None:
        stop("the demo needs a git clone of s2bench installed with `pip install -e .`", Exit.USAGE)
    interactive = sys.stdin.isatty() and sys.stderr.isatty() if stay is None else stay
    try:
        code = run_demo(root, settings.data_dir / "demo", console(), stay=interactive)
    except (DemoError, ServerError) as error:
        stop(str(error), Exit.INFRASTRUCTURE)
    raise typer.Exit(code)


@app.command()
def api(
    host: Host = None,
    port: Port = None,
    data_dir: DataDir = None,
) -> None:
    """Serve the HTTP API and the pages."""
    from service.embedded import serve_api

    serve_api(settings_for(data_dir, host=host, port=port))


@app.command()
def worker(
    data_dir: DataDir = None,
    device_class: Annotated[
        list[str] | None, typer.Option(help='Device class to serve ("cpu", "gpu:NVIDIA H200"); default: all found.')
    ] = None,
    no_sandbox: NoSandbox = False,
) -> None:
    """Measure queued jobs on this host's devices."""
    from service.github.access import fetch_access
    from service.worker.supervisor import SupervisorOptions, run_worker

    settings = settings_for(data_dir, sandbox="none" if no_sandbox else None)
    raise typer.Exit(run_worker(settings, device_class, SupervisorOptions(access=fetch_access(settings))))


@app.command()
def outbox(data_dir: DataDir = None) -> None:
    """Work on webhooks and deliver checks, comments and notices; `up` does so by itself."""
    from service.delivery import run_outbox

    raise typer.Exit(run_outbox(settings_for(data_dir)))


# ---- jobs over HTTP --------------------------------------------------------------------------------------------------


@app.command()
def submit(
    commit: Annotated[str, typer.Argument(help="Branch, tag or SHA to measure.")] = "HEAD",
    repository: Annotated[str | None, typer.Option(help="Registered name; default: this work tree's folder.")] = None,
    baseline: Annotated[str, typer.Option(help="Ref to compare with; auto = merge-base or first parent.")] = "auto",
    device: Annotated[list[str] | None, typer.Option(help="Device class; may be repeated; default: all.")] = None,
    cases: Annotated[str, typer.Option(help="Glob over case names.")] = "*",
    reason: Annotated[str | None, typer.Option(help="Shown on the job's page.")] = None,
    pull_request: Annotated[int | None, typer.Option(help="Number of the pull request.")] = None,
    priority: Annotated[int, typer.Option(help="Lower runs first.")] = 100,
    max_pairs: Annotated[int | None, typer.Option(help="At most so many pairs, before changes are confirmed.")] = None,
    stack: Annotated[bool, typer.Option("--stack", help="Say what each commit after the baseline did.")] = False,
    bisect: Annotated[bool, typer.Option("--bisect", help="Find the commit that changed the one case.")] = False,
    idempotency_key: Annotated[str | None, typer.Option(help="Posting twice with one key makes one job.")] = None,
    wait: Annotated[bool, typer.Option("--wait", help="Follow the job and exit by its verdicts.")] = False,
    server: Server = DEFAULT_SERVER,
    token: TokenOption = None,
    as_json: AsJson = False,
) -> None:
    """Post a job; with --wait show its progress and its table."""
    from service.embedded import repository_root

    root = repository_root(Path.cwd())
    if repository is None and root is None:
        stop("--repository: got nothing, expected a registered name (this is no git work tree)", Exit.USAGE)
    body = {
        "repository": repository or (root.name if root else ""),
        "commit": local_sha(root, commit) if repository is None and root else commit,
        "baseline": baseline,
        "devices": device or "all",
        "cases": cases,
        "reason": reason,
        "pull_request": pull_request,
        "priority": priority,
        "max_pairs": max_pairs,
        "kind": "stack" if stack else "bisect" if bisect else None,
    }
    if stack and bisect:
        stop("--stack, --bisect: got both, expected one of them", Exit.USAGE)
    with connection(server, token) as client:
        job = client.submit({name: value for name, value in body.items() if value is not None}, idempotency_key)
        if not wait:
            print_json(job) if as_json else print(f"{job['id']}  {job['state']}  {client.server}/jobs/{job['id']}")
            return
        console().print(f"job {job['id']}  {client.server}/jobs/{job['id']}", markup=False, soft_wrap=True)
        raise typer.Exit(finish(client, job["id"], as_json=as_json))


@app.command()
def status(
    job_id: Annotated[UUID | None, typer.Argument(help="A job; default: the newest jobs.")] = None,
    server: Server = DEFAULT_SERVER,
    token: TokenOption = None,
    as_json: AsJson = False,
) -> None:
    """Show a job and its verdicts, or the newest jobs."""
    with connection(server, token) as client:
        if job_id is None:
            jobs = client.request("GET", "/jobs", params={"limit": 20})
            print_json(jobs) if as_json else print_jobs(jobs["items"])
            return
        job = client.job(str(job_id))
        rows = client.verdict_rows(str(job_id))
        if as_json:
            print_json({"job": job, "rows": rows})
            return
        print_jobs([job])
        from service.demo import show_result

        show_result(console(), client, job)


@app.command()
def cancel(
    job_id: Annotated[UUID, typer.Argument(help="The job to cancel.")],
    server: Server = DEFAULT_SERVER,
    token: TokenOption = None,
    as_json: AsJson = False,
) -> None:
    """Cancel a job; one that has ended stays as it is."""
    with connection(server, token) as client:
        job = client.request("POST", f"/jobs/{job_id}/cancel")
        print_json(job) if as_json else print_jobs([job])


@app.command()
def report(
    base: Annotated[str, typer.Argument(help="Commit that was the baseline.")],
    head: Annotated[str, typer.Argument(help="Commit that was measured against it.")],
    repository: Annotated[str | None, typer.Option(help="Registered name; default: this work tree's folder.")] = None,
    server: Server = DEFAULT_SERVER,
    token: TokenOption = None,
    as_json: AsJson = False,
) -> None:
    """Print the table of a pull request as Markdown for two commits that were measured, best against each other."""
    from service.embedded import repository_root

    root = repository_root(Path.cwd())
    if repository is None and root is None:
        stop("--repository: got nothing, expected a registered name (this is no git work tree)", Exit.USAGE)
    if repository is None and root is not None:
        repository, base, head = root.name, local_sha(root, base), local_sha(root, head)
    with connection(server, token) as client:
        found = client.request("GET", "/compare", params={"repository": repository, "base": base, "head": head})
    rows = found["rows"] + found["apart"]
    never = f"{head[:12]} was never measured against {base[:12]}"
    if not rows:
        stop(f"{never}, and no case was measured at both: submit it with --baseline", Exit.INCONCLUSIVE)
    if found["apart"]:
        print(f"{never}, or not with every case: submit it with --baseline", file=sys.stderr)
    print_json(found) if as_json else print(markdown_report(rows), end="")
    raise typer.Exit(exit_code(rows))


# ---- without a server ------------------------------------------------------------------------------------------------


@app.command()
def compare(
    baseline: Annotated[str, typer.Argument(help="Commit to compare with (A).")],
    candidate: Annotated[str, typer.Argument(help="Commit to judge (B).")],
    repository: Annotated[Path | None, typer.Option(help="Git repository; default: the one around here.")] = None,
    device: LocalDevice = "cpu",
    cases: Annotated[str, typer.Option(help="Glob over case names.")] = "*",
    max_pairs: Annotated[int, typer.Option(min=2, help="At most so many pairs, before changes are confirmed.")] = 48,
    time_budget_s: Annotated[float | None, typer.Option(help="Start no further pair after so many seconds.")] = None,
    save: Annotated[Path | None, typer.Option(help="Write everything measured to this JSON file.")] = None,
    data_dir: DataDir = None,
    no_sandbox: NoSandbox = False,
    as_json: AsJson = False,
) -> None:
    """Compare two commits on this machine, without a server; print the table of a pull request as Markdown."""
    from service.local_comparison import Output, run_comparison
    from service.worker.comparison import ComparisonOptions

    options = ComparisonOptions(
        repository=repository or Path.cwd(),
        device=device,
        cases=cases,
        max_pairs=max_pairs,
        time_budget_s=time_budget_s,
        data_dir=data_dir,
        sandbox="none" if no_sandbox else "auto",
    )
    raise typer.Exit(run_comparison(baseline, candidate, options, Output(console(), save, as_json)))


app.command()(attribute)
app.command()(bisect)


@app.command()
def judge(
    before: Annotated[str, typer.Argument(help="Times of the baseline, one per process, separated by commas.")],
    after: Annotated[str, typer.Argument(help="Times of the candidate, likewise and in the same unit.")],
    device: LocalDevice = "cpu",
    as_json: AsJson = False,
) -> None:
    """Say what times that were not taken in pairs are worth: never a verdict, but how many pairs would give one."""
    from service.stats.planning import judge_unpaired
    from service.stats.policy import JudgingPolicy

    try:
        times, changed = ([float(value) for value in side.split(",")] for side in (before, after))
        decision = judge_unpaired(times, changed, JudgingPolicy.for_device(device))
    except ValueError as error:
        stop(f"expected times such as 5.88,5.91,5.87: {error}", Exit.USAGE)
    said = {"verdict": str(decision.verdict), "effect": decision.effect, "reason": decision.reasons[0].detail}
    print_json(said) if as_json else print(f"{said['verdict']}: {said['reason']}")
    raise typer.Exit(Exit.INCONCLUSIVE)


@app.command()
def doctor(data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """Look at this host as a place to measure: devices, clocks, foreign processes, compilers, sandbox, database."""
    from service.doctor import Check, examine

    checks: list[Check] = examine(data_dir)
    if as_json:
        print_json([check.to_dict() for check in checks])
    else:
        from rich.console import Console

        from service.doctor import checks_table

        Console().print(checks_table(checks))
    raise typer.Exit(Exit.OK if all(check.status != "bad" for check in checks) else Exit.INFRASTRUCTURE)


# ---- how far to trust it ---------------------------------------------------------------------------------------------

app.command()(calibrate)
app.command()(evaluate)


# ---- pieces ----------------------------------------------------------------------------------------------------------


def finish(client: Client, job_id: str, *, as_json: bool) -> Exit:
    """Follow a job to its end, print its table, return the exit code."""
    from service.demo import show_result
    from service.progress import JobProgress
    from service.stack_report import stack_tables

    out = console()
    with JobProgress(out) as progress:
        job = client.follow(job_id, progress.show)
    code = show_result(out, client, job)
    rows = client.verdict_rows(job_id)
    if job["kind"] == "compare":
        print_json({"job": job, "rows": rows}) if as_json else print(markdown_report(rows), end="")
        return code
    commit_rows = client.commit_rows(job_id)
    if as_json:
        print_json({"job": job, "rows": rows, "commit_rows": commit_rows})
    else:
        print(stack_tables(commit_rows, rows) if commit_rows else markdown_report(rows), end="")
    return exit_code([*rows, *commit_rows]) if job["state"] == "done" else code


def print_jobs(jobs: list[dict[str, Any]]) -> None:
    """Print jobs, one line each."""
    for job in jobs:
        print(f"{job['id']}  {job['state']:<9}  {job['repository']}  {(job['commit'] or '?')[:12]}  {job['cases']}")


def main() -> None:
    """Entry point of the `s2bench` script: what commands raise becomes one line and an exit code."""
    try:
        app()
    except Exception as error:
        code = expected_exit(error)
        if code is None:
            raise
        print(f"s2bench: {in_words(error)}", file=sys.stderr)
        sys.exit(code)


def expected_exit(error: Exception) -> Exit | None:
    """Return the exit code of an error that a command may end with, or None for a defect."""
    from pydantic import ValidationError

    from service.worker.errors import JobError

    if isinstance(error, ValidationError):
        return Exit.USAGE
    if isinstance(error, JobError):
        return failure_exit_code({"code": error.code})
    if "sqlalchemy" not in sys.modules:
        return None
    from sqlalchemy.exc import DBAPIError

    from service.errors import InvalidInput, ServiceError

    if isinstance(error, InvalidInput):
        return Exit.USAGE
    return Exit.INFRASTRUCTURE if isinstance(error, ServiceError | DBAPIError) else None


def in_words(error: Exception) -> str:
    """Return an expected error without the trimmings of the library that raised it."""
    from pydantic import ValidationError

    if isinstance(error, ValidationError):
        return "; ".join(f"{'.'.join(map(str, item['loc'])) or 'settings'}: {item['msg']}" for item in error.errors())
    from_driver = getattr(error, "orig", None)
    return f"database: {from_driver}" if from_driver is not None else str(error)


if __name__ == "__main__":
    main()
