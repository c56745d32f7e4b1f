"""The sizes of machine code in a library that nvcc has made. Needs the compiler, no GPU."""

import subprocess
from pathlib import Path

import pytest

from s2attn.resources import library_resources
from s2attn.toolchain import NVCC_FLAGS, find_nvcc

KERNELS = """
template <typename T> __global__ void shift(T* x) { x[threadIdx.x] += T(1); }
template __global__ void shift<float>(float*);
__global__ void longer(double* x) {
    __shared__ double kept[32];
    kept[threadIdx.x] = x[threadIdx.x] / 3.0;
    __syncthreads();
    x[threadIdx.x] = sqrt(kept[(threadIdx.x + 1) % 32]);
}
"""


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A library with two kernels for two architectures, and nvcc's log."""
    nvcc = find_nvcc()
    assert nvcc is not None, "these tests need nvcc"
    folder = tmp_path_factory.mktemp("cubins")
    (folder / "kernels.cu").write_text(KERNELS)
    targets = [f"-gencode=arch=compute_{name},code=sm_{name}" for name in ("80", "90a")]
    command = [str(nvcc), *NVCC_FLAGS, *targets, "-shared", "-cudart=none", "kernels.cu", "-o", "library.so"]
    finished = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True)
    return folder / "library.so", finished.stdout + finished.stderr


def test_every_kernel_has_the_size_of_its_machine_code(compiled: tuple[Path, str]) -> None:
    resources = library_resources(*compiled)
    assert resources["machine_code"] == ["sm_80", "sm_90a"]
    kernels = {(kernel["arch"], kernel["name"]): kernel for kernel in resources["kernels"]}  # type: ignore[attr-defined]
    names = ("longer(double*)", "void shift<float>(float*)")
    assert set(kernels) == {(arch, name) for arch in ("sm_80", "sm_90a") for name in names}
    for arch in ("sm_80", "sm_90a"):
        longer, shift = (kernels[arch, name] for name in names)
        assert longer["shared_bytes"] == 256
        # instructions are 16 bytes, and code is padded to 128
        assert 0 < shift["sass_bytes"] < longer["sass_bytes"] < 16384
        assert shift["sass_bytes"] % 128 == longer["sass_bytes"] % 128 == 0


def test_a_kernel_without_machine_code_is_not_proven(compiled: tuple[Path, str]) -> None:
    library, log = compiled
    claimed = log.replace("_Z6longerPd' for 'sm_80'", "_Z5otherPd' for 'sm_80'")
    assert claimed != log
    resources = library_resources(library, claimed)
    assert resources["machine_code"] == ["sm_90a"]
    sizes = {kernel["name"]: kernel["sass_bytes"] for kernel in resources["kernels"]}  # type: ignore[attr-defined]
    assert sizes["other(double*)"] is None
