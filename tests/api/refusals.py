"""What every refusal owes its reader: where, what came, what is allowed, what to do (ERR-1)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from sdpakit import SdpakitError


@contextmanager
def refuses(kind: type[Exception], where: str, got: str, fix: str) -> Iterator[None]:
    """Expect an error of a kind with these words, plain text, in their lines."""
    pattern = (
        rf"^{re.escape(where)}: got [^\n]*{re.escape(got)}[^\n]*"
        rf"\n  allowed: (?s:.)+\n  remedy: [^\n]*{re.escape(fix)}"
    )
    with pytest.raises(kind, match=pattern) as caught:
        yield
    assert isinstance(caught.value, SdpakitError)


def snapshot(*values: Any) -> list[bytes]:
    """Return the bytes of the arrays among some values."""
    return [value.tobytes() for value in values if isinstance(value, np.ndarray)]
