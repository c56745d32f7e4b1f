import pytest

from s2attn.benchmarks.occupancy import theoretical_occupancy


@pytest.mark.parametrize(
    ("capability", "threads", "registers", "shared_bytes", "share", "limited_by"),
    [
        ("9.0", 256, 32, 0, 1.0, "warps"),
        ("9.0", 128, 255, 0, 8 / 64, "registers"),  # 8160 registers of a warp take 8192: 8 warps, 2 blocks of 4
        ("9.0", 96, 168, 0, 12 / 64, "registers"),  # 12 warps by registers, 4 blocks of 3
        ("9.0", 128, 64, 100 * 1024, 8 / 64, "shared memory"),  # 101 KB with the driver's part: twice in 228 KB
        ("9.0", 128, 64, 227 * 1024, 4 / 64, "shared memory"),
        ("9.0", 32, 16, 0, 32 / 64, "blocks"),
        ("8.6", 1024, 32, 0, 32 / 48, "warps"),
        ("8.0", 128, 40, 1000, 48 / 64, "registers"),  # 1280 registers: 51 warps, 48 in whole partitions, 12 blocks
        ("7.5", 64, 32, 16 * 1024, 8 / 32, "shared memory"),
        ("12.0", 33, 32, 0, 48 / 48, "warps"),  # a 33rd thread is a second warp
    ],
)
def test_known_launches(
    capability: str, threads: int, registers: int, shared_bytes: int, share: float, limited_by: str
) -> None:
    found = theoretical_occupancy(capability, threads=threads, registers=registers, shared_bytes=shared_bytes)
    assert found == (pytest.approx(share), limited_by)


def test_more_of_a_resource_never_helps() -> None:
    for name, values in (("registers", range(16, 256, 8)), ("shared_bytes", range(0, 230_000, 4096))):
        fixed = {"threads": 128, "registers": 32, "shared_bytes": 0}
        shares = [theoretical_occupancy("9.0", **{**fixed, name: value}).share for value in values]  # type: ignore[union-attr]
        assert shares == sorted(shares, reverse=True)


def test_an_unknown_architecture_has_none() -> None:
    assert theoretical_occupancy("6.1", threads=128, registers=32, shared_bytes=0) is None
    assert theoretical_occupancy("", threads=128, registers=32, shared_bytes=0) is None
