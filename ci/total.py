"""Add up the JUnit reports of several pytest runs: python ci/total.py REPORT [REPORT...]."""

from __future__ import annotations

import sys
from pathlib import Path
from xml.etree import ElementTree


def count(report: Path) -> tuple[int, int, int]:
    """Return how many tests of one report passed, failed (errors included) and were skipped."""
    passed = failed = skipped = 0
    for suite in ElementTree.parse(report).getroot().iter("testsuite"):
        total, bad, left_out = (
            int(suite.get("tests", 0)),
            int(suite.get("failures", 0)) + int(suite.get("errors", 0)),
            int(suite.get("skipped", 0)),
        )
        passed += total - bad - left_out
        failed += bad
        skipped += left_out
    return passed, failed, skipped


def main(reports: list[str]) -> int:
    """Print the totals on one line; a run without any test is a failure."""
    passed, failed, skipped = (
        sum(column) for column in zip(*(count(Path(name)) for name in reports), strict=True)
    )
    print(f"{passed} passed, {failed} failed, {skipped} skipped")
    return int(failed > 0 or passed == 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
