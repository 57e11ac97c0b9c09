"""Add up the JUnit reports of several pytest runs.

Use: python ci/total.py [--failed-steps N] REPORT [REPORT...]

N steps that are no tests (lint) count as failed, so that the line never looks green beside them.
"""

from __future__ import annotations

import argparse
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


def main(arguments: list[str]) -> int:
    """Print the totals on one line; a run without any test is a failure."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--failed-steps", type=int, default=0)
    parser.add_argument("reports", nargs="+", type=Path)
    options = parser.parse_args(arguments)
    passed, failed, skipped = (
        sum(column) for column in zip(*(count(path) for path in options.reports), strict=True)
    )
    failed += options.failed_steps
    print(f"{passed} passed, {failed} failed, {skipped} skipped")
    return int(failed > 0 or passed == 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
