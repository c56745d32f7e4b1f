"""Commits whose effect is known: this work tree with a suite of its own, more work in it, a device at its power cap.

More work is real work: a case of batch 200 runs 201, 202, 204 or 210 of them (0.5, 1, 2, 5 %) and says nothing of it.
All commits have the same `csrc`, so one build serves them all.
"""

from __future__ import annotations

import functools
import itertools
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from s2attn.benchmarks.cases import Case, Operation
from s2attn.geometry import build_psi

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ("csrc", "s2attn", "service", "pyproject.toml", "README.md", "LICENSE")
MANY = 200  # batch of the cases that can be given more work in steps of 0.5 %
MORE = (0, 1, 2, 4, 10)  # of MANY, dealt out to the cases in turn

Shape = tuple[int, int]
_OPERATIONS: tuple[Operation, ...] = ("forward", "backward")
_DTYPES = ("float32", "float16", "bfloat16")
_BURN = """

_HOT: list[torch.Tensor] = []


def _burn() -> None:
    if not _HOT:
        _HOT.extend(torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16) for _ in range(3))
    for _ in range(6):
        torch.mm(_HOT[0], _HOT[1], out=_HOT[2])
"""


@dataclass(frozen=True)
class Planted:
    """A repository and its commits; `more` is the work that the grown ones add, by case, as a share."""

    path: Path
    base: str
    grown: str
    capped: str
    capped_grown: str
    more: Mapping[str, float]

    @property
    def commits(self) -> tuple[str, ...]:
        """All commits, the base first."""
        return (self.base, self.grown, self.capped, self.capped_grown)


def plant(folder: Path) -> Planted:
    """Make the repository in a folder that does not exist yet."""
    for name in SOURCES:
        source = ROOT / name
        copy = functools.partial(shutil.copytree, ignore=shutil.ignore_patterns("__pycache__"))
        folder.mkdir(parents=True, exist_ok=True)
        (copy if source.is_dir() else shutil.copy2)(source, folder / name)
    cases = (*many_small_cases(), *large_cases())
    more = {case.name: MORE[index % len(MORE)] for index, case in enumerate(large_cases())}
    _append(folder / "s2attn/benchmarks/suite.py", _suite(cases))
    _git(folder, "init", "--quiet", "--initial-branch=main")
    base = _commit(folder, "base")
    _grow(folder, more)
    grown = _commit(folder, "grown")
    _git(folder, "checkout", "--quiet", "-b", "capped", base)
    _heat(folder)
    capped = _commit(folder, "capped")
    _grow(folder, more)
    capped_grown = _commit(folder, "capped and grown")
    return Planted(folder, base, grown, capped, capped_grown, {name: n / MANY for name, n in more.items()})


def many_small_cases() -> list[Case]:
    """Return cases of every direction and type, in some numbers of channels; their names end in /b8, /b16 or /b32."""
    shapes = (
        ((64, 128), (64, 128), 0.1),
        ((48, 96), (48, 96), 0.15),
        ((64, 128), (32, 64), 0.15),
        ((96, 192), (48, 96), 0.1),
        ((32, 64), (64, 128), 0.15),
        ((48, 96), (96, 192), 0.1),
    )
    kinds = itertools.product(shapes, ((16, 1), (32, 1), (64, 1), (128, 2), (96, 1)), (8, 16, 32))
    return [
        case
        for (in_shape, out_shape, cutoff), (channels, heads), batch in kinds
        for case in _cases(in_shape, out_shape, cutoff, channels, heads, batch)
    ]


def large_cases() -> list[Case]:
    """Return cases that fill a device and can be given more work: their names end in /b200."""
    shapes = (((48, 96), (48, 96), 0.2), ((64, 128), (32, 64), 0.2), ((32, 64), (64, 128), 0.2))
    return [
        case
        for in_shape, out_shape, cutoff in shapes
        for channels in (64, 32)
        for case in _cases(in_shape, out_shape, cutoff, channels, 1, MANY)
    ]


def _cases(in_shape: Shape, out_shape: Shape, cutoff: float, channels: int, heads: int, batch: int) -> Iterator[Case]:
    for operation, dtype in itertools.product(_OPERATIONS, _DTYPES):
        yield Case(
            device="cuda",
            operation=operation,
            suite="gpu",
            in_shape=in_shape,
            out_shape=out_shape,
            theta_cutoff=cutoff,
            psi_nnz=_entries(in_shape, out_shape, cutoff),
            heads=heads,
            channels_in=channels,
            channels_out=channels,
            batch=batch,
            dtype=dtype,
        )


@functools.lru_cache
def _entries(in_shape: Shape, out_shape: Shape, cutoff: float) -> int:
    return len(build_psi(in_shape, out_shape, theta_cutoff=cutoff).col_idx)


def _suite(cases: tuple[Case, ...]) -> str:
    listed = "\n".join(f"    {case!r}," for case in cases)
    return f"\n\n_FIELD = (\n{listed}\n)\n\n\ndef all_cases() -> tuple[Case, ...]:\n    return _FIELD\n"


def _grow(folder: Path, more: Mapping[str, int]) -> None:
    path = folder / "s2attn/benchmarks/workload.py"
    text = path.read_text(encoding="utf-8")
    first = "    device = torch.device(case.device)\n    dtype ="
    if text.count(first) != 1:
        raise AssertionError(f"{path.name}: expected prepare() to begin with the device and the dtype of its case")
    text = text.replace(first, "    case = replace(case, batch=case.batch + _MORE.get(case.name, 0))\n" + first)
    path.write_text(f"{text}\n\n_MORE = {dict(more)!r}\n", encoding="utf-8")


def _heat(folder: Path) -> None:
    path = folder / "s2attn/benchmarks/measure.py"
    text = path.read_text(encoding="utf-8")
    first = '    """Take one sample of a GPU case, queued behind a spin'
    if text.count(first) != 1:
        raise AssertionError(f"{path.name}: expected sample_cuda with its docstring")
    line_end = text.index("\n", text.index(first)) + 1
    path.write_text(text[:line_end] + "    _burn()\n" + text[line_end:] + _BURN, encoding="utf-8")


def _append(path: Path, text: str) -> None:
    path.write_text(path.read_text(encoding="utf-8") + text, encoding="utf-8")


def _commit(folder: Path, message: str) -> str:
    _git(folder, "add", "--all")
    _git(folder, "commit", "--quiet", "--message", message)
    return _git(folder, "rev-parse", "HEAD")


def _git(folder: Path, *arguments: str) -> str:
    author = ("-c", "user.name=field test", "-c", "user.email=field@example.invalid")
    done = subprocess.run(["git", *author, *arguments], cwd=folder, check=True, capture_output=True, text=True)
    return done.stdout.strip()
