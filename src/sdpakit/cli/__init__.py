"""The command line: what it reads and prints. What it shows is computed elsewhere in sdpakit."""

from __future__ import annotations

import sys

from sdpakit.errors import InternalError, SdpakitError

__all__ = ["main"]


def main() -> None:
    """Run the command `sdpakit`; a mistake in its arguments ends it with status 2 and one message.

    Raises
    ------
    InternalError
        A defect of sdpakit keeps its traceback.
    """
    from sdpakit.cli.app import app

    try:
        app(prog_name="sdpakit")
    except InternalError:
        raise
    except SdpakitError as error:
        sys.stderr.write(f"{type(error).__name__}: {error}\n")
        sys.exit(2)
