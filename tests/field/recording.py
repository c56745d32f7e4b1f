"""What a field test measured, in a form small enough to keep: every sample, and of telemetry what judging takes.

A recording is one job, with the verdicts that it ended with: `judge_again` runs today's judging on its samples, which
`tally` and `table` sum up.
"""

from __future__ import annotations

import gzip
import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import mannwhitneyu, ttest_ind

from service.judging.judge import CaseInput, judge_cases
from service.stats.pairs import ArmObservation, PairObservation
from service.stats.policy import JudgingPolicy
from service.stats.sequential import CHANGES
from service.stats.verdict import CaseDecision
from service.worker.comparison import Comparison
from service.worker.document import Document
from service.worker.evidence import ARMS, numerics_of, observe_canary
from service.worker.telemetry import observe

FORMAT = "s2bench field recording 1"
Recording = dict[str, Any]
_SIGNS = {"regressed": 1, "improved": -1}


def record(comparison: Comparison, scenario: str, more: Mapping[str, float]) -> Recording:
    """Return a job as a recording; `more` is the work that the candidate has on top, by case, as a share."""
    documents = [(one, Document.model_validate_json(json.dumps(one))) for one in comparison.documents]
    timed = [(raw, one) for raw, one in documents if raw["purpose"] in ("pair", "confirm")]
    canaries = [(raw, one) for raw, one in documents if raw["purpose"] == "canary"]
    checked = {one.arm: one for raw, one in documents if raw["purpose"] == "numerics"}
    cases = {}
    for row in comparison.rows:
        cases[row.case] = {
            "group": row.group,
            "more": more.get(row.case, 0.0),
            "verdict": str(row.verdict),
            "effect": row.effect,
            "interval": [row.interval_low, row.interval_high],
            "minimum_detectable_effect": row.minimum_detectable_effect,
            "numerics": {arm: numerics_of(checked[arm].case(row.case)) for arm in ARMS if arm in checked},
            "pairs": _pairs(timed, row.case),
        }
    names = sorted({case.name for _, one in canaries for case in one.cases})
    return {
        "format": FORMAT,
        "scenario": scenario,
        "device": comparison.device.name,
        "device_class": comparison.device.device_class,
        "device_uuid": comparison.device.uuid,
        "environment": comparison.environment,
        "started_at": comparison.started_at.isoformat(),
        "wall_s": comparison.wall_s,
        "policy": comparison.policy.to_dict(),
        "cases": cases,
        "canaries": {name: _canary_pairs(timed, canaries, name) for name in names},
    }


def judge_again(recording: Recording, policy: JudgingPolicy | None = None) -> dict[str, CaseDecision]:
    """Return what judging says of a recording today, by the policy of then unless another one is given."""
    inputs = {name: _input(case) for name, case in recording["cases"].items()}
    canaries = {name: [_observed(pair) for pair in pairs] for name, pairs in recording["canaries"].items()}
    policy = policy or JudgingPolicy.from_dict(recording["policy"])
    return judge_cases(inputs, policy, final=True, canaries=canaries)


def load(path: Path) -> Recording:
    """Read a recording."""
    recording: Recording = json.loads(gzip.decompress(path.read_bytes()))
    if recording.get("format") != FORMAT:
        raise ValueError(f"{path.name}: expected format {FORMAT!r}, got {recording.get('format')!r}")
    return recording


def save(recording: Recording, path: Path) -> None:
    """Write a recording; the same one gives the same bytes."""
    text = json.dumps(recording, separators=(",", ":"), allow_nan=False)
    path.write_bytes(gzip.compress(text.encode(), mtime=0))


def tally(recordings: Iterable[Recording]) -> dict[tuple[str, float], Counter[str]]:
    """Count today's verdicts by scenario and work added."""
    counts: defaultdict[tuple[str, float], Counter[str]] = defaultdict(Counter)
    for recording in recordings:
        for name, decision in judge_again(recording).items():
            counts[recording["scenario"], recording["cases"][name]["more"]][str(decision.verdict)] += 1
    return dict(sorted(counts.items()))


def table(recordings: Sequence[Recording]) -> str:
    """Return the confusion table as Markdown."""
    counts = tally(recordings)
    names = ["unchanged", "regressed", "improved", "inconclusive", "throttled", "environment"]
    names += sorted({name for one in counts.values() for name in one} - set(names))
    lines = ["| scenario | work added | " + " | ".join(names) + " |", "| --- | ---: |" + " ---: |" * len(names)]
    for (scenario, more), verdicts in counts.items():
        cells = " | ".join(str(verdicts[name]) if verdicts[name] else "" for name in names)
        lines.append(f"| {scenario} | {more:.1%} | {cells} |")
    return "\n".join(lines) + "\n"


# ---- the same samples without pairs ----------------------------------------------------------------------------------


def welch(before: np.ndarray, after: np.ndarray) -> bool:
    """Say whether Welch's t test on all samples of two blocks finds a change at 5 %."""
    return bool(ttest_ind(np.log(after), np.log(before), equal_var=False).pvalue < 0.05)


def ranks(before: np.ndarray, after: np.ndarray) -> bool:
    """Say whether ranks differ at 0.2 % and medians by more than 2 %."""
    shift = abs(float(np.log(np.median(after) / np.median(before))))
    return bool(mannwhitneyu(before, after).pvalue < 0.002) and shift > np.log(1.02)


def medians(before: np.ndarray, after: np.ndarray) -> bool:
    """Say whether medians of the two blocks differ by more than 1 %."""
    return abs(float(np.log(np.median(after) / np.median(before)))) > np.log(1.01)


PLAIN: dict[str, Callable[[np.ndarray, np.ndarray], bool]] = {"welch": welch, "ranks": ranks, "medians": medians}


def base_then_candidate(recording: Recording, processes: int = 4) -> dict[str, tuple[int, int]]:
    """Return, by plain procedure, how many cases of identical code it calls changed, and of how many.

    The first `processes` processes of a case in the order of time are taken for the base, the next for the candidate:
    what is measured when one commit runs after the other. Only for recordings of identical code.
    """
    found = dict.fromkeys(PLAIN, 0)
    cases = [case for case in recording["cases"].values() if len(case["pairs"]) >= processes]
    for case in cases:
        in_time = [np.array(pair["arms"][arm]["samples"]) for pair in case["pairs"] for arm in pair["order"]]
        before = np.concatenate(in_time[:processes])
        after = np.concatenate(in_time[processes : 2 * processes])
        for name, differs in PLAIN.items():
            found[name] += differs(before, after)
    return {name: (count, len(cases)) for name, count in found.items()}


def wrong_directions(recording: Recording) -> list[str]:
    """Return the cases called changed although their work did not grow, or called the other way round."""
    sign = -1 if recording["scenario"].endswith("less work") else 1
    return [
        name
        for name, decision in judge_again(recording).items()
        if decision.verdict in CHANGES
        and (recording["cases"][name]["more"] == 0 or _SIGNS[str(decision.verdict)] != sign)
    ]


# ---- parts -----------------------------------------------------------------------------------------------------------


def _pairs(timed: Sequence[tuple[dict[str, Any], Document]], name: str) -> list[dict[str, Any]]:
    pairs: dict[int, dict[str, Any]] = {}
    for raw, document in timed:
        case = document.case(name)
        if case is None:
            continue
        pair = pairs.setdefault(raw["pair"], {"index": raw["pair"], "order": "", "arms": {}})
        pair["fresh"] = raw["purpose"] == "confirm"
        pair["order"] += document.arm
        pair["arms"][document.arm] = _arm(observe(document, case))
    return [pair for _, pair in sorted(pairs.items()) if len(pair["arms"]) == len(ARMS)]


def _canary_pairs(
    timed: Sequence[tuple[dict[str, Any], Document]], canaries: Sequence[tuple[dict[str, Any], Document]], name: str
) -> list[dict[str, Any]]:
    """Pair the canaries up; the state of the device is that of the process that followed."""
    followed = {(raw["pair"], one.arm): one for raw, one in timed}
    pairs: dict[int, dict[str, Any]] = {}
    for raw, document in canaries:
        key = raw["pair"], document.arm
        if key not in followed:
            continue
        pair = pairs.setdefault(raw["pair"], {"index": raw["pair"], "order": "", "arms": {}})
        pair["order"] += document.arm
        pair["arms"][document.arm] = _arm(observe_canary(followed[key], document, name))
    return [pair for _, pair in sorted(pairs.items()) if len(pair["arms"]) == len(ARMS)]


def _arm(seen: ArmObservation) -> dict[str, Any]:
    """Return an observation without what is as usual; samples in ms, to the nanosecond."""
    values = {field.name: getattr(seen, field.name) for field in fields(ArmObservation)}
    usual = {field.name: field.default for field in fields(ArmObservation)}
    return {name: value for name, value in values.items() if name != "samples" and value != usual[name]} | {
        "samples": [round(float(sample), 6) for sample in seen.samples]
    }


def _input(case: Mapping[str, Any]) -> CaseInput:
    pairs = [(pair, _observed(pair)) for pair in case["pairs"]]
    return CaseInput(
        pairs=[one for pair, one in pairs if not pair["fresh"]],
        numerics=case["numerics"].get("B"),
        baseline_numerics=case["numerics"].get("A"),
        group=case["group"],
        fresh=[one for pair, one in pairs if pair["fresh"]],
    )


def _observed(pair: Mapping[str, Any]) -> PairObservation:
    arms = {
        arm: ArmObservation(**{**values, "samples": np.array(values["samples"])})
        for arm, values in pair["arms"].items()
    }
    return PairObservation(pair["index"], pair["order"], arms["A"], arms["B"])
