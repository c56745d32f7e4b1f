"""`python -m s2attn.build --json --device cpu`: writes a library file, or fails as planted."""

import json
import os
import sys
import time
from pathlib import Path

from s2attn import BEHAVIOR


def main() -> int:
    """Build as planted. Starts are counted in the compiler cache, the one place that outlives a killed build."""
    cache = Path(os.environ["S2ATTN_CACHE_DIR"])
    if "CCACHE_DIR" in os.environ:
        with open(Path(os.environ["CCACHE_DIR"]) / "fake_builds", "a") as stream:
            stream.write(f"{BEHAVIOR['name']}\n")
    what = BEHAVIOR.get("build", "normal")
    print(f"compiling {BEHAVIOR['name']}", file=sys.stderr)
    if what == "fail":
        print("csrc/kernel.cpp:1:1: error: expected a kernel", file=sys.stderr)
        return 1
    if what == "no_report":
        print("built, trust me")
        return 0
    if what == "hang":
        time.sleep(600)
    time.sleep(BEHAVIOR.get("build_s", 0.0))
    (cache / "library.so").write_text("kernels")
    kernels = [{"name": "kernel" * 50, "registers": 255}] * BEHAVIOR.get("kernels", 0)
    report = {"key": "fake", "library": str(cache / "library.so"), "compiler": "fake 1.0"}
    print(json.dumps({**report, "resources": {"kernels": kernels}}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
