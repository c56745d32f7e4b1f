"""What the numbers depend on beside the commit: interpreter, libraries, compiler, processor, GPU and driver."""

from __future__ import annotations

import os
import platform
import re
from pathlib import Path
from typing import Any

import numpy as np
import torch

from s2attn.benchmarks.cases import Device
from s2attn.build import BuildRecord


def describe_environment(device: Device, build: BuildRecord | None, gpu: dict[str, Any]) -> dict[str, Any]:
    """Return the ``environment`` of the document.

    Parameters
    ----------
    device
        Device of the cases.
    build
        How the kernels that were loaded were built; None when none could be loaded.
    gpu
        From `describe_gpu` and NVML; empty on a CPU.
    """
    return {
        "device": device,
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "numpy": np.__version__,
        "platform": platform.platform(),
        "cpu_model": cpu_model(),
        "cpu_count": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "affinity": sorted(os.sched_getaffinity(0)),
        "compiler": build.compiler if build else None,
        "flags": list(build.flags) if build else None,
        "build_key": build.key if build else None,
        "gpu_name": gpu.get("gpu_name"),
        "gpu_uuid": gpu.get("gpu_uuid"),
        "driver": gpu.get("driver"),
        "cuda": torch.version.cuda,
        "compute_capability": gpu.get("compute_capability"),
        "power_limit_w": gpu.get("power_limit_w"),
        "max_sm_clock_mhz": gpu.get("max_sm_clock_mhz"),
        "max_mem_clock_mhz": gpu.get("max_mem_clock_mhz"),
    }


def describe_gpu() -> dict[str, Any]:
    """Return name, UUID and compute capability of the current CUDA device.

    Raises
    ------
    RuntimeError
        torch sees no CUDA device.
    """
    index = torch.cuda.current_device()
    properties = torch.cuda.get_device_properties(index)
    return {
        "gpu_name": properties.name,
        "gpu_uuid": nvml_uuid(str(properties.uuid)),
        "compute_capability": f"{properties.major}.{properties.minor}",
    }


def nvml_uuid(uuid: str) -> str:
    """Return a UUID as NVML spells it; torch leaves the prefix of whole GPUs out."""
    return uuid if uuid.startswith(("GPU-", "MIG-")) else f"GPU-{uuid}"


def cpu_model() -> str:
    """Return the processor's name, from ``/proc/cpuinfo`` where there is one."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return platform.processor() or platform.machine()
    match = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    return match.group(1).strip() if match else platform.machine()
