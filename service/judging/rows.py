"""The verdict row: the one shape in which a verdict reaches the terminal, the API, the pages and a pull request."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from service.stats.verdict import CaseDecision


@dataclass(frozen=True)
class VerdictRow:
    """One case of one measurement, JSON-able by `to_dict`.

    `before` and `after` are in `unit`; `effect`, the interval and `minimum_detectable_effect` are ratios minus 1
    (positive is slower); `numerics` is {candidate_error, baseline_error, tolerance, status} or None.
    """

    case: str
    case_version: str
    group: str
    device_class: str
    gpu_uuid: str | None
    unit: str
    before: float | None
    after: float | None
    effect: float | None
    interval_low: float | None
    interval_high: float | None
    verdict: str
    reasons: tuple[dict[str, str], ...]
    pairs_used: int
    pairs_rejected: int
    minimum_detectable_effect: float | None
    numerics: dict[str, Any] | None

    @classmethod
    def of(
        cls,
        decision: CaseDecision,
        *,
        case: str,
        case_version: str,
        group: str,
        device_class: str,
        unit: str,
        gpu_uuid: str | None = None,
        numerics: Mapping[str, Any] | None = None,
    ) -> VerdictRow:
        """Build the row of a decided case.

        Raises
        ------
        ValueError
            When `decision` is still open.
        """
        if decision.verdict is None:
            raise ValueError(f"decision: expected a verdict for case {case!r}, got an undecided one")
        low, high = decision.interval or (None, None)
        return cls(
            case=case,
            case_version=case_version,
            group=group,
            device_class=device_class,
            gpu_uuid=gpu_uuid,
            unit=unit,
            before=decision.before,
            after=decision.after,
            effect=decision.effect,
            interval_low=low,
            interval_high=high,
            verdict=str(decision.verdict),
            reasons=tuple(one.to_dict() for one in decision.reasons),
            pairs_used=decision.pairs_used,
            pairs_rejected=decision.pairs_rejected,
            minimum_detectable_effect=decision.minimum_detectable_effect,
            numerics=None if numerics is None else dict(numerics),
        )

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON types; `from_dict` gives the same row back."""
        return {**asdict(self), "reasons": [dict(one) for one in self.reasons]}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> VerdictRow:
        """Build a row from `to_dict`'s output.

        Raises
        ------
        ValueError
            Naming the fields that are missing or unknown.
        """
        known = {field.name for field in fields(cls)}
        if known != set(values):
            missing, unknown = sorted(known - set(values)), sorted(set(values) - known)
            raise ValueError(f"values: expected the fields of a verdict row; missing {missing}, unknown {unknown}")
        return cls(**{**values, "reasons": tuple(dict(one) for one in values["reasons"])})
