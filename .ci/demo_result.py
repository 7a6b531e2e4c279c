"""Fails unless a demo's evaluation is exact and its model good: python .ci/demo_result.py
DEMO_OUT."""

import json
import sys
from pathlib import Path

result = json.loads((Path(sys.argv[1]) / "result.json").read_text())
print(result)
assert result["proven"], result
assert result["records"] == result["num_records"] == 368, result
assert result["accuracy"] >= 0.97, result
