"""Reading ptxas' report on kernels, and the machine code in a library."""

import struct
from pathlib import Path

from s2attn.cubins import Cubin, find_cubins
from s2attn.resources import comparable_name, demangled, kernel_resources, library_resources

LOG = """$ nvcc -c kernel.cu
ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function '_Z6gatherI6__halfEvi' for 'sm_90'
ptxas info    : Function properties for _Z6gatherI6__halfEvi
    8 bytes stack frame, 4 bytes spill stores, 12 bytes spill loads
ptxas info    : Used 72 registers, used 1 barriers, 8 bytes cumulative stack size, 1024 bytes smem, 400 bytes cmem[0]
ptxas info    : Compile time = 1.000 ms
ptxas info    : Compiling entry function 'plain' for 'sm_100'
ptxas info    : Function properties for plain
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 32 registers, used 0 barriers
"""


def test_kernels_are_read_from_the_log() -> None:
    assert kernel_resources(LOG) == [
        {
            "name": "_Z6gatherI6__halfEvi",
            "arch": "sm_90",
            "shared_bytes": 1024,
            "stack_bytes": 8,
            "spill_store_bytes": 4,
            "spill_load_bytes": 12,
            "registers": 72,
        },
        {
            "name": "plain",
            "arch": "sm_100",
            "shared_bytes": 0,
            "stack_bytes": 0,
            "spill_store_bytes": 0,
            "spill_load_bytes": 0,
            "registers": 32,
        },
    ]


def test_a_log_without_kernels_leaves_the_size_of_the_library(tmp_path: Path) -> None:
    library = tmp_path / "library.so"
    library.write_bytes(b"12345")
    assert library_resources(library, "$ g++ -c kernel.cpp\n") == {"library_size_bytes": 5}


def test_names_are_those_of_the_sources() -> None:
    assert demangled(["_Z6gatherI6__halfEvi", "plain"]) == ["void gather<__half>(int)", "plain"]
    assert demangled([]) == []


def test_names_of_compiler_profiler_and_counters_are_comparable() -> None:
    spellings = (
        "void s2attn::(anonymous namespace)::gather<__half, Row<1, 32, true>, 4u, -1l>(s2attn::Params)",
        "s2attn::<unnamed>::gather<__half, Row<(int)1, (int)32, (bool)1>, (unsigned int)4, (long)-1>(s2attn::Params)",
        "void s2attn::(anonymous namespace)::gather<__half, Row<1, 32, true> , 4u, -1l>(s2attn::Params)",
    )
    assert len({comparable_name(name) for name in spellings}) == 1
    assert comparable_name("void gather<64>(int)") != comparable_name("void gather<32>(int)")
    assert comparable_name("cast((bool)0, (int)7)") == "cast(false,7)"


def cubin(flags: int, abi: int, kernels: dict[str, int], machine: int = 190) -> bytes:
    """A 64-bit ELF file of the CUDA machine with one ``.text`` section per kernel, as the specification has it."""
    names, sections = b"\0.shstrtab\0", [bytes(64)]
    for name, size in kernels.items():
        sections.append(struct.pack("<IIQQQQIIQQ", len(names), 1, 6, 0, 64, size, 0, 0, 128, 0))
        names += f".text.{name}".encode() + b"\0"
    table = 64 + len(names)
    sections.append(struct.pack("<IIQQQQIIQQ", 1, 3, 0, 0, 64, len(names), 0, 0, 1, 0))
    identity = b"\x7fELF\x02\x01\x01\x41" + bytes([abi]) + bytes(7)
    last = len(sections) - 1
    header = struct.pack("<HHIQQQIHHHHHH", 2, machine, 1, 0, 0, table, flags, 64, 0, 0, 64, last + 1, last)
    return identity + header + names + b"".join(sections)


GATHER = "_Z6gatherI6__halfEvi"


def test_cubins_are_found_wherever_they_lie_and_of_both_abis(tmp_path: Path) -> None:
    library = tmp_path / "library.so"
    newer, older = cubin(0x6005A04, 8, {GATHER: 768}), cubin(0x500550, 7, {"plain": 384, "other": 128})
    library.write_bytes(cubin(0, 0, {"main": 64}, machine=62) + b"xyz" + newer + bytes(11) + older)
    assert find_cubins(library) == [Cubin(90, {GATHER: 768}), Cubin(80, {"plain": 384, "other": 128})]


def test_a_library_without_device_code_and_one_that_ends_early_hold_no_cubin(tmp_path: Path) -> None:
    library = tmp_path / "library.so"
    whole = cubin(0x6005A04, 8, {GATHER: 768})
    for image in (Path("/proc/self/exe").read_bytes(), whole[:50], whole[:-1], b""):
        library.write_bytes(image)
        assert find_cubins(library) == []


def test_every_kernel_gets_its_size_and_one_without_machine_code_is_not_proven(tmp_path: Path) -> None:
    library = tmp_path / "library.so"
    library.write_bytes(cubin(0x6005A04, 8, {GATHER: 768}) + cubin(0x6005002, 8, {"plain": 128}))
    resources = library_resources(library, LOG)
    sizes = {kernel["name"]: kernel["sass_bytes"] for kernel in resources["kernels"]}  # type: ignore[attr-defined]
    assert sizes == {"void gather<__half>(int)": 768, "plain": None}
    assert resources["machine_code"] == ["sm_90"]


def test_every_source_file_has_a_cubin_of_its_own(tmp_path: Path) -> None:
    library = tmp_path / "library.so"
    library.write_bytes(cubin(0x6005A04, 8, {GATHER: 768}) + cubin(0x6005A04, 8, {"another": 128}))
    resources = library_resources(library, LOG)
    assert resources["kernels"][0]["sass_bytes"] == 768  # type: ignore[index]
