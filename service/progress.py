"""Progress of a job or of a local comparison on a terminal; on anything else one line per change."""

from __future__ import annotations

from types import TracebackType
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn


class StepProgress:
    """A bar per measurement on a terminal; plain lines where the output is a file or a pipe."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live = console.is_terminal
        self._bars = Progress(
            SpinnerColumn(),
            TextColumn("{task.fields[label]}", markup=False),
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=console,
            transient=True,
        )
        self._tasks: dict[str, TaskID] = {}
        self._last: dict[str, str] = {}

    def __enter__(self) -> StepProgress:
        if self._live:
            self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live:
            self._bars.stop()

    def update(self, label: str, step: str, done: int = 0, total: int | None = None) -> None:
        """Show that `label` (a device class) is at `step`, with `done` of `total` pairs measured."""
        if self._live:
            if label not in self._tasks:
                self._tasks[label] = self._bars.add_task(step, label=label, total=total)
            self._bars.update(self._tasks[label], description=step, completed=done, total=total)
            return
        line = f"{label}: {step}" + (f" {done}/{total}" if total else "")
        if self._last.get(label) != line:
            self._last[label] = line
            self._console.print(line, markup=False, highlight=False)


class JobProgress(StepProgress):
    """Shows a job as the API returns it."""

    def __enter__(self) -> JobProgress:
        super().__enter__()
        return self

    def show(self, job: dict[str, Any]) -> None:
        """Show every measurement of the job."""
        for measurement in job["measurements"]:
            step = measurement["stage"] or measurement["state"]
            if measurement["state"] == "queued" and not measurement.get("served", True):
                step = "queued (no worker serves this device class)"
            progress = measurement.get("progress") or {}
            self.update(measurement["device_class"], step, progress.get("pairs_done", 0), progress.get("budget"))


class ComparisonProgress(StepProgress):
    """A `ProgressListener` of `service.worker.comparison`."""

    def __init__(self, console: Console, label: str) -> None:
        super().__init__(console)
        self._label = label
        self._stage = "starting"

    def __enter__(self) -> ComparisonProgress:
        super().__enter__()
        return self

    def stage(self, name: str, detail: str = "") -> None:
        """Show a stage such as build or pairs."""
        self._stage = f"{name} {detail}".strip()
        self.update(self._label, self._stage)

    def pair(self, done: int, budget: int, rejected: int) -> None:
        """Show the pairs measured so far."""
        step = self._stage + (f" ({rejected} rejected)" if rejected else "")
        self.update(self._label, step, done, budget)

    def log(self, text: str) -> None:
        """Print a line of the log above the bars."""
        self._console.print(text, markup=False, highlight=False, style="dim")
