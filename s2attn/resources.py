"""What the compiled kernels take of the machine, read from the compiler's log and from the library itself."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from s2attn.toolchain import find_nvcc

_ENTRY = re.compile(r"Compiling entry function '(?P<name>\w+)' for '(?P<arch>sm_\w+)'")
_SPILLS = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
_REGISTERS = re.compile(r"Used (\d+) registers")
_SHARED = re.compile(r"(\d+) bytes smem")


def library_resources(library: Path, log: str) -> dict[str, object]:
    """Resources of a library just built.

    Parameters
    ----------
    library : pathlib.Path
        The shared library.
    log : str
        Log of its build; with ``-Xptxas=-v`` it says what each CUDA kernel takes.

    Returns
    -------
    dict[str, object]
        ``library_size_bytes``; for CUDA libraries also ``kernels`` (see `kernel_resources`) and ``machine_code``, the
        architectures whose machine code cuobjdump finds, or None where that tool is missing.
    """
    resources: dict[str, object] = {"library_size_bytes": library.stat().st_size}
    kernels = kernel_resources(log)
    if kernels:
        resources["kernels"] = kernels
        resources["machine_code"] = machine_code_architectures(library)
    return resources


def kernel_resources(log: str) -> list[dict[str, object]]:
    """Registers, static shared memory, stack and spills (bytes) of every kernel that ptxas reports in a log."""
    kernels: list[dict[str, object]] = []
    for line in log.splitlines():
        if entry := _ENTRY.search(line):
            kernels.append({"name": entry["name"], "arch": entry["arch"], "shared_bytes": 0})
        if not kernels:
            continue
        if spills := _SPILLS.search(line):
            names = ("stack_bytes", "spill_store_bytes", "spill_load_bytes")
            kernels[-1].update(zip(names, map(int, spills.groups()), strict=True))
        if registers := _REGISTERS.search(line):
            kernels[-1]["registers"] = int(registers[1])
            if shared := _SHARED.search(line):
                kernels[-1]["shared_bytes"] = int(shared[1])
    for kernel, name in zip(kernels, _demangled([str(kernel["name"]) for kernel in kernels]), strict=True):
        kernel["name"] = name
    return kernels


def machine_code_architectures(library: Path) -> list[str] | None:
    """Architectures of the machine code in a library, such as ``sm_90``; None where cuobjdump is missing."""
    nvcc = find_nvcc()
    beside_nvcc = nvcc.with_name("cuobjdump") if nvcc else None
    tool = str(beside_nvcc) if beside_nvcc and beside_nvcc.is_file() else shutil.which("cuobjdump")
    if tool is None:
        return None
    listing = subprocess.run((tool, "--list-elf", str(library)), capture_output=True, text=True, check=True).stdout
    return sorted(set(re.findall(r"\.(sm_\w+)\.cubin", listing)))


def _demangled(names: Sequence[str]) -> list[str]:
    tool = shutil.which("c++filt")
    if tool is None or not names:
        return list(names)
    finished = subprocess.run((tool,), input="\n".join(names), capture_output=True, text=True, check=True)
    return finished.stdout.splitlines()
