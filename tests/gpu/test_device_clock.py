"""The spin kernel on a real GPU: what its stamps say of the SM clock, how long it spins, what it refuses."""

import statistics
import time

import pytest
import torch

from s2attn.benchmarks.device_clock import SPIN_MS, DeviceClock, Spin, calibrate_spin
from s2attn.benchmarks.environment import describe_gpu
from s2attn.benchmarks.measure import wake
from s2attn.benchmarks.nvml import NvmlSource, gpu_source
from s2attn.ops import registration

READINGS = 100


@pytest.fixture(scope="module")
def clock() -> DeviceClock:
    registration.load("cuda")
    return DeviceClock(torch.device("cuda"))


@pytest.fixture
def spin(clock: DeviceClock) -> Spin:
    wake(torch.cuda)
    return calibrate_spin(clock)


def readings(spin: Spin) -> tuple[list[float], list[float]]:
    """SM clock in MHz by many long and many short spins, each pair right after the other."""
    long, short = [], []
    for _ in range(READINGS):
        spin.clock.spin(0, spin.cycles)
        spin.clock.spin(1, spin.after_cycles)
        for mhz, kept in zip(spin.clock.read_mhz(), (long, short), strict=True):
            assert mhz is not None
            kept.append(mhz)
    return long, short


def test_readings_repeat(spin: Spin) -> None:
    for kept in readings(spin):
        assert statistics.stdev(kept) / statistics.median(kept) < 0.005


def test_readings_are_the_clock_that_nvml_shows(spin: Spin) -> None:
    source = gpu_source(describe_gpu()["gpu_uuid"])
    assert isinstance(source, NvmlSource), source.note
    try:
        seen_mhz, (long, short) = [], ([], [])
        end_s = time.monotonic() + 0.5
        while time.monotonic() < end_s:
            more_long, more_short = readings(spin)
            long, short = long + more_long, short + more_short
            seen_mhz.append(source.read()[source.columns.index("sm_clock_mhz")])
    finally:
        source.close()
    for kept in (long, short):
        assert statistics.median(kept) == pytest.approx(statistics.median(seen_mhz), rel=0.02)


def test_a_spin_has_the_length_that_was_asked_for(spin: Spin) -> None:
    stamps = torch.zeros(4, dtype=torch.int64, device="cuda")
    torch.ops.s2attn.spin(stamps, spin.cycles)
    cycles_start, cycles_end, ns_start, ns_end = stamps.tolist()
    assert spin.cycles <= cycles_end - cycles_start < 1.05 * spin.cycles
    assert (ns_end - ns_start) * 1e-6 == pytest.approx(SPIN_MS, rel=0.1)
    torch.ops.s2attn.spin(stamps, 0)
    assert 0 < stamps[3].item() - stamps[2].item() < 100_000


def test_a_spin_is_captured_and_stamps_anew_at_every_replay(clock: DeviceClock) -> None:
    stamps = torch.zeros(4, dtype=torch.int64, device="cuda")
    torch.ops.s2attn.spin(stamps, 1000)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        torch.ops.s2attn.spin(stamps, 1000)
    ends_ns = []
    for _ in range(3):
        graph.replay()
        cycles_start, cycles_end, ns_start, ns_end = stamps.tolist()
        assert cycles_end - cycles_start >= 1000
        assert ns_end > ns_start
        ends_ns.append(ns_end)
    assert ends_ns == sorted(set(ends_ns))


def test_a_spin_runs_on_the_current_stream(clock: DeviceClock) -> None:
    stamps = torch.zeros(4, dtype=torch.int64, device="cuda")
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        torch.ops.s2attn.spin(stamps, 20_000_000)
    assert not stream.query()
    assert torch.cuda.current_stream().query()
    stream.synchronize()
    assert stamps[1].item() > stamps[0].item()


@pytest.mark.parametrize(
    ("stamps", "cycles", "message"),
    [
        (torch.zeros(4, dtype=torch.int64), 1, "stamps: got device cpu, expected a CUDA device"),
        ({"size": (4,), "dtype": torch.int32}, 1, "stamps: got dtype Int, expected Long"),
        ({"size": (5,), "dtype": torch.int64}, 1, r"stamps: got shape \[5\], expected \[4\]"),
        ({"size": (2, 2), "dtype": torch.int64}, 1, r"stamps: got shape \[2, 2\], expected \[4\]"),
        ({"size": (4,), "dtype": torch.int64}, -1, r"cycles: got -1, expected 0 \.\. 68719476736"),
        ({"size": (4,), "dtype": torch.int64}, 2**40, "cycles: got 1099511627776, expected 0"),
    ],
)
def test_wrong_arguments_are_refused(
    clock: DeviceClock, stamps: torch.Tensor | dict, cycles: int, message: str
) -> None:
    if isinstance(stamps, dict):
        stamps = torch.zeros(**stamps, device="cuda")
    with pytest.raises(RuntimeError, match=message):
        torch.ops.s2attn.spin(stamps, cycles)


def test_stamps_apart_in_memory_are_refused(clock: DeviceClock) -> None:
    stamps = torch.zeros(8, dtype=torch.int64, device="cuda")[::2]
    with pytest.raises(RuntimeError, match=r"stamps: got strides \[2\], expected a contiguous tensor"):
        torch.ops.s2attn.spin(stamps, 1)
