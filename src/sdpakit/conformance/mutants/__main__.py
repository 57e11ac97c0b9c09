"""`python -m sdpakit.conformance.mutants [--write FILE | --check FILE]`: the kill matrix."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from sdpakit.conformance.mutants.matrix import matrix
from sdpakit.conformance.mutants.record import summary, to_text


def main(arguments: list[str]) -> int:
    """Judge all mutants on all core cases and relations.

    Parameters
    ----------
    arguments : list of str
        Of the command line.

    Returns
    -------
    int
        0; 1 if a mutant lives, or the file of `--check` says otherwise; 2 for a wrong command.
    """
    parser = argparse.ArgumentParser(
        prog="python -m sdpakit.conformance.mutants", description=main.__doc__
    )
    parser.add_argument("--write", type=Path, metavar="FILE", help="write the matrix as JSON")
    parser.add_argument("--check", type=Path, metavar="FILE", help="compare the matrix with a file")
    parser.add_argument("--processes", type=int, default=2, metavar="N", help="default 2")
    options = parser.parse_args(arguments)
    found = matrix(options.processes)
    text = to_text(found)
    sys.stdout.write(summary(found))
    if options.write:
        options.write.write_text(text, encoding="utf-8")
    stale = options.check is not None and options.check.read_text(encoding="utf-8") != text
    if stale:
        sys.stdout.write(f"{options.check} says otherwise: write it again and look at the change\n")
    return int(stale or not all(found.values()))


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
