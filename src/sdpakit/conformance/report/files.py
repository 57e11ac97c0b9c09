"""Reports as files: .json and .html by the suffix of the path."""

from __future__ import annotations

import json
import os
from pathlib import Path

from sdpakit.conformance.model import Run
from sdpakit.conformance.report.page import html
from sdpakit.conformance.report.records import from_json, to_json
from sdpakit.errors import ArgumentError, format_error

SUFFIXES = (".json", ".html")


def check_path(path: str | os.PathLike[str]) -> Path:
    """Return where a report can be written; to be asked before hours of judging.

    Parameters
    ----------
    path : path
        Of a file that ends in .json or .html; it need not exist.

    Returns
    -------
    Path
        The same path.

    Raises
    ------
    ArgumentError
        If the suffix is another, or nothing can be written there.
    """
    place = Path(path)
    if place.suffix not in SUFFIXES:
        got = f"{str(path)!r}, which ends in {place.suffix!r}"
        raise _error(got, "a name that ends in .json or .html", "give the file one of the two")
    if place.is_dir():
        raise _error(f"the folder {str(path)!r}", "the path of a file", "name a file in it")
    folder = place.parent
    if not folder.is_dir():
        fix = f"make it first: mkdir -p {folder}"
        raise _error(f"{str(path)!r} in a folder that is not there", "a folder that exists", fix)
    if not os.access(place if place.exists() else folder, os.W_OK):
        got = f"{str(path)!r}, which may not be written"
        raise _error(got, "a path with leave to write", "choose another or change its permissions")
    return place


def write(run: Run, path: str | os.PathLike[str]) -> Path:
    """Write a report.

    Parameters
    ----------
    run : Run
        What to report.
    path : path
        As for `check_path`.

    Returns
    -------
    Path
        Where it is.

    Raises
    ------
    ArgumentError
        If it cannot be written there.
    """
    place = check_path(path)
    if place.suffix == ".html":
        text = html(run)
    else:
        text = json.dumps(to_json(run), indent=1, ensure_ascii=False, allow_nan=False) + "\n"
    try:
        # A lone surrogate, from a file name say, has no UTF-8 and must not cost the whole report.
        place.write_text(text, encoding="utf-8", errors="backslashreplace")
    except OSError as error:
        got = f"{str(path)!r}: {error.strerror or error}"
        raise _error(got, "a path that can be written", "choose another or make room") from error
    return place


def read(path: str | os.PathLike[str]) -> Run:
    """Read a JSON report.

    Parameters
    ----------
    path : path
        Of a file that `write` made.

    Returns
    -------
    Run
        As it was.

    Raises
    ------
    ArgumentError
        If it cannot be read, is no such report, or one of a newer version.
    """
    try:
        data = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        got = f"{str(path)!r}: {error.strerror or error}"
        raise _error(got, "a file that can be read", "look at the path") from error
    except ValueError as error:
        got = f"{str(path)!r}, which is not JSON: {error}"
        fix = "write one with `sdpakit conformance TARGET --json FILE`"
        raise _error(got, "a JSON report of the kit", fix) from error
    return from_json(data)


def _error(got: str, allowed: str, fix: str) -> ArgumentError:
    return ArgumentError(format_error("file of a report", got=got, allowed=allowed, fix=fix))
