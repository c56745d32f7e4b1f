"""The tuning of CUDA policies, with a CPU in the place of the GPU and times that a test makes up."""

import json
import math
import os
import subprocess
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from s2attn import AttentionProblem
from s2attn.benchmarks import rounds, tune
from s2attn.benchmarks.__main__ import main
from s2attn.benchmarks.cases import Case
from s2attn.benchmarks.ratios import Ratio
from s2attn.benchmarks.suite import all_cases
from s2attn.benchmarks.telemetry import Clock
from s2attn.benchmarks.tune import Tuning, is_tunable, run_tuning
from s2attn.benchmarks.tunings import Row, Site, Timing, Trial, Where, combine, decide, fastest, is_gain, make_rows

REPOSITORY = Path(__file__).parents[4]
CHOSEN, FASTER, SLOWER = "64 4 2 4", "64 2 2 8", "64 4 4 4"
FEW, MANY = 8192, 8193  # octets of owners
WHERE = Where(90, "NVIDIA H200", "2026-11-30", "2.11.0", "python -m s2attn.benchmarks tune '--cases=full/cuda/*'")


def ratio(median: float, spread: float = 0.005) -> Ratio:
    return Ratio(median, median - spread, median + spread, 0.978)


def timing(case: Case, width: int, octets: int = MANY, **ratios: float) -> Timing:
    names = {"faster": FASTER, "slower": SLOWER, "gather": "gather"}
    site = Site(case, "forward", width, octets, CHOSEN)
    return Timing(site, tuple(Trial(names[name], ratio(value)) for name, value in ratios.items()))


def confirmed(site: Site, name: str) -> Trial:
    return Trial(name, ratio(1.04))


def refuted(site: Site, name: str) -> Trial:
    return Trial(name, ratio(1.0))


@pytest.fixture
def case(make_case) -> Case:
    return make_case()


def test_ratios_are_combined_by_their_geometric_means() -> None:
    assert combine([Ratio(2.0, 1.0, 4.0, 0.98), Ratio(0.5, 0.25, 1.0, 0.95)]) == pytest.approx((1.0, 0.5, 2.0, 0.95))


@pytest.mark.parametrize(
    ("ratios", "gain"),
    [
        ([], False),
        ([ratio(1.03)], True),
        ([ratio(1.03, spread=0.05)], False),  # within noise
        ([ratio(1.012)], False),  # certain, but no reason for a row
        ([ratio(1.2), ratio(0.999)], True),  # perhaps slower somewhere
        ([ratio(1.2), ratio(0.98)], False),  # slower somewhere for certain
        ([ratio(0.9), ratio(0.9)], False),
    ],
)
def test_a_gain_is_certain_and_nowhere_a_loss(ratios: list[Ratio], gain: bool) -> None:
    assert is_gain(ratios) is gain


def test_swapping_the_sides_swaps_gain_and_loss() -> None:
    gained = ratio(1.05)
    lost = Ratio(1 / gained.median, 1 / gained.high, 1 / gained.low, gained.coverage)
    assert is_gain([gained])
    assert not is_gain([lost])


def test_the_fastest_candidate_of_all_sites_is_taken(case: Case) -> None:
    assert fastest([timing(case, 3, faster=1.05, slower=0.9, gather=1.02)]) == FASTER
    assert fastest([timing(case, 3, faster=1.001, slower=0.9)]) is None
    # one that was not timed everywhere, or is wrong somewhere, is none
    assert fastest([timing(case, 3, faster=1.05, gather=1.03), timing(case, 3, gather=1.03)]) == "gather"
    wrong = Timing(
        Site(case, "forward", 3, MANY, CHOSEN), (Trial(FASTER, ratio(1.5), "y: relative error 1 exceeds 1e-05"),)
    )
    assert fastest([wrong]) is None


def test_the_best_must_win_once_more(case: Case) -> None:
    timings = [timing(case, 3, faster=1.05, slower=0.9)]
    assert decide(timings, confirmed).policy == FASTER
    assert decide(timings, confirmed).timings[0].trials == (Trial(FASTER, ratio(1.04)),)
    kept = decide(timings, refuted)
    assert kept.policy == CHOSEN
    assert kept.timings == tuple(timings)


def test_a_row_spans_the_widths_that_agree(case: Case) -> None:
    timings = [
        timing(case, 13, faster=0.95),
        timing(case, 3, faster=1.05),
        timing(case, 7, faster=1.04),
        timing(case, 3, faster=1.06),
    ]
    narrow, wide = make_rows(timings, WHERE, confirmed)
    assert (narrow.policy, narrow.site.width, narrow.verdict, len(narrow.timings)) == (FASTER, 7, "change", 3)
    assert (wide.policy, wide.site.width, wide.verdict, len(wide.timings)) == (CHOSEN, 13, "keep", 1)
    assert "3 cases: 1.040x (1.035 .. 1.045) as fast as 64 4 2 4" in narrow.figure
    assert "of 1 others the nearest, 64 2 2 8, is 0.950x (0.945 .. 0.955) as fast" in wide.figure


def test_passes_and_dtypes_have_rows_of_their_own(case: Case) -> None:
    timings = [timing(case, 3, faster=1.05), timing(replace(case, dtype="bfloat16"), 3, faster=1.05)]
    timings.append(Timing(replace(timings[0].site, pass_name="backward_key"), timings[0].trials))
    timings.append(Timing(replace(timings[0].site, chosen=""), ()))  # no tile serves it
    found = {(row.site.pass_name, row.site.case.dtype) for row in make_rows(timings, WHERE, confirmed)}
    assert found == {("forward", "float32"), ("forward", "bfloat16"), ("backward_key", "float32")}


def test_a_row_without_another_candidate_says_so(case: Case) -> None:
    failed = Timing(Site(case, "forward", 3, MANY, CHOSEN), (Trial(FASTER, None, "out of registers"),))
    (row,) = make_rows([failed], WHERE, confirmed)
    assert (row.verdict, row.figure) == ("keep", "torch 2.11.0, 1 cases: no other candidate ran")


def test_few_octets_have_rows_of_their_own(case: Case) -> None:
    found = [timing(case, width, octets, faster=1.05) for width, octets in ((3, MANY), (3, FEW), (7, MANY), (7, FEW))]
    few, many = make_rows(found, WHERE, confirmed)
    assert [(row.site.width, row.site.few, len(row.timings)) for row in (few, many)] == [(7, True, 2), (7, False, 2)]


@pytest.mark.parametrize(("octets", "most"), [(FEW, "kFewOctets"), (MANY, "kAnyOctets")])
@pytest.mark.parametrize("policy", [CHOSEN, FASTER, "gather"])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_rows_are_what_the_table_takes(
    case: Case, policy: str, dtype: str, octets: int, most: str, tmp_path: Path
) -> None:
    found = timing(replace(case, dtype=dtype), 7, octets, faster=1.05, gather=1.05)
    row = Row(policy, (found,), WHERE._replace(command='a "quoted" command'))
    (tmp_path / "row.cpp").write_text(
        '#include "csrc/cuda/tunings.h"\nusing namespace s2attn::cuda;\n'
        f"constexpr TileRow kRows[] = {{{row.cpp}}};\n"
        "static_assert(kRows[0].scope.architecture == 90 && kRows[0].scope.width == 7 && kRows[0].channels == 64);\n"
        f"static_assert(kRows[0].scope.octets == {most} && {most} >= {octets} && kFewOctets == {FEW});\n"
        f"static_assert(kRows[0].policy.exists() == {'false' if policy == 'gather' else 'true'});\n"
        "static_assert(kRows[0].pass == Pass::forward && kRows[0].measurement.exists());\n"
    )
    command = ("g++", "-std=c++20", "-fsyntax-only", f"-I{REPOSITORY}", str(tmp_path / "row.cpp"))
    finished = subprocess.run(command, capture_output=True, text=True)
    assert finished.returncode == 0, finished.stderr


SPEEDS = {FASTER: 1.1, SLOWER: 0.8, "gather": 0.3, CHOSEN: 1.0}


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, tuple[bool, ...]]]:
    """A CPU that takes as long as `SPEEDS` says for what is asked of it; returns what was asked, by sample."""
    asked: list[tuple[str, tuple[bool, ...]]] = []

    def sample(timed: tune.Candidate, record, clock: Clock, index: int) -> None:
        timed.call(index)
        pass_name, _, policy = os.environ[tune.REQUEST_VARIABLE].partition(" ")
        asked.append((f"{pass_name} {policy}", timed.workload.operator.needs))
        record.samples.append(1.0 / SPEEDS[policy] + 1e-3 * index)

    monkeypatch.setattr(rounds, "sample_cpu", sample)
    monkeypatch.setattr(tune, "_load", lambda command: WHERE._replace(command=command))
    monkeypatch.setattr(tune, "describe_gpu", lambda: {"gpu_name": "NVIDIA H200"})
    names = [CHOSEN, FASTER, SLOWER, "gather"]
    monkeypatch.setattr(torch.ops.s2attn, "cuda_candidates", lambda *problem: names, raising=False)
    monkeypatch.delenv(tune.REQUEST_VARIABLE, raising=False)
    return asked


def tuned(*cases: Case, count: int = 6) -> Tuning:
    return run_tuning(cases, rounds=count, clock=Clock(), command="tune")


def test_every_candidate_takes_turns_with_the_choice(stand_in, make_case) -> None:
    found = tuned(make_case())
    (row,) = found.rows
    assert (row.policy, row.verdict, row.site.width) == (FASTER, "change", 3)
    trials = {trial.candidate: trial.ratio.median for trial in found.timings[0].trials}
    assert trials == pytest.approx({FASTER: 1.1, SLOWER: 0.8, "gather": 0.3}, rel=1e-2)
    both = [f"forward {FASTER}", f"forward {CHOSEN}"]
    assert [name for name, _ in stand_in[:8]] == [*both, *both[::-1], *both[::-1], *both]
    # three candidates, and the best once more
    assert len(stand_in) == 4 * 6 * 4
    assert tune.REQUEST_VARIABLE not in os.environ


def test_no_request_reaches_the_next_case(stand_in, make_case, monkeypatch: pytest.MonkeyPatch) -> None:
    prepare, requests = tune.prepare, []

    def watched(case: Case) -> object:
        requests.append(os.environ.get(tune.REQUEST_VARIABLE))  # preparing names the policy
        return prepare(case)

    monkeypatch.setattr(tune, "prepare", watched)
    tuned(make_case(), make_case(dtype="bfloat16"))
    assert requests == [None] * 4  # two cases, and both once more


def test_a_backward_is_tuned_by_the_gradients_of_each_pass(stand_in, make_case) -> None:
    found = tuned(make_case(operation="backward"))
    assert {(row.site.pass_name, row.policy) for row in found.rows} == {
        ("backward_query", FASTER),
        ("backward_key", FASTER),
    }
    needs = {(name.split()[0], needed) for name, needed in stand_in}
    assert needs == {("backward_query", (True, False, False)), ("backward_key", (False, True, True))}


def test_a_candidate_with_wrong_numbers_is_never_taken(
    stand_in, make_case, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    outputs = tune.Candidate.outputs

    def wrong(self: tune.Candidate) -> dict[str, torch.Tensor]:
        factor = 1.1 if FASTER in self.request else 1.0
        return {name: factor * value for name, value in outputs(self).items()}

    monkeypatch.setattr(tune.Candidate, "outputs", wrong)
    found = tuned(make_case())
    assert found.rows[0].verdict == "keep"
    (trial,) = (trial for trial in found.timings[0].trials if trial.candidate == FASTER)
    assert "y: relative error 0.1 exceeds" in trial.error
    assert "y: relative error 0.1 exceeds" in capsys.readouterr().err


def test_a_case_that_cannot_run_does_not_keep_the_others(stand_in, make_case) -> None:
    broken = replace(make_case(channels_in=8), psi_nnz=1)
    found = tuned(broken, make_case())
    assert list(found.errors) == [broken.name]
    assert len(found.rows) == 1


@pytest.mark.parametrize(
    ("in_shape", "out_shape", "by_query", "by_key"),
    [
        ((180, 360), (180, 360), 4050, 4050),
        ((180, 360), (360, 720), 16200, 4050),  # owners in two classes of longitudes: as many octets as points ask for
        ((5, 12), (5, 12), 6, 6),  # what is left of rows and columns is a tile, too
    ],
)
def test_octets_are_those_that_a_policy_is_chosen_by(
    make_case, in_shape: tuple[int, int], out_shape: tuple[int, int], by_query: int, by_key: int
) -> None:
    case = make_case(in_shape=in_shape, out_shape=out_shape, heads=2, channels_in=8, channels_out=8, batch=3)
    problem = AttentionProblem(in_shape, out_shape, heads=2, channels_in=8, channels_out=8, theta_cutoff=0.6)
    workload = SimpleNamespace(case=case, problem=problem)
    assert tune._octets(workload, "backward_query") == tune._octets(workload, "forward") == 6 * by_query
    assert tune._octets(workload, "backward_key") == 6 * by_key


def test_a_problem_without_a_tile_has_no_row(stand_in, make_case, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    monkeypatch.setattr(torch.ops.s2attn, "cuda_candidates", lambda *problem: [], raising=False)
    found = tuned(make_case())
    assert found.rows == ()
    assert "forward: no tile serves it" in capsys.readouterr().out


def test_the_command_writes_rows_and_a_document(
    stand_in, make_case, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys
) -> None:
    here = run_tuning
    monkeypatch.setattr(
        "s2attn.benchmarks.__main__.run_tuning", lambda cases, **options: here([make_case()], **options)
    )
    target = tmp_path / "tuning.json"
    assert main(["tune", "--cases", "cuda/forward/*", "--rounds", "6", "--out", str(target)]) == 0
    document = json.loads(target.read_text())
    (row,) = document["rows"]
    assert row["command"] == "python -m s2attn.benchmarks tune '--cases=cuda/forward/*'"
    assert (row["gpu"], row["verdict"], row["torch"]) == ("NVIDIA H200", "change", "2.11.0")
    assert row["cpp"] in capsys.readouterr().out
    assert [trial["candidate"] for trial in document["timings"][0]["trials"]] == [FASTER, SLOWER, "gather"]
    assert all(math.isfinite(trial["ratio"]["median"]) for trial in document["timings"][0]["trials"])


def test_without_a_gpu_the_command_says_so(monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert main(["tune", "--cases", "cuda/*"]) == 2
    assert "tune: torch sees no GPU here" in capsys.readouterr().err


def test_requests_that_make_no_sense_are_exit_code_2(capsys) -> None:
    assert main(["tune", "--cases", "nothing/*"]) == 2
    assert main(["tune", "--cases", "full/cuda/module-*"]) == 2
    assert "has a policy to choose" in capsys.readouterr().err


def test_only_the_operator_of_neighborhood_attention_is_tuned() -> None:
    kinds = {(case.operation, case.is_global) for case in all_cases() if is_tunable(case)}
    assert kinds == {("forward", False), ("backward", False)}
