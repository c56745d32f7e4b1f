"""Tables kept on disk: read by later processes, never trusted when they are not what they should be."""

import importlib
import io
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from s2attn import Neighborhood
from s2attn.geometry import GridPair, key_table, query_table, stored
from s2attn.geometry.neighborhood import _build, _pattern

PAIRS = {
    "self": GridPair((12, 24), (12, 24)),
    "down": GridPair((12, 24), (6, 8), "legendre-gauss", "lobatto"),
    "up": GridPair((6, 8), (13, 24)),
}
CUTOFF = 0.5


@pytest.fixture(params=PAIRS.values(), ids=PAIRS.keys())
def grids(request: pytest.FixtureRequest) -> GridPair:
    return request.param


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("S2ATTN_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(stored, "_LEAST_POINTS", 1)
    forget()
    yield tmp_path / "cache"
    forget()


def forget() -> None:
    """Forget what this process has built, as a fresh one would."""
    _build.cache_clear()
    _pattern.cache_clear()


def build(grids: GridPair, cutoff: float = CUTOFF) -> Neighborhood:
    forget()
    return _build(grids, cutoff)


def files(cache: Path) -> list[Path]:
    return sorted(cache.rglob("*")) if cache.exists() else []


def only_file(cache: Path) -> Path:
    (file,) = (path for path in files(cache) if not path.is_dir())
    return file


def assert_right(built: Neighborhood, grids: GridPair, cutoff: float = CUTOFF) -> None:
    psi = _pattern(grids, cutoff)
    for got, expected in ((built.query_table, query_table(psi, grids)), (built.key_table, key_table(psi, grids))):
        for array, other in ((got.arcs, expected.arcs), (got.arc_off, expected.arc_off)):
            assert array.dtype == np.int32
            assert not array.flags.writeable
            np.testing.assert_array_equal(array, other)
        assert (got.residues, got.stride) == (expected.residues, expected.stride)
    np.testing.assert_array_equal(built.psi.col_idx, psi.col_idx)


def no_more_building(monkeypatch: pytest.MonkeyPatch) -> None:
    def build_psi(*_: object) -> None:
        raise AssertionError("built although the file is there")

    # the package has a function of the same name as its module
    monkeypatch.setattr(importlib.import_module("s2attn.geometry.neighborhood"), "_disks", build_psi)


def test_a_later_process_reads_what_was_built(grids: GridPair, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert_right(build(grids), grids)
    assert only_file(cache).parent.name == "neighborhoods"
    assert_right(build(grids), grids)
    no_more_building(monkeypatch)
    build(grids)


def test_a_real_other_process_reads_it(cache: Path) -> None:
    grids = PAIRS["up"]
    build(grids)
    before = only_file(cache).stat()
    program = (
        "from s2attn.geometry import GridPair, stored\n"
        "stored._LEAST_POINTS = 1\n"
        f"tables = stored.load_tables({grids!r}, {CUTOFF})\n"
        "print(None if tables is None else tables.query_arcs.shape[0])"
    )
    finished = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=True)
    assert int(finished.stdout) == build(grids).query_table.arcs.shape[0]
    assert only_file(cache).stat().st_mtime_ns == before.st_mtime_ns


def test_every_definition_has_a_file_of_its_own(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for grids in PAIRS.values():
        for cutoff in (CUTOFF, np.nextafter(CUTOFF, 1.0)):
            build(grids, float(cutoff))
    build(GridPair((12, 24), (12, 24), "lobatto", "lobatto"))
    assert len([path for path in files(cache) if path.suffix == ".npz"]) == 7
    monkeypatch.setattr(stored, "FORMAT", stored.FORMAT + 1)
    build(PAIRS["self"])
    monkeypatch.setattr(stored, "_code", lambda: "of another commit")
    build(PAIRS["self"])
    assert len([path for path in files(cache) if path.suffix == ".npz"]) == 9


def test_small_grids_are_not_kept(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stored, "_LEAST_POINTS", 12 * 24 + 1)
    assert_right(build(PAIRS["self"]), PAIRS["self"])
    assert files(cache) == []


def foreign_arrays() -> bytes:
    buffer = io.BytesIO()
    np.savez(buffer, query_arcs=np.zeros((3, 3), np.int32), other=np.ones(2))
    return buffer.getvalue()


def pickled() -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, np.array([{"a": 1}], dtype=object))
    return buffer.getvalue()


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda data: b"",
    "cut short": lambda data: data[: len(data) // 2],
    "last byte lost": lambda data: data[:-1],
    "text": lambda data: b"not an archive",
    "zeros": lambda data: bytes(len(data)),
    "other arrays": lambda data: foreign_arrays(),
    "pickled": lambda data: pickled(),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES.keys())
def test_a_damaged_or_foreign_file_is_replaced(grids: GridPair, cache: Path, damage: Callable[[bytes], bytes]) -> None:
    build(grids)
    file = only_file(cache)
    whole = file.read_bytes()
    file.write_bytes(damage(whole))
    assert stored.load_tables(grids, CUTOFF) is None
    assert_right(build(grids), grids)
    assert stored.load_tables(grids, CUTOFF) is not None
    assert only_file(cache) == file


def test_any_changed_byte_is_found_or_harmless(cache: Path) -> None:
    grids = PAIRS["down"]
    build(grids)
    file = only_file(cache)
    whole = file.read_bytes()
    for position in range(0, len(whole), 37):
        changed = bytearray(whole)
        changed[position] ^= 0x10
        file.write_bytes(changed)
        assert_right(build(grids), grids)


def test_changed_values_under_a_right_checksum_of_the_archive_are_found(cache: Path) -> None:
    grids = PAIRS["self"]
    build(grids)
    file = only_file(cache)
    with np.load(file) as archive:
        arrays = {name: archive[name] for name in archive.files}
    arrays["query_arcs"][0, 2] += 1
    np.savez(file, **arrays)
    assert stored.load_tables(grids, CUTOFF) is None
    assert_right(build(grids), grids)


def test_the_file_of_another_definition_is_not_trusted(cache: Path) -> None:
    grids = PAIRS["self"]
    build(grids, 0.7)
    other = only_file(cache)
    build(grids)
    mine = next(path for path in files(cache) if path.suffix == ".npz" and path != other)
    shutil.copy(other, mine)
    assert stored.load_tables(grids, CUTOFF) is None
    assert_right(build(grids), grids)


def test_a_read_only_cache_serves_what_it_holds_and_is_not_written_to(
    grids: GridPair, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build(grids)
    before = {path: path.stat().st_mtime_ns for path in files(cache)}

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(30, "Read-only file system")

    monkeypatch.setattr("tempfile.mkstemp", refuse)
    assert_right(build(grids), grids)
    assert_right(build(grids, 0.7), grids, 0.7)
    assert {path: path.stat().st_mtime_ns for path in files(cache)} == before


def test_a_cache_that_cannot_be_there_is_no_error(grids: GridPair, cache: Path) -> None:
    cache.write_text("a file where the cache should be")
    assert_right(build(grids), grids)
    assert cache.read_text() == "a file where the cache should be"


def test_a_folder_in_place_of_the_file_is_no_error(cache: Path) -> None:
    grids = PAIRS["self"]
    build(grids)
    file = only_file(cache)
    file.unlink()
    file.mkdir()
    assert_right(build(grids), grids)
    assert files(cache) == [file.parent, file]  # nothing half-written is left


def test_a_write_that_fails_leaves_nothing(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.replace", full)
    assert_right(build(PAIRS["self"]), PAIRS["self"])
    assert [path for path in files(cache) if not path.is_dir()] == []
