"""Gathers the documents of a measurement and turns them into verdict rows and points, wherever they came from."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from service.judging.judge import CaseFailure, CaseInput, judge_canaries, judge_cases, numerics_summary
from service.judging.rows import VerdictRow
from service.stats.admission import CaseHistory
from service.stats.confirmation import fresh_order
from service.stats.pairs import ArmObservation, PairObservation, pair_order
from service.stats.policy import JudgingPolicy
from service.stats.verdict import CaseDecision, Verdict
from service.worker.devices import MeasuringDevice
from service.worker.document import CaseResult, Document
from service.worker.errors import JobError
from service.worker.telemetry import observe

ARMS = ("A", "B")


@dataclass(frozen=True)
class ArmPoint:
    """What one arm of a measurement adds to a series; `low` and `high` bound the median at about 95 %.

    `clock` is the median SM clock of the processes in MHz, None without readings.
    """

    value: float
    low: float
    high: float
    processes: int
    status: str  # ok | throttled | sparse
    backend: str
    clock: float | None = None


@dataclass(frozen=True)
class CaseSummary:
    """The result of one case: its row, the evidence behind it, and points by arm."""

    case: CaseResult
    row: VerdictRow
    evidence: dict[str, Any]
    points: dict[str, ArmPoint]


@dataclass(frozen=True)
class MeasuredPair:
    """Both documents of a pair, by arm, and those of the canaries that were measured before each of them.

    `only` names the cases that were asked for, None stands for all.
    """

    index: int
    order: Literal["AB", "BA"]
    documents: Mapping[str, Document]
    canaries: Mapping[str, Document]
    only: tuple[str, ...] | None = None

    def asked_for(self, name: str) -> bool:
        """Return whether the processes were to measure a case."""
        return self.only is None or name in self.only


class Evidence:
    """All documents of one attempt at a measurement; `usual` by case name and version, where that is known."""

    def __init__(
        self,
        device: MeasuringDevice,
        policy: JudgingPolicy,
        usual: Mapping[tuple[str, str], CaseHistory] | None = None,
    ) -> None:
        self._device = device
        self._policy = policy
        self._usual = usual or {}
        self._numerics: dict[str, Document] = {}
        self._pairs: list[MeasuredPair] = []
        self._fresh: list[MeasuredPair] = []
        self._decisions: dict[str, CaseDecision] | None = None
        self.baseline_error: JobError | None = None

    @property
    def budget(self) -> int:
        """Return the most pairs that may be measured, those that confirm changes not counted."""
        return self._policy.looks[-1]

    @property
    def pairs_measured(self) -> int:
        """Return how many pairs there are, those that confirm changes not counted."""
        return len(self._pairs)

    @property
    def fresh_measured(self) -> int:
        """Return how many pairs there are that confirm changes."""
        return len(self._fresh)

    def next_pair(self) -> tuple[int, Literal["AB", "BA"]]:
        """Return position in the job and order of the next pair, be it a first or a fresh one."""
        index = self.pairs_measured + self.fresh_measured
        fresh = self._fresh or not self.needs_pairs()
        return index, fresh_order(self.fresh_measured) if fresh else pair_order(index)

    def has_numerics(self, arm: str) -> bool:
        """Return whether an arm's numbers were checked."""
        return arm in self._numerics

    def add_numerics(self, arm: str, document: Document) -> None:
        """Add the check of an arm's numbers."""
        self._numerics[arm] = document
        self._decisions = None

    def add_pair(
        self,
        index: int,
        order: str,
        baseline: Document,
        candidate: Document,
        canaries: Mapping[str, Document] | None = None,
    ) -> None:
        """Add a pair of processes, and by arm what the canaries before them showed."""
        self._pairs.append(_measured_pair(index, order, {"A": baseline, "B": candidate}, canaries))
        self._decisions = None

    def add_fresh(
        self,
        index: int,
        order: str,
        baseline: Document,
        candidate: Document,
        canaries: Mapping[str, Document] | None = None,
    ) -> None:
        """Add a pair that confirms changes: its processes were to measure the cases of `to_confirm`."""
        pair = _measured_pair(index, order, {"A": baseline, "B": candidate}, canaries)
        self._fresh.append(replace(pair, only=self.to_confirm()))
        self._decisions = None

    def fail_baseline(self, error: JobError) -> None:
        """Note that there is nothing to compare with: no pairs are needed, and no case is comparable."""
        self.baseline_error = error
        self._decisions = None

    def needs_pairs(self) -> bool:
        """Return whether another pair could decide something and may be taken."""
        if self.baseline_error is not None or self._fresh or self.pairs_measured >= self.budget:
            return False
        return any(one.verdict is None and one.claim is None for one in self._decide().values())

    def to_confirm(self) -> tuple[str, ...]:
        """Return the cases whose change wants (more) fresh pairs; none while `needs_pairs`."""
        if self.baseline_error is not None:
            return ()
        decisions = self._decide()
        return tuple(sorted(name for name, one in decisions.items() if one.verdict is None and one.claim is not None))

    def last_admissions(self) -> dict[str, bool]:
        """Return for each timed case whether the last pair is admitted, as things stand."""
        last = (self._fresh or self._pairs)[-1].index
        admitted = {}
        for name, decision in self._decide().items():
            judged = decision.evidence.get("confirmation") if self._fresh else decision.evidence
            pairs = (judged or {}).get("pairs", ())
            if pairs and pairs[-1]["index"] == last:
                admitted[name] = bool(pairs[-1]["admitted"])
        return admitted

    def judge(self) -> list[CaseSummary]:
        """Return the final result of every case, by name."""
        inputs, canaries = self._inputs(), self._canaries()
        decisions = judge_cases(inputs, self._policy, final=True, canaries=canaries)
        watched = canary_evidence(canaries, self._policy)
        return [self._summarize(name, inputs[name], decisions[name], watched) for name in sorted(inputs)]

    def _decide(self) -> dict[str, CaseDecision]:
        if self._decisions is None:
            self._decisions = judge_cases(self._inputs(), self._policy, final=False, canaries=self._canaries())
        return self._decisions

    def _canaries(self) -> dict[str, list[PairObservation]]:
        """Return the canaries' observations by name, over all pairs that have them."""
        observed: dict[str, list[PairObservation]] = {}
        for pair in (*self._pairs, *self._fresh):
            for case in pair.canaries["A"].cases if set(ARMS) <= set(pair.canaries) else ():
                observed.setdefault(case.name, []).append(_observe_canary(pair, case.name))
        return observed

    def _inputs(self) -> dict[str, CaseInput]:
        names = {case.name for document in self._numerics.values() for case in document.cases}
        return {name: self._input(name) for name in names}

    def _input(self, name: str) -> CaseInput:
        checked = {arm: document.case(name) for arm, document in self._numerics.items()}
        failure = self._failure(name, checked.get("A"), checked.get("B"))
        case = checked.get("B") or checked.get("A")
        assert case is not None
        return CaseInput(
            pairs=[] if failure else [_observe(pair, name) for pair in self._pairs],
            numerics=numerics_of(checked.get("B")),
            baseline_numerics=numerics_of(checked.get("A")),
            group=case.group,
            failure=failure,
            history=self._usual.get((name, case.version)),
            fresh=[] if failure else [_observe(pair, name) for pair in self._fresh if pair.asked_for(name)],
        )

    def _failure(self, name: str, baseline: CaseResult | None, candidate: CaseResult | None) -> CaseFailure | None:
        """Return why a case cannot be timed, the candidate's own failure first."""
        if candidate is not None and candidate.status == "failed":
            return CaseFailure("B", "case_failed", candidate.error or "the case failed")
        if self.baseline_error is not None:
            return CaseFailure("A", self.baseline_error.code, self.baseline_error.message)
        if baseline is None or candidate is None:
            return CaseFailure("A" if baseline is None else "B", "missing")
        if baseline.version != candidate.version:
            detail = f"the case is defined otherwise in the baseline (version {baseline.version})"
            return CaseFailure("A", "case_changed", detail)
        if baseline.status == "failed":
            return CaseFailure("A", "case_failed", baseline.error or "the case failed")
        for arm in ("B", "A"):
            for pair in (one for one in (*self._pairs, *self._fresh) if one.asked_for(name)):
                timed = pair.documents[arm].case(name)
                if timed is None or timed.status == "failed":
                    detail = timed.error if timed and timed.error else f"no result in pair {pair.index}"
                    return CaseFailure("B" if arm == "B" else "A", "case_failed", detail)
        return None

    def _summarize(self, name: str, given: CaseInput, decision: CaseDecision, canaries: dict[str, Any]) -> CaseSummary:
        checked = [document.case(name) for arm in ("B", "A") if (document := self._numerics.get(arm))]
        case = next(found for found in checked if found is not None)
        row = VerdictRow.of(
            decision,
            case=name,
            case_version=case.version,
            group=case.group,
            device_class=self._device.device_class,
            unit=case.unit,
            gpu_uuid=self._device.gpu_uuid,
            numerics=numerics_summary(given.numerics, given.baseline_numerics, self._policy),
        )
        evidence = {**decision.evidence, "canaries": canaries}
        return CaseSummary(case, row, evidence, self._points(name, given.pairs, decision))

    def _points(self, name: str, pairs: Sequence[PairObservation], decision: CaseDecision) -> dict[str, ArmPoint]:
        """Return a point for each arm whose numbers are right, from its admitted processes."""
        judged = decision.evidence.get("pairs", ())
        usable = [pair for pair, entry in zip(pairs, judged, strict=False) if entry["admitted"]]
        throttled = len(usable) < self._policy.min_admitted_share * len(pairs)
        if decision.verdict in (Verdict.FAILED, Verdict.NOT_COMPARABLE) or not pairs:
            return {}
        points = {}
        for arm in ARMS:
            chosen = usable or pairs
            seen = [pair.baseline if arm == "A" else pair.candidate for pair in chosen]
            medians = [one.median for one in seen]
            clocks = [one.sm_clock for one in seen if one.sm_clock is not None]
            status = "throttled" if throttled else "sparse" if len(usable) < self._policy.looks[0] else "ok"
            value, low, high = median_interval(medians)
            timed = self._pairs[-1].documents[arm].case(name)
            backend = (timed.backend if timed else None) or "unknown"
            clock = float(np.median(clocks)) if clocks else None
            points[arm] = ArmPoint(value, low, high, len(chosen), status, backend, clock)
        return points


def median_interval(values: Sequence[float]) -> tuple[float, float, float]:
    """Return the median and the order statistics that bound it with 95 % confidence, whatever the distribution.

    The largest k with P(Binomial(n, 1/2) < k) <= 2.5 % gives the k-th smallest and k-th largest value; with fewer than
    6 values no such k exists and the extremes are returned.
    """
    ordered = np.sort(np.asarray(values, dtype=np.float64))
    n = len(ordered)
    below, k = 0.0, 0
    while k < n // 2:
        below += math.comb(n, k) / 2.0**n
        if below > 0.025:
            break
        k += 1
    k = max(k, 1)
    return float(np.median(ordered)), float(ordered[k - 1]), float(ordered[n - k])


def canary_evidence(canaries: Mapping[str, Sequence[PairObservation]], policy: JudgingPolicy) -> dict[str, Any]:
    """Return what each canary says of the job's surroundings, with the values to draw it: log ratios by pair."""
    decisions = judge_canaries(canaries, policy)
    return {
        name: {
            "verdict": str(one.verdict),
            "effect": one.effect,
            "interval": one.interval and list(one.interval),
            "pairs_used": one.pairs_used,
            "pairs_rejected": one.pairs_rejected,
            "log_ratios": {str(pair.index): pair.log_ratio for pair in canaries[name]},
        }
        for name, one in decisions.items()
    }


def _measured_pair(
    index: int, order: str, documents: Mapping[str, Document], canaries: Mapping[str, Document] | None
) -> MeasuredPair:
    if order not in ("AB", "BA"):
        raise ValueError(f"order: expected AB or BA, got {order!r}")
    return MeasuredPair(index, "AB" if order == "AB" else "BA", documents, canaries or {})


def observe_canary(document: Document, canaries: Document, name: str) -> ArmObservation:
    """Return a canary's samples with the state of the device in the process that they were measured before.

    They are too short for readings of their own (NVML refreshes every 100 ms); without stamps the whole process counts.
    """
    canary = canaries.case(name)
    assert canary is not None
    return observe(document, canary.model_copy(update={"sample_start_s": [], "sample_end_s": []}))


def _observe_canary(pair: MeasuredPair, name: str) -> PairObservation:
    arms = [observe_canary(pair.documents[arm], pair.canaries[arm], name) for arm in ARMS]
    return PairObservation(pair.index, pair.order, *arms)


def _observe(pair: MeasuredPair, name: str) -> PairObservation:
    arms = {}
    for arm, document in pair.documents.items():
        case = document.case(name)
        assert case is not None
        arms[arm] = observe(document, case)
    return PairObservation(pair.index, pair.order, arms["A"], arms["B"])


def numerics_of(case: CaseResult | None) -> dict[str, Any] | None:
    """Return the check of a case's numbers as judging takes it; None when there is none."""
    if case is None or case.numerics is None:
        return None
    values = case.numerics.model_dump()
    values["errors"] = {output: error or {"relative": None} for output, error in values["errors"].items()}
    return values
