"""`s2bench demo` on the real kernels of this source tree, as the first command of a new user."""

import os
import re
import subprocess
import time

import pytest

from service.embedded import command


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_the_demo_ends_in_a_table_and_an_address(tmp_path):
    environment = os.environ | {"TMPDIR": str(tmp_path)}
    arguments = command("demo", "--no-stay", "--data-dir", str(tmp_path / "data"))
    started = time.monotonic()
    result = subprocess.run(arguments, env=environment, capture_output=True, text=True, timeout=380, check=False)
    shown = result.stderr + result.stdout
    assert result.returncode in {0, 1, 4}, shown
    assert len(re.findall(r"^ +cpu/(?:forward|backward)/", shown, re.MULTILINE)) == 6, shown
    assert re.search(r"page +http://127\.0\.0\.1:\d+/jobs/[0-9a-f-]{36}", shown)
    assert re.search(r"cpu: pairs [1-9]\d*/16", shown)
    assert re.search(r"code of the commits ran in (a bubblewrap sandbox|plain child processes)", shown)
    print(f"the demo took {time.monotonic() - started:.0f} s")
