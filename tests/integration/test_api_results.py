"""What was measured and judged, as the API shows it, on SQLite and on PostgreSQL."""

from __future__ import annotations

import math
import struct
from typing import Any
from uuid import UUID, uuid4

import pytest
from starlette.testclient import TestClient

from service.db import Database
from service.models import ArmRun, Build, Case, JobEvent, KernelProfile, Measurement, Point, SampleBlock, Verdict

API = "/api/v1"


def test_a_measurement_with_builds_and_environments(client: TestClient, database: Database, history: Any) -> None:
    with database.transaction() as session:
        for key, commit in (("key-A", history.commits[0]), ("other", history.commits[2])):
            session.add(
                Build(
                    key=key,
                    commit_id=commit.id,
                    device_class="cpu",
                    status="ok",
                    elapsed_s=3.5,
                    log="cc\nok",
                    resources={},
                )
            )
    found = client.get(f"{API}/measurements/{history.measurement.id}").json()
    assert found["job_id"] == str(history.job.id)
    assert found["candidate"]["sha"] == history.commits[2].sha
    assert found["baseline"]["subject"] == "subject 1 <b>"
    assert found["pairs_done"] == 3
    assert [one["environment"]["build_key"] for one in found["environments"]] == ["key-A", "key-B"]
    # The baseline's build is one that another commit with the same tree had made; the candidate's, its commit's newest.
    assert [(one["arm"], one["key"], one["commit"]) for one in found["builds"]] == [
        ("A", "key-A", history.commits[0].sha),
        ("B", "other", history.commits[2].sha),
    ]
    assert found["builds"][0]["log"] == "cc\nok"


def test_pairs_carry_medians_and_admission(client: TestClient, history: Any) -> None:
    pairs = client.get(f"{API}/measurements/{history.measurement.id}/pairs").json()["pairs"]
    assert [(pair["index"], pair["order"]) for pair in pairs] == [(0, "AB"), (1, "BA"), (2, "AB")]
    for pair in pairs:
        backward, forward = pair["cases"]
        assert (backward["case"], forward["case"]) == ("cpu/backward/self", "cpu/forward/self")
        assert forward["before_ms"] == pytest.approx(2.002)
        assert forward["after_ms"] == pytest.approx(2.202)
        assert forward["log_ratio"] == pytest.approx(math.log(2.202 / 2.002))
        assert forward["admitted"] is (pair["index"] != 1)
        assert forward["reasons"] == (["steal"] if pair["index"] == 1 else [])


def add_run(session: Any, history: Any, purpose: str, index: int, arm: str, **times: float) -> None:
    """Store a process of another purpose whose cases all have the same sample."""
    run = ArmRun(
        measurement_id=history.measurement.id,
        attempt=1,
        purpose=purpose,
        pair_index=index,
        arm=arm,
        order="BA",
        commit_id=history.commits[1].id,
        protocol=1,
        document_sha256="0" * 64,
        document=b"",
        environment={"build_key": "of no arm"},
        wall_s=1.0,
        log="",
    )
    session.add(run)
    session.flush()
    for name, value in times.items():
        case = session.query(Case).filter(Case.name.endswith(name)).one_or_none()
        if case is None:
            case = Case(name=f"canary/cpu/{name}", version="c1", group="canary", definition={})
            session.add(case)
            session.flush()
        block = {"metric": "time", "unit": "ms", "count": 1, "samples": struct.pack("<d", value)}
        session.add(SampleBlock(arm_run_id=run.id, case_id=case.id, **block))


def test_fresh_pairs_and_canaries_stand_beside_the_pairs(client: TestClient, database: Database, history: Any) -> None:
    url = f"{API}/measurements/{history.measurement.id}"
    before = client.get(url).json()
    with database.transaction() as session:
        for arm, factor in (("A", 1.0), ("B", 1.1)):
            add_run(session, history, "confirm", 3, arm, **{"forward/self": 2.0 * factor})
            add_run(session, history, "canary", 3, arm, gemm=1.0, copy=2.0 * factor)
            add_run(session, history, "canary", 0, arm, gemm=1.0)
    pairs = client.get(f"{url}/pairs").json()["pairs"]
    assert [(pair["index"], pair["purpose"]) for pair in pairs] == [
        (0, "pair"),
        (1, "pair"),
        (2, "pair"),
        (3, "confirm"),
    ]
    assert [case["case"] for case in pairs[3]["cases"]] == ["cpu/forward/self"]
    assert [[case["case"] for case in pair["canaries"]] for pair in pairs] == [
        ["canary/cpu/gemm"],
        [],
        [],
        ["canary/cpu/copy", "canary/cpu/gemm"],
    ]
    assert pairs[3]["canaries"][0]["log_ratio"] == pytest.approx(math.log(1.1))
    samples = client.get(f"{url}/samples", params={"case": "canary/cpu/copy"}).json()["blocks"]
    assert [(one["arm"], one["samples"]) for one in samples] == [("A", [2.0]), ("B", [pytest.approx(2.2)])]
    after = client.get(url).json()
    assert (after["environments"], after["pairs_done"]) == (before["environments"], 3)


def test_the_evidence_of_a_verdict_is_given_whole(client: TestClient, database: Database, history: Any) -> None:
    url = f"{API}/measurements/{history.measurement.id}"
    fresh = {"index": 3, "admitted": False, "reasons": ["throttle_flagged"]}
    with database.transaction() as session:
        for arm in "AB":
            add_run(session, history, "confirm", 3, arm, **{"forward/self": 2.0})
        for verdict in session.query(Verdict).filter(Verdict.measurement_id == history.measurement.id):
            verdict.evidence = {**verdict.evidence, "confirmation": {"pairs": [fresh]}}
    found = client.get(f"{url}/evidence", params={"case": "cpu/forward/self"}).json()
    assert (found["case"], found["evidence"]["confirmation"]) == ("cpu/forward/self", {"pairs": [fresh]})
    assert [pair["index"] for pair in found["evidence"]["pairs"]] == [0, 1, 2]
    shown = client.get(f"{url}/pairs").json()["pairs"][3]["cases"][0]
    assert (shown["admitted"], shown["reasons"]) == (False, ["throttle_flagged"])
    assert client.get(f"{url}/evidence", params={"case": "no/such"}).json()["code"] == "unknown_case"
    missing = client.get(f"{API}/measurements/{uuid4()}/evidence", params={"case": "x"})
    assert (missing.status_code, missing.json()["code"]) == (404, "unknown_measurement")


def test_pairs_of_a_measurement_at_work(client: TestClient, database: Database, history: Any) -> None:
    with database.transaction() as session:
        for verdict in session.query(Verdict).filter(Verdict.measurement_id == history.measurement.id):
            session.delete(verdict)
        payload = {"pair": 0, "order": "AB", "admitted": {"cpu/forward/self": False}}
        session.add(
            JobEvent(job_id=history.job.id, measurement_id=history.measurement.id, kind="pair", payload=payload)
        )
    pairs = client.get(f"{API}/measurements/{history.measurement.id}/pairs").json()["pairs"]
    admitted = [[case["admitted"] for case in pair["cases"]] for pair in pairs]
    assert admitted == [[None, False], [None, None], [None, None]]


def test_only_the_last_attempt_counts(client: TestClient, database: Database, history: Any) -> None:
    with database.transaction() as session:
        session.get_one(Measurement, history.measurement.id).attempt = 2
        history._session = session
        for arm in "AB":
            history._run(0, "AB", arm, attempt=2, scale=3.0)
        history._run(1, "BA", "B", attempt=2, scale=3.0)  # half a pair
    pairs = client.get(f"{API}/measurements/{history.measurement.id}/pairs").json()["pairs"]
    assert [pair["index"] for pair in pairs] == [0, 1]
    assert pairs[0]["cases"][1]["before_ms"] == pytest.approx(6.002)
    assert pairs[1]["cases"][1]["before_ms"] is None
    assert pairs[1]["cases"][1]["log_ratio"] is None
    job = client.get(f"{API}/jobs/{history.job.id}").json()
    assert job["measurements"][0]["progress"] == {"pairs_done": 1, "budget": 12}
    assert client.get(f"{API}/measurements/{history.measurement.id}").json()["pairs_done"] == 1


def test_raw_samples(client: TestClient, history: Any) -> None:
    path = f"{API}/measurements/{history.measurement.id}/samples"
    found = client.get(path, params={"case": "cpu/forward/self"}).json()
    assert len(found["blocks"]) == 6
    first = found["blocks"][0]
    assert (first["pair"], first["arm"], first["order"], first["unit"]) == (0, "A", "AB", "ms")
    assert first["samples"] == pytest.approx([2.0, 2.001, 2.002, 2.003, 2.004])
    assert client.get(path, params={"case": "nothing"}).json()["code"] == "unknown_case"
    for query in ("", "case=", "case=%00", "case=a&metric=speed", "case=a&unknown=1", "case=" + "x" * 300):
        assert client.get(f"{path}?{query}").status_code == 422, query


def profile_document(**kernels: dict[str, Any]) -> dict[str, Any]:
    entries = [
        {"name": name, "kind": "kernel", "calls": 1.0, "share": 0.5, "time_ms": 1.0, "registers": 40} | values
        for name, values in kernels.items()
    ]
    case = {"name": "cpu/forward/self", "status": "ok", "time_ms": 1.0, "kernels": entries}
    return {"source": "fake", "calls": 10, "counters": {"cases": 0, "reason": "no ncu"}, "cases": [case]}


def test_kernels_side_by_side(client: TestClient, database: Database, history: Any) -> None:
    path = f"{API}/measurements/{history.measurement.id}/kernels"
    assert client.get(path).json() == {"measurement_id": str(history.measurement.id), "profiles": [], "rows": []}
    before = profile_document(gather={"time_ms": 2.0, "sass_bytes": 4096}, old={})
    after = profile_document(gather={"time_ms": 3.0, "occupancy": 0.5, "registers": 48}, fresh={"time_ms": 0.5})
    keys = {"measurement_id": history.measurement.id, "status": "done", "reason": None, "wall_s": 2.0}
    with database.transaction() as session:
        for arm, commit, document in (("A", 1, before), ("B", 2, after)):
            commit_id = history.commits[commit].id
            session.add(KernelProfile(**keys, attempt=1, arm=arm, commit_id=commit_id, document=document))
        other = {"attempt": 7, "arm": "A", "commit_id": history.commits[1].id, "document": None}
        session.add(KernelProfile(**(keys | other)))
    found = client.get(path).json()
    assert [(one["arm"], one["commit"], one["status"]) for one in found["profiles"]] == [
        ("A", history.commits[1].sha, "done"),
        ("B", history.commits[2].sha, "done"),
    ]
    assert (found["profiles"][0]["calls"], found["profiles"][0]["counters_reason"]) == (10, "no ncu")
    gather, old, fresh = found["rows"]
    assert (gather["kernel"], gather["effect"]) == ("gather", 0.5)
    assert (gather["before"]["sass_bytes"], gather["after"]["sass_bytes"]) == (4096, None)
    assert (gather["before"]["registers"], gather["after"]["registers"]) == (40, 48)
    assert (old["kernel"], old["after"], old["effect"]) == ("old", None, None)
    assert (fresh["kernel"], fresh["before"]) == ("fresh", None)


def test_a_profile_that_failed_says_why(client: TestClient, database: Database, history: Any) -> None:
    with database.transaction() as session:
        session.add(
            KernelProfile(
                measurement_id=history.measurement.id,
                attempt=1,
                arm="B",
                commit_id=history.commits[2].id,
                status="failed",
                reason="no end within 180 s",
                wall_s=180.0,
                document=None,
            )
        )
    found = client.get(f"{API}/measurements/{history.measurement.id}/kernels").json()
    assert found["rows"] == []
    assert (found["profiles"][0]["status"], found["profiles"][0]["reason"]) == ("failed", "no end within 180 s")


def test_measurements_that_do_not_exist(client: TestClient) -> None:
    for path in ("", "/pairs", "/kernels", "/samples?case=a"):
        response = client.get(f"{API}/measurements/{uuid4()}{path}")
        assert (response.status_code, response.json()["code"]) == (404, "unknown_measurement")
        assert client.get(f"{API}/measurements/zero{path}").status_code == 422


def test_the_verdict_table_of_a_job(client: TestClient, history: Any) -> None:
    found = client.get(f"{API}/jobs/{history.job.id}/verdicts").json()
    assert found["state"] == "done"
    assert [row["case"] for row in found["rows"]] == ["cpu/backward/self", "cpu/forward/self"]
    row = found["rows"][1]
    assert (row["verdict"], row["effect"], row["unit"]) == ("regressed", 0.1, "ms")
    assert row["group"] == "cpu.forward"
    assert row["reasons"] == [{"code": "beyond_margin", "detail": "slower than the margin allows"}]
    assert row["measurement_id"] == str(history.measurement.id)
    assert row["series_id"] == str(history.series[0].id)


def test_verdicts_over_jobs(client: TestClient, history: Any) -> None:
    everything = client.get(f"{API}/verdicts").json()
    assert [one["verdict"] for one in everything["items"]] == ["regressed", "regressed", "unchanged"]
    assert everything["items"][2]["commit"] == history.commits[1].sha
    assert everything["items"][2]["subject"] == "subject 1 <b>"

    def ids(**query: Any) -> list[str]:
        return [one["id"] for one in client.get(f"{API}/verdicts", params=query).json()["items"]]

    every = ids()
    assert ids(verdict="unchanged") == every[2:]
    assert ids(case="cpu/forward/self") == every[1:]
    assert ids(commit=history.commits[2].sha[:7]) == every[:2]
    assert ids(device_class="gpu:NVIDIA H200") == ids(repository="other") == []
    first = client.get(f"{API}/verdicts", params={"limit": 2}).json()
    assert [one["id"] for one in first["items"]] == every[:2]
    assert ids(limit=2, cursor=first["next_cursor"]) == every[2:]
    for query in ("verdict=NO!", "case=%00", "device_class=%00", "limit=1e3", "unknown=1"):
        assert client.get(f"{API}/verdicts?{query}").status_code == 422, query


def test_comparing_two_commits(client: TestClient, history: Any) -> None:
    def compare(base: str, head: str) -> Any:
        return client.get(f"{API}/compare", params={"repository": "kernels", "base": base, "head": head})

    found = compare(history.commits[1].sha[:9], "main").json()
    assert found["base"]["sha"] == history.commits[1].sha
    assert found["head"]["subject"] == "subject 2 <b>"
    assert found["job_ids"] == [str(history.job.id)]
    assert [row["verdict"] for row in found["rows"]] == ["regressed", "regressed"]
    assert found["apart"] == []
    never = compare(history.commits[0].sha, "main").json()  # never measured against each other
    assert never["rows"] == []
    (apart,) = never["apart"]
    assert (apart["case"], apart["verdict"], apart["reasons"][0]["code"]) == (
        "cpu/forward/self",
        "not_comparable",
        "measured_apart",
    )
    assert apart["before"] > 0
    assert apart["after"] > 0
    assert (apart["effect"], apart["interval_low"], apart["minimum_detectable_effect"]) == (None, None, None)
    assert compare("nowhere", "main").status_code == 404
    assert compare("-x", "main").status_code == 422
    assert compare("blob", "main").json()["code"] == "not_a_commit"
    assert client.get(f"{API}/compare?repository=other&base=a&head=b").json()["code"] == "unknown_repository"
    assert client.get(f"{API}/compare?repository=kernels&base=main").status_code == 422


def test_comparing_commits_that_the_repository_has_dropped(
    client: TestClient, database: Database, history: Any, tmp_path: Any
) -> None:
    with database.transaction() as session:
        session.get_one(type(history.repository), history.repository.id).url = str(tmp_path / "gone")
    base, head = history.commits[1].sha, history.commits[2].sha[:12].upper()
    found = client.get(f"{API}/compare", params={"repository": "kernels", "base": base, "head": head})
    assert len(found.json()["rows"]) == 2
    assert client.get(f"{API}/compare?repository=kernels&base=main&head={head}").status_code == 404


def test_a_second_measurement_replaces_the_first_in_a_comparison(
    client: TestClient, database: Database, history: Any
) -> None:
    with database.transaction() as session:
        history._session = session
        job, measurement = history._measurement(history.commits[2], history.commits[1], history.job.state)
        history._judge(measurement, history.case_rows[0], "unchanged", 0.0)
        job_id = str(job.id)
    params = {"repository": "kernels", "base": history.commits[1].sha, "head": history.commits[2].sha}
    found = client.get(f"{API}/compare", params=params).json()
    assert [row["verdict"] for row in found["rows"]] == ["regressed", "unchanged"]
    assert found["job_ids"] == [job_id, str(history.job.id)]


def test_series(client: TestClient, history: Any) -> None:
    found = client.get(f"{API}/series").json()
    assert [one["case"] for one in found["items"]] == ["cpu/backward/self", "cpu/forward/self"]
    assert [one["points"] for one in found["items"]] == [2, 4]
    assert found["items"][1]["last_at"] is not None
    assert client.get(f"{API}/series/{history.series[0].id}").json() == found["items"][1]
    first = client.get(f"{API}/series", params={"limit": 1}).json()
    second = client.get(f"{API}/series", params={"limit": 1, "cursor": first["next_cursor"]}).json()
    assert first["items"] + second["items"] == found["items"]
    assert second["next_cursor"] is None
    for query in ({"case": "nothing"}, {"repository": "other"}, {"device_class": "gpu:none"}):
        assert client.get(f"{API}/series", params=query).json()["items"] == []
    assert client.get(f"{API}/series?cursor=WyJhIiwiYiJd").status_code == 422
    assert client.get(f"{API}/series/{uuid4()}").json()["code"] == "unknown_series"
    assert client.get(f"{API}/series/{uuid4()}/points").status_code == 404


def test_points_and_their_etag(client: TestClient, database: Database, history: Any) -> None:
    path = f"{API}/series/{history.series[0].id}/points"
    response = client.get(path)
    found = response.json()
    assert found["unit"] == found["series"]["unit"] == "ms"
    shas = [commit.sha for commit in history.commits]
    assert [(point["commit"], point["arm"]) for point in found["points"]] == [
        (shas[0], "A"),
        (shas[1], "B"),
        (shas[1], "A"),
        (shas[2], "B"),
    ]
    assert [point["verdict"] for point in found["points"]] == [None, "unchanged", None, "regressed"]
    assert found["points"][3]["effect"] == 0.1
    assert found["points"][3]["job_id"] == str(history.job.id)
    etag = response.headers["etag"]
    for sent in (etag, f'"other", {etag}'):
        again = client.get(path, headers={"If-None-Match": sent})
        assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", etag)
    with database.transaction() as session:
        point = session.get_one(Point, session.query(Point.id).filter(Point.arm == "B").first()[0])
        point.value = 99.0  # corrected in place
    changed = client.get(path, headers={"If-None-Match": etag})
    assert changed.status_code == 200
    assert changed.headers["etag"] != etag


def test_the_overview(client: TestClient, database: Database, history: Any) -> None:
    rows = client.get(f"{API}/overview").json()["rows"]
    assert [row["case"] for row in rows] == ["cpu/backward/self", "cpu/forward/self"]
    row = rows[1]
    assert row["sparkline"] == pytest.approx([2.0, 2.2, 2.0, 2.2])
    assert row["last_value"] == pytest.approx(2.2)
    assert (row["last_verdict"], row["last_effect"]) == ("regressed", 0.1)
    assert row["last_commit"] == history.commits[2].sha
    assert row["last_subject"] == "subject 2 <b>"
    assert UUID(row["last_job_id"]) == history.job.id
    assert client.get(f"{API}/overview?repository=other").json() == {"rows": []}
    with database.transaction() as session:
        for point in session.query(Point).filter(Point.measurement_id == history.measurement.id, Point.arm == "B"):
            point.status = "throttled"
    row = client.get(f"{API}/overview").json()["rows"][1]
    assert row["sparkline"] == pytest.approx([2.0, 2.2, 2.0])
    assert row["last_value"] == pytest.approx(2.0)


def test_an_empty_service_has_empty_lists(client: TestClient) -> None:
    for path in ("repositories", "jobs", "verdicts", "series", "devices", "workers"):
        assert client.get(f"{API}/{path}").json()["items"] == []
    assert client.get(f"{API}/overview").json() == {"rows": []}
