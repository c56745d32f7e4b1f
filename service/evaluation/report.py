"""The tables of an evaluation, as Markdown."""

from __future__ import annotations

from collections.abc import Sequence

from service.evaluation.detectors import available_detectors
from service.evaluation.device import SCENARIOS
from service.evaluation.history_score import HistoryScore
from service.evaluation.procedures import PROCEDURES
from service.evaluation.run import Evaluation
from service.stats.proportion import Proportion
from service.stats.verdict import Verdict

OFFLINE = "(ruptures)"  # looks at the whole history at once, so it has no delay


def markdown(evaluation: Evaluation) -> str:
    """Return the whole report; the first lines are the command that makes it again."""
    options = evaluation.options
    effects = ", ".join(f"{100 * effect:g} %" for effect in options.effects)
    return "\n".join(
        [
            f"`s2bench evaluate --trials {options.trials} --series {options.series} --commits {options.commits}"
            f" --seed {options.seed}`",
            "",
            f"Jobs: {options.trials} simulated devices per scenario, the same for every procedure. "
            "Cells: false alarms on identical code, with the upper end of its 95 % interval (Clopper-Pearson).",
            "",
            *_false_alarms(evaluation),
            "",
            f"What s2bench finds of planted slow-downs of {effects}, what it says where it says nothing of the code, "
            "and the pairs that a job takes (identical code, then each slow-down).",
            "",
            *_power(evaluation),
            "",
            f"Histories: {options.series} series of {options.commits} commits, half of them with changes of 1-10 %; "
            "an alarm within 3 commits is right. Jobs run on simulated devices of the scenario `mixed`.",
            "",
            *_histories(evaluation),
            "",
        ]
    )


def _table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    lines = [f"| {' | '.join(headings)} |", f"| --- |{' ---: |' * (len(headings) - 1)}"]
    return [*lines, *(f"| {' | '.join(row)} |" for row in rows)]


def _false_alarms(evaluation: Evaluation) -> list[str]:
    rows = []
    for scenario in SCENARIOS:
        scores = [evaluation.jobs[scenario, 0.0, procedure] for procedure in PROCEDURES]
        rows.append([scenario, *(at_most(one.false_alarms) for one in scores)])
    return _table(["scenario", *PROCEDURES], rows)


def _power(evaluation: Evaluation) -> list[str]:
    rows = []
    service, knowing = list(PROCEDURES)[:2]
    for name, scenario in SCENARIOS.items():
        scores = [evaluation.jobs[name, effect, service] for effect in (0.0, *evaluation.options.effects)]
        found = [percent(one.found) if scenario.usable else "–" for one in scores[1:]]
        throttled = percent(scores[0].share(Verdict.THROTTLED))
        known = percent(evaluation.jobs[name, 0.0, knowing].share(Verdict.THROTTLED))
        throttled += "" if known == throttled else f" (known device: {known})"
        pairs = " / ".join(f"{one.pairs / one.trials:.0f}" for one in scores)
        inconclusive = percent(scores[0].share(Verdict.INCONCLUSIVE))
        rows.append([f"{name}: {scenario.says}", *found, throttled, inconclusive, pairs])
    effects = [f"+{100 * effect:g} %" for effect in evaluation.options.effects]
    return _table(["scenario", *effects, "throttled", "inconclusive", "pairs"], rows)


def _histories(evaluation: Evaluation) -> list[str]:
    rows = [_history(evaluation.histories[name]) for name in available_detectors()]
    headings = ["detector", "F1", "precision", "false / 1,000", "1 %", "2 %", "3 % and more", "delay", "jobs / 1,000"]
    return _table(headings, rows)


def _history(one: HistoryScore) -> list[str]:
    def recall(least: float, most: float) -> str:
        found = sum((p for size, p in one.sizes.items() if least <= size <= most), Proportion(0, 0))
        return f"{found.count} / {found.trials}" if found.trials else "–"

    interval = one.precision.interval()
    precision = "–" if interval is None else f"{one.precision.rate:.3f} (≥ {interval[0]:.3f})"
    late = "–" if one.delay is None or OFFLINE in one.detector else f"{one.delay[0]:.0f} (90 %: {one.delay[1]:.0f})"
    return [
        one.detector,
        "–" if one.f1 is None else f"{one.f1:.3f}",
        precision,
        "–" if one.commits == 0 else f"{one.per_thousand(one.false):.2f}",
        recall(0.01, 0.01),
        recall(0.02, 0.02),
        recall(0.03, 1.0),
        late,
        "–" if not one.jobs else f"{one.per_thousand(one.jobs):.0f}",
    ]


def percent(found: Proportion) -> str:
    """Return a rate in percent, a dash without trials."""
    return "–" if found.rate is None else f"{100 * found.rate:.1f} %"


def at_most(found: Proportion) -> str:
    """Return a rate in percent with the upper end of its interval, a dash without trials."""
    interval = found.interval()
    return "–" if interval is None else f"{percent(found)} (≤ {100 * interval[1]:.1f})"
