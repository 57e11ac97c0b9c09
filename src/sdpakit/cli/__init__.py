"""The command line: what it reads and prints. What it shows is computed elsewhere in sdpakit."""

from __future__ import annotations

import sys
import warnings
from typing import Any

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
        with warnings.catch_warnings():
            warnings.showwarning = _show_warning
            app(prog_name="sdpakit")
    except InternalError:
        raise
    except SdpakitError as error:
        sys.stderr.write(f"{type(error).__name__}: {error}\n")
        sys.exit(2)


def _show_warning(message: Warning | str, category: type[Warning], *_: Any, **__: Any) -> None:
    """Print a warning as an error is printed: no line of the user's code is to blame for it."""
    sys.stderr.write(f"{category.__name__}: {message}\n")
