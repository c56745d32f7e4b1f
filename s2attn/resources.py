"""What the compiled kernels take of the machine, read from the compiler's log and from the library itself."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from s2attn.cubins import find_cubins

_ENTRY = re.compile(r"Compiling entry function '(?P<name>\w+)' for '(?P<arch>sm_\w+)'")
_SPILLS = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
_REGISTERS = re.compile(r"Used (\d+) registers")
_CAST = re.compile(r"\((?P<type>bool|int|unsigned int|long|unsigned long)\)(?P<value>-?\d+)")
_SUFFIX = {"unsigned int": "u", "long": "l", "unsigned long": "ul"}
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
        ``library_size_bytes``; for CUDA libraries also ``kernels`` (see `kernel_resources`), each with ``sass_bytes``,
        the size of its machine code in the library (None where there is none), and ``machine_code``, the architectures
        for which every kernel that ptxas reports has machine code there.
    """
    resources: dict[str, object] = {"library_size_bytes": library.stat().st_size}
    kernels = kernel_resources(log)
    if kernels:
        code: dict[int, dict[str, int]] = {}
        for cubin in find_cubins(library):  # one for every source file and architecture
            code.setdefault(cubin.architecture, {}).update(cubin.sass_bytes)
        for kernel in kernels:
            kernel["sass_bytes"] = code.get(_number(str(kernel["arch"])), {}).get(str(kernel["name"]))
        missing = {kernel["arch"] for kernel in kernels if kernel["sass_bytes"] is None}
        resources["machine_code"] = sorted({str(kernel["arch"]) for kernel in kernels if kernel["arch"] not in missing})
        names = demangled([str(kernel["name"]) for kernel in kernels])
        resources["kernels"] = [{**kernel, "name": name} for kernel, name in zip(kernels, names, strict=True)]
    return resources


def kernel_resources(log: str) -> list[dict[str, object]]:
    """Registers, static shared memory, stack and spills (bytes) of every kernel in ptxas' report; names are mangled."""
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
    return kernels


def demangled(names: Sequence[str]) -> list[str]:
    """Names as in the sources, or as they are where there is no c++filt."""
    tool = shutil.which("c++filt")
    if tool is None or not names:
        return list(names)
    finished = subprocess.run((tool,), input="\n".join(names), capture_output=True, text=True, check=True)
    return finished.stdout.splitlines()


def comparable_name(name: str) -> str:
    """A kernel's name spelled alike for compiler, profiler and counters: without spaces and result type.

    NVIDIA's tools put casts before template arguments, ``(int)64`` and ``(bool)1``, where c++filt writes ``64`` and
    ``true``; and ``<unnamed>`` for the anonymous namespace.
    """
    name = name.replace("<unnamed>", "(anonymous namespace)")
    name = _CAST.sub(lambda cast: _literal(cast["type"], cast["value"]), name)
    return "".join(name.removeprefix("void ").split())


def _literal(type_name: str, value: str) -> str:
    if type_name == "bool":
        return "false" if value == "0" else "true"
    return value + _SUFFIX.get(type_name, "")


def _number(arch: str) -> int:
    """90 for ``sm_90`` and ``sm_90a``."""
    return int(arch.removeprefix("sm_").rstrip("af"))
