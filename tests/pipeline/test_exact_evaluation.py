"""docs/exact-evaluation.md names a test for each promise: the list must not outlive what it lists."""

import re
from pathlib import Path

TESTS = Path(__file__).parents[1]
LIST = TESTS.parent / "docs/exact-evaluation.md"


def test_every_promise_of_an_exact_evaluation_names_existing_tests():
    defined = {
        name
        for path in TESTS.rglob("test_*.py")
        for name in re.findall(r"^def (test_\w+)", path.read_text(), re.M)
    }
    rows = re.findall(r"^\| (E\d+) \|.* \| ([^|]+) \|$", LIST.read_text(), re.M)
    assert [number for number, _ in rows] == [f"E{n}" for n in range(1, 20)]
    for number, tests in rows:
        named = re.findall(r"`(test_\w+)`", tests)
        assert named or tests.startswith("the same"), number
        assert defined.issuperset(named), set(named) - defined
