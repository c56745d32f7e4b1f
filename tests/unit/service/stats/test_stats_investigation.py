import pytest

from service.stats.investigation import Finding, Investigation, Outcome, Request, advance
from service.stats.verdict import Verdict

SLOWER = {"verdict": Verdict.REGRESSED, "effect": 0.03, "interval": (0.02, 0.04)}


def run(search, guilty, missing=()):
    """Answer requests from the truth (a range with a guilty commit changed); return the finding and the jobs."""
    jobs = []
    while True:
        request = search.request
        jobs.append((request.candidate, request.baseline))
        if {request.candidate, request.baseline} & set(missing):
            outcome = Outcome(request.candidate, request.baseline, Verdict.NOT_COMPARABLE)
        elif any(request.baseline < commit <= request.candidate for commit in guilty):
            outcome = Outcome(request.candidate, request.baseline, **SLOWER)
        else:
            outcome = Outcome(request.candidate, request.baseline, Verdict.UNCHANGED)
        search = advance(search, outcome)
        if isinstance(search, Finding):
            return search, jobs


def test_a_single_commit_takes_one_job():
    finding, jobs = run(Investigation("g", 4, 5), {5})
    assert (finding.change.candidate, finding.change.baseline, finding.change.effect) == (5, 4, 0.03)
    assert jobs == [(5, 4)]


@pytest.mark.parametrize("guilty", range(11, 27))
def test_bisection_names_the_guilty_commit_by_a_direct_comparison(guilty):
    finding, jobs = run(Investigation("g", 10, 26), {guilty})
    assert (finding.change.candidate, finding.change.baseline) == (guilty, guilty - 1)
    assert jobs[-1] == (guilty, guilty - 1)
    assert len(jobs) <= 1 + 2 * 4
    assert guilty not in {p for low, high in finding.cleared for p in range(low + 1, high + 1)}


def test_an_innocent_range_takes_one_job_and_is_cleared():
    finding, jobs = run(Investigation("g", 10, 26), set())
    assert (finding.change, finding.found, finding.cleared) == (None, None, ((10, 26),))
    assert jobs == [(26, 10)]


def test_both_halves_cleared_accuse_nobody():
    search = advance(Investigation("g", 0, 2), Outcome(2, 0, **SLOWER))
    search = advance(search, Outcome(1, 0, Verdict.UNCHANGED))
    finding = advance(search, Outcome(2, 1, Verdict.UNCHANGED))
    assert finding.change is None
    assert (finding.found.candidate, finding.found.baseline) == (2, 0)


def test_the_later_half_is_measured_and_not_concluded():
    search = advance(Investigation("g", 0, 2), Outcome(2, 0, **SLOWER))
    assert advance(search, Outcome(1, 0, Verdict.UNCHANGED)).request == Request(2, 1)


@pytest.mark.parametrize("verdict", [Verdict.THROTTLED, Verdict.INCONCLUSIVE, Verdict.ENVIRONMENT])
def test_an_undecided_job_is_asked_for_once_more(verdict):
    again = advance(Investigation("g", 4, 5), Outcome(5, 4, verdict))
    assert again.request == Request(5, 4)
    finding = advance(again, Outcome(5, 4, verdict))
    assert (finding.change, finding.unavailable, finding.cleared) == (None, ((4, 5),), ())


@pytest.mark.parametrize("verdict", [Verdict.NOT_COMPARABLE, Verdict.FAILED])
def test_a_job_that_cannot_run_is_not_asked_for_again(verdict):
    finding = advance(Investigation("g", 4, 5), Outcome(5, 4, verdict))
    assert (finding.change, finding.unavailable) == (None, ((4, 5),))


def test_a_commit_that_cannot_be_built_leaves_the_smallest_proven_range():
    finding, _ = run(Investigation("g", 0, 4), {2}, missing={1})
    assert finding.change is None
    assert (finding.found.candidate, finding.found.baseline) == (2, 0)


def test_two_guilty_commits_the_earlier_is_found():
    assert run(Investigation("g", 0, 8), {3, 7})[0].change.candidate == 3


def test_a_search_survives_json():
    search = advance(Investigation("g", 0, 9), Outcome(9, 0, **SLOWER))
    assert Investigation.from_dict(search.to_dict()) == search
    assert Investigation.from_dict(Investigation("g", 1, 2).to_dict()) == Investigation("g", 1, 2)


def test_bad_outcomes_are_named():
    with pytest.raises(ValueError, match="outcome: expected 5 against 4, got 6 against 4"):
        advance(Investigation("g", 4, 5), Outcome(6, 4, Verdict.UNCHANGED))
    with pytest.raises(ValueError, match="baseline: expected a position from 0"):
        Outcome(3, 3, Verdict.UNCHANGED)
    with pytest.raises(ValueError, match="effect: expected a number with verdict regressed"):
        Outcome(3, 2, Verdict.REGRESSED)
