"""The plots of an evaluation, as SVG. Needs matplotlib (extra `plots`), which nothing else here does."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING, Any

from service.evaluation.detectors import available_detectors
from service.evaluation.device import SCENARIOS
from service.evaluation.procedures import PROCEDURES
from service.evaluation.run import Evaluation

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe & Ito's palette: told apart with every kind of color vision, on white and on black.
COLORS = ("#0072B2", "#56B4E9", "#D55E00", "#E69F00", "#CC79A7", "#009E73", "#7F7F7F")
MARKS = ("o", "s", "v", "^", "D", "P", "X")
# with a salt, and without a date, the same numbers give the same file
STYLE: dict[Any, Any] = {
    "svg.hashsalt": "s2bench",
    "svg.fonttype": "none",  # text stays text: smaller, and it can be searched
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
}
LOWEST = 0.02  # percent: where a rate of 0 is drawn on the log axis


def can_plot() -> bool:
    """Return whether matplotlib is installed."""
    return importlib.util.find_spec("matplotlib") is not None


def write_plots(evaluation: Evaluation, folder: Path) -> list[Path]:
    """Write one SVG for false alarms, one for power and one for histories; return their paths.

    Raises
    ------
    ImportError
        Where matplotlib is not installed (`can_plot`).
    """
    from matplotlib import rc_context

    draw = {"false_alarms.svg": _false_alarms, "power.svg": _power, "histories.svg": _histories}
    with rc_context(STYLE):
        for name, drawn in draw.items():
            drawn(evaluation).savefig(folder / name, metadata={"Date": None}, bbox_inches="tight")
    return [folder / name for name in draw]


def _figure(width: float, height: float) -> tuple[Figure, Axes]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, figure.add_subplot()


def _log_axis_with_zero(axes: Axes) -> None:
    """Make the x axis logarithmic, with 0 at its left end."""
    axes.set_xscale("log")
    axes.set_xlim(LOWEST / 1.5, 100)
    axes.set_xticks([LOWEST, 0.1, 1, 10, 100], ["0", "0.1", "1", "10", "100"])
    axes.minorticks_off()


def _false_alarms(evaluation: Evaluation) -> Figure:
    """Draw one row per scenario, one mark per procedure, with its interval."""
    figure, axes = _figure(7.5, 0.5 * len(SCENARIOS) + 1.2)
    for number, procedure in enumerate(PROCEDURES):
        offset = 0.12 * (number - (len(PROCEDURES) - 1) / 2)
        for row, scenario in enumerate(SCENARIOS):
            told = evaluation.jobs[scenario, 0.0, procedure].false_alarms
            interval = told.interval()
            if interval is None:
                continue
            low, rate, high = (100 * max(value, LOWEST / 100) for value in (interval[0], told.rate or 0.0, interval[1]))
            style: dict[str, Any] = {"color": COLORS[number], "label": procedure if row == 0 else None}
            axes.plot([low, high], [row + offset] * 2, color=COLORS[number], linewidth=1)
            axes.plot(rate, row + offset, marker=MARKS[number], markersize=5, linestyle="none", **style)
    _log_axis_with_zero(axes)
    axes.set_yticks(range(len(SCENARIOS)), list(SCENARIOS))
    axes.invert_yaxis()
    axes.set_xlabel("identical code called a change, % of jobs (95 % interval)")
    axes.grid(axis="x", alpha=0.3)
    figure.legend(loc="outside upper center", ncols=3, frameon=False)
    return figure


def _power(evaluation: Evaluation) -> Figure:
    """Draw the share of planted slow-downs that the service finds, over their size, by scenario."""
    figure, axes = _figure(6.5, 3.6)
    service = next(iter(PROCEDURES))
    usable = [one for one in SCENARIOS.values() if one.usable]
    for number, scenario in enumerate(usable):
        sizes, shares = [0.0], [100 * (evaluation.jobs[scenario.name, 0.0, service].false_alarms.rate or 0.0)]
        for effect in evaluation.options.effects:
            sizes.append(100 * effect)
            shares.append(100 * (evaluation.jobs[scenario.name, effect, service].found.rate or 0.0))
        mark = MARKS[number % len(MARKS)]
        axes.plot(sizes, shares, marker=mark, color=COLORS[number % len(COLORS)], label=scenario.name)
    axes.set_xlabel("true slow-down, %")
    axes.set_ylabel("called regressed, % of jobs")
    axes.set_ylim(-3, 103)
    axes.grid(alpha=0.3)
    figure.legend(loc="outside right center", frameon=False)
    return figure


def _histories(evaluation: Evaluation) -> Figure:
    """Draw how many changes each detector finds against its false alarms."""
    figure, axes = _figure(6.5, 3.6)
    for number, name in enumerate(available_detectors()):
        one = evaluation.histories[name]
        false = max(one.per_thousand(one.false) or 0.0, LOWEST)
        axes.plot(
            false,
            100 * (one.recall.rate or 0.0),
            marker=MARKS[number % len(MARKS)],
            color=COLORS[number % len(COLORS)],
            markersize=8,
            linestyle="none",
            label=name,
        )
    _log_axis_with_zero(axes)
    axes.set_ylim(0, 105)
    axes.set_xlabel("false alarms per 1,000 commits")
    axes.set_ylabel("changes found, %")
    axes.grid(alpha=0.3)
    figure.legend(loc="outside right center", frameon=False)
    return figure
