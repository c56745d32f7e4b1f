"""A package that behaves as `behavior.json` beside it says."""

import json
from pathlib import Path

__version__ = "0.0.fake"

BEHAVIOR = json.loads(Path(__file__).with_name("behavior.json").read_text())
