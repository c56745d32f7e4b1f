"""Admission: which pairs were taken in a state of the device in which a difference can be believed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from service.stats.pairs import ArmObservation, Floats, PairObservation
from service.stats.policy import JudgingPolicy
from service.stats.verdict import Reason, reason

SETTLED = 4  # pairs from which on the scatter of a job is known well enough to call one of them too quiet
TOP_PAIRS = 3  # pairs that have to reach a clock before it is the job's top one


@dataclass(frozen=True)
class Admission:
    """Whether a pair counts, and the codes of everything that speaks against it."""

    admitted: bool
    reasons: tuple[str, ...] = ()


@dataclass(frozen=True)
class CaseHistory:
    """What earlier jobs have shown of this case on this very device; None where nothing is known.

    Parameters
    ----------
    clock_top, clock_low
        SM clock that jobs usually reach at their best, and the lowest one seen in usable pairs; in the pairs' unit.
    scatter
        Usual robust relative scatter inside a process.
    pair_sd
        Usual standard deviation of the log ratio of identical code.
    """

    clock_top: float | None = None
    clock_low: float | None = None
    scatter: float | None = None
    pair_sd: float | None = None


@dataclass(frozen=True, eq=False)
class AdmissionTable:
    """All pairs of a case with what admission needs, so that any prefix of the job can be judged as it looked then.

    `own` holds the reasons that a pair has by itself; the others depend on the pairs measured up to that time. The
    arrays begin with `earlier` pairs that are known but not judged here.
    """

    own: tuple[tuple[str, ...], ...]
    sm_clocks: Floats
    mem_clocks: Floats
    scatter: Floats
    policy: JudgingPolicy
    history: CaseHistory
    earlier: int = 0

    @classmethod
    def of(
        cls,
        pairs: Sequence[PairObservation],
        policy: JudgingPolicy,
        history: CaseHistory | None = None,
        earlier: Sequence[PairObservation] = (),
    ) -> AdmissionTable:
        """Build the table of pairs; `earlier` ones say what is usual and are not judged."""
        return cls.of_arms(
            [(pair.baseline, pair.candidate) for pair in (*earlier, *pairs)], policy, history, len(earlier)
        )

    @classmethod
    def of_arms(
        cls,
        together: Sequence[Sequence[ArmObservation]],
        policy: JudgingPolicy,
        history: CaseHistory | None = None,
        earlier: int = 0,
    ) -> AdmissionTable:
        """Build the table of arms that are compared with one another: the two of a pair, or all of a round.

        The first `earlier` of them are not judged. Clocks are [pairs, arms] with NaN for unreadable, scatter is the
        mean over the arms.
        """
        return cls(
            own=tuple(_own_reasons(arms, policy) for arms in together[earlier:]),
            sm_clocks=_clocks([[arm.sm_clock for arm in arms] for arms in together]),
            mem_clocks=_clocks([[arm.mem_clock for arm in arms] for arms in together]),
            scatter=np.array([np.mean([arm.scatter for arm in arms]) for arms in together], dtype=np.float64),
            policy=policy,
            history=history or CaseHistory(),
            earlier=earlier,
        )

    def common_reasons(self, measured: int) -> dict[str, NDArray[np.bool_]]:
        """Return, per code, which of the first `measured` pairs it strikes, seen from the end of that prefix.

        clock_low: a clock under `clock_floor` of the upper clock of the pairs judged here, the `clock_quantile` over
        them of the highest of the arms' clocks. stable_at_low_clock: clock and scatter both far under their usual,
        which is that of the pairs at the top clock, or the history's when the whole job never reached it. Source:
        shared prototype `ab_sequential` for the floor; the rest derived here.
        """
        rule, history = self.policy, self.history
        known = self.earlier + measured
        sm, mem, scatter = self.sm_clocks[:known], self.mem_clocks[:known], self.scatter[:known]
        floor, floor_mem = (rule.clock_floor * _upper(c[self.earlier :], rule.clock_quantile) for c in (sm, mem))
        highest = sm.max(axis=1)
        struck = {
            "clock_low": (sm.min(axis=1) < floor) | (mem.min(axis=1) < floor_mem),
            "clock_unreadable": np.isnan(sm).any(axis=1) & bool(np.isfinite(sm).any()),
            "stable_at_low_clock": _stable_at_low_clock(highest, scatter, rule),
        }
        if history.clock_low is not None:
            struck["clock_unseen"] = sm.min(axis=1) < history.clock_low
        if history.clock_top is not None and history.scatter is not None and np.isfinite(highest).any():
            never_reached = float(np.nanmax(highest)) < rule.stable_clock * history.clock_top
            if never_reached and float(np.median(scatter)) < rule.stable_scatter * history.scatter:
                struck["stable_at_low_clock"] = np.ones(known, dtype=np.bool_)
        return {code: strikes[self.earlier :] for code, strikes in struck.items()}

    def admissions(self) -> list[Admission]:
        """Return the admission of every pair with all reasons against it, seen from the end of the job."""
        if not self.own:
            return []
        common = self.common_reasons(len(self.own))
        result = []
        for at, own in enumerate(self.own):
            codes = (*own, *(code for code, strikes in common.items() if strikes[at]))
            result.append(Admission(not codes, codes))
        return result

    def admitted(self, measured: int) -> NDArray[np.bool_]:
        """Return which of the first `measured` pairs are admitted, seen from the end of that prefix; bool[measured]."""
        usable = np.array([not codes for codes in self.own[:measured]], dtype=np.bool_)
        for strikes in self.common_reasons(measured).values():
            usable &= ~strikes
        return usable


def admit(
    pairs: Sequence[PairObservation], policy: JudgingPolicy, history: CaseHistory | None = None
) -> list[Admission]:
    """Return for every pair whether it is admitted, with all reason codes against it.

    GPU: no more than 5 % of the samples of either arm throttled; SM and memory clocks of the arms within 1.5 % and not
    under 96 % of the job's upper clock nor below what history has shown; the arms' clocks as the device read them
    within `device_clock_tolerance`, if there is one and both were read; no foreign compute process; no new ECC or Xid
    error. A power cap is no reason by itself, only when it differs between the arms. CPU: no more than 5 % steal or
    foreign load. Clocks that are unreadable in every pair are not judged. Source: verdicts of this project's design,
    thresholds in `policy`.
    """
    return AdmissionTable.of(pairs, policy, history).admissions()


def rejection_reasons(admissions: Sequence[Admission], policy: JudgingPolicy) -> tuple[Reason, ...]:
    """Return one reason per code that rejected pairs, the most frequent first."""
    limits: dict[str, float] = {
        "throttle_flagged": policy.max_throttled_share,
        "clocks_differ": policy.clock_tolerance,
        "device_clocks_differ": policy.device_clock_tolerance or 0.0,
        "clock_low": policy.clock_floor,
        "steal": policy.max_steal_share,
        "foreign_load": policy.max_foreign_share,
        "too_few_samples": policy.min_samples,
    }
    counts = Counter(code for admission in admissions for code in admission.reasons)
    return tuple(
        reason(code, count=count, measured=len(admissions), limit=limits.get(code, 0.0))
        for code, count in counts.most_common()
    )


def _own_reasons(arms: Sequence[ArmObservation], policy: JudgingPolicy) -> tuple[str, ...]:
    def worst(name: str) -> float:
        return float(max(getattr(arm, name) for arm in arms))

    capped = [arm.power_capped_share for arm in arms]
    against = {  # those that bring others about come first
        "foreign_process": worst("foreign_processes") > 0,
        "throttle_flagged": worst("throttled_share") > policy.max_throttled_share,
        "clocks_differ": any(_differ(arms, clock, policy.clock_tolerance) for clock in ("sm_clock", "mem_clock")),
        "device_clocks_differ": _differ(arms, "device_clock", policy.device_clock_tolerance),
        "power_cap_uneven": max(capped) - min(capped) > policy.power_cap_tolerance,
        "device_error": worst("new_errors") > 0,
        "steal": worst("steal_share") > policy.max_steal_share,
        "foreign_load": worst("foreign_share") > policy.max_foreign_share,
        "too_few_samples": min(arm.samples.size for arm in arms) < policy.min_samples,
    }
    return tuple(code for code, strikes in against.items() if strikes)


def _differ(arms: Sequence[ArmObservation], clock: str, tolerance: float | None) -> bool:
    clocks = [getattr(arm, clock) for arm in arms]
    if tolerance is None or None in clocks:
        return False
    return bool(np.log(max(clocks) / min(clocks)) > tolerance)


def _stable_at_low_clock(highest: Floats, scatter: Floats, rule: JudgingPolicy) -> NDArray[np.bool_]:
    """Return which pairs are far below the top clock and far quieter than the pairs at it.

    The top is what `TOP_PAIRS` pairs reached, however few of the job they are: after an early throttle most are below.
    """
    readable = np.sort(highest[np.isfinite(highest)])
    if highest.size < SETTLED or readable.size < TOP_PAIRS:
        return np.zeros(highest.size, dtype=np.bool_)
    low = rule.stable_clock * readable[-TOP_PAIRS]
    usual = float(np.quantile(scatter[highest >= low], 0.75))
    return np.asarray((highest < low) & (scatter < rule.stable_scatter * usual))


def _clocks(values: Sequence[Sequence[float | None]]) -> Floats:
    return np.array([[np.nan if clock is None else clock for clock in row] for row in values], dtype=np.float64)


def _upper(clocks: Floats, quantile: float) -> float:
    """Upper clock of a job: that quantile over the pairs of the higher arm's clock; NaN when none is readable."""
    highest = clocks.max(axis=1)
    readable = highest[np.isfinite(highest)]
    return float(np.quantile(readable, quantile)) if readable.size else float("nan")
