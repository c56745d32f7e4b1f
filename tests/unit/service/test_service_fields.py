"""The rules of request fields."""

from __future__ import annotations

import subprocess
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from service.fields import CaseGlob, DeviceClass, RefName, SingleLine, Text, ref_problem


def git_accepts(name: str) -> bool:
    """Ask git itself; it is asked about a branch below refs/heads, since a bare name of one part is no full ref."""
    if "\x00" in name:
        return False
    command = ["git", "check-ref-format", f"refs/heads/{name}"]
    return subprocess.run(command, check=False, capture_output=True).returncode == 0


@pytest.mark.parametrize(
    "name",
    ["main", "feature/x-1", "v1.0", "a@b", "refs/pull/7/head", "ветка", "0" * 40, "a.b/c_d+e=f", "HEAD", "x" * 250],
)
def test_good_refs(name: str) -> None:
    assert ref_problem(name) is None
    assert git_accepts(name)


@given(st.text(alphabet=st.sampled_from("ab-./@{}~^:?*[\\ \x00\x01\x7f\n\t-lock"), max_size=12))
def test_no_ref_passes_that_git_would_not_take(name: str) -> None:
    if ref_problem(name) is None:
        assert git_accepts(name)
        assert not name.startswith("-")


@given(st.text(max_size=300))
def test_what_passes_is_one_line_of_printable_text(name: str) -> None:
    if ref_problem(name) is None:
        assert 0 < len(name) <= 250
        assert name.isprintable()
        assert " " not in name


@pytest.mark.parametrize(
    "name", ["-x", "--exec=x", "a b", "a..b", "a@{1}", "@", "a:b", "a~1", "a^", "/a", "a/", "a.lock", ""]
)
def test_bad_refs_are_explained(name: str) -> None:
    assert ref_problem(name)


@pytest.mark.parametrize("name", ["cpu", "gpu:NVIDIA H200", "gpu:NVIDIA GeForce RTX 4090 (Ti)", "cpu:EPYC 9654"])
def test_device_classes(name: str) -> None:
    assert TypeAdapter(DeviceClass).validate_python(name) == name


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (DeviceClass, "gpu"),
        (DeviceClass, "gpu:"),
        (DeviceClass, "gpu: x"),
        (DeviceClass, "cpus"),
        (DeviceClass, "GPU:x"),
        (DeviceClass, "gpu:a;b"),
        (DeviceClass, "gpu:" + "x" * 120),
        (CaseGlob, ""),
        (CaseGlob, "-x"),
        (CaseGlob, "a b"),
        (CaseGlob, "ünï"),
        (RefName, "-x"),
        (SingleLine, "a\nb"),
        (SingleLine, "a\x00"),
        (SingleLine, "\ud800"),
        (Text, "a\x00"),
        (Text, "\ud800"),
    ],
)
def test_what_is_refused(kind: Any, value: str) -> None:
    with pytest.raises(ValidationError):
        TypeAdapter(kind).validate_python(value)


def test_text_may_have_lines() -> None:
    assert TypeAdapter(Text).validate_python("one\n\ttwo 🚀") == "one\n\ttwo 🚀"
