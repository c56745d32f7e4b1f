import math

import numpy as np
import pytest

from service.stats.policy import JudgingPolicy
from service.stats.sequential import decide
from service.stats.usual import usual_of

POLICY = JudgingPolicy()


def evidence(make_pairs, seed, *, count=8, sd=0.004, clock=1980.0, **rejected):
    ratios = np.random.default_rng(seed).normal(0.0, sd, count)
    pairs = make_pairs(ratios, both={"sm_clock": clock} if clock else {})
    if rejected:
        pairs = make_pairs(ratios, both={"sm_clock": clock, **rejected})
    return decide(pairs, POLICY, final=True).evidence


def test_the_usual_is_the_median_of_earlier_jobs(make_pairs):
    jobs = [evidence(make_pairs, seed, clock=1900.0 + 20 * seed) for seed in range(5)]
    usual = usual_of(jobs)
    assert usual.clock_top == pytest.approx(1940.0)
    assert usual.clock_low is None
    sds = sorted(np.std([pair["log_ratio"] for pair in job["pairs"]], ddof=1) for job in jobs)
    assert usual.pair_sd == pytest.approx(sds[2])
    assert usual.scatter == pytest.approx(1.4826 * 0.005 * 0.5 * 15 / 14 * 1.5, rel=0.1)


def test_a_few_jobs_are_no_usual_and_rejected_pairs_do_not_count(make_pairs):
    good = [evidence(make_pairs, seed) for seed in range(4)]
    assert usual_of([]) is None
    assert usual_of(good) is None
    assert usual_of([*good, evidence(make_pairs, 5, throttled_share=1.0)]) is None
    assert usual_of([*good, evidence(make_pairs, 6, count=4)]) is None
    assert usual_of([*good, {}]) is None
    assert usual_of([*good, evidence(make_pairs, 7)]) is not None


def test_devices_without_clocks_have_no_top(make_pairs):
    usual = usual_of([evidence(make_pairs, seed, clock=None) for seed in range(6)])
    assert usual.clock_top is None
    assert usual.pair_sd > 0.0


def test_evidence_from_before_clocks_were_in_it_is_read(make_pairs):
    jobs = [evidence(make_pairs, seed) for seed in range(5)]
    for job in jobs:
        job["pairs"] = [{k: v for k, v in pair.items() if not k.startswith("clock")} for pair in job["pairs"]]
    assert usual_of(jobs).clock_top is None
    assert math.isfinite(usual_of(jobs).pair_sd)
