import random
import statistics

import pytest

from s2attn.benchmarks.ratios import ratio_of_rounds


def test_a_round_is_two_samples_of_each() -> None:
    found = ratio_of_rounds([1.0, 3.0, 2.0, 2.0, 1.0, 1.0], [4.0, 4.0, 4.0, 8.0, 2.0, 8.0])
    assert found.median == pytest.approx(3.0)
    assert (found.low, found.high) == pytest.approx((2.0, 5.0))
    # three rounds: their extremes miss the median with a probability of 1/4
    assert found.coverage == pytest.approx(0.75)


@pytest.mark.parametrize(("rounds", "rank"), [(5, 1), (6, 1), (8, 1), (9, 2), (10, 2), (20, 6)])
def test_the_interval_is_the_tables_of_order_statistics(rounds: int, rank: int) -> None:
    theirs = [float(value) for index in random.Random(1).sample(range(rounds), rounds) for value in (index + 1,) * 2]
    found = ratio_of_rounds([1.0] * (2 * rounds), theirs)
    assert (found.low, found.high) == (rank, rounds + 1 - rank)
    assert found.median == statistics.median(range(1, rounds + 1))
    assert found.coverage >= 0.95 or rounds < 6


def test_the_interval_covers_the_median_as_often_as_it_says() -> None:
    draw = random.Random(7)
    covered = 0
    for _ in range(2000):
        found = ratio_of_rounds([1.0] * 20, [draw.lognormvariate(0.0, 0.3) for _ in range(10) for _ in range(2)])
        covered += found.low <= 1.0218 <= found.high  # the median of the mean of two, from 5 10^6 draws
    assert 0.96 < covered / 2000 < 0.995  # 0.9785 with ranks 2 and 9


def test_swapping_the_sides_inverts_the_ratio() -> None:
    draw = random.Random(3)
    a, b = ([draw.uniform(1.0, 2.0) for _ in range(18)] for _ in range(2))
    there, back = ratio_of_rounds(a, b), ratio_of_rounds(b, a)
    assert there.median == pytest.approx(1 / back.median)
    assert (there.low, there.high) == pytest.approx((1 / back.high, 1 / back.low))


@pytest.mark.parametrize(("ours", "theirs"), [([], []), ([1.0], [1.0]), ([1.0, 1.0], [1.0] * 4)])
def test_samples_that_make_no_rounds_are_refused(ours: list[float], theirs: list[float]) -> None:
    with pytest.raises(ValueError, match="expected pairs of both"):
        ratio_of_rounds(ours, theirs)
