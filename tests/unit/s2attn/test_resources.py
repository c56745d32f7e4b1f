"""Reading ptxas' report on kernels."""

from pathlib import Path

from s2attn.resources import kernel_resources, library_resources

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
            "name": "void gather<__half>(int)",
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
