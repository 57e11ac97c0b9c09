"""Kernels in two versions, one broken and one mended, from one text.

The broken one lacks the lines that begin with ``+`` and has those that begin with ``-``; the mended
one the other way round.
"""

import re

import pytest
from tests.ptxemu import texts

from sdpakit import ptxemu

LOAD = "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes"


def versions(body):
    """Return the lines of the broken and of the mended kernel."""
    body = body.replace("LOAD", LOAD)
    broken = re.sub(r"^\s*\+.*\n", "", body, flags=re.M)
    mended = re.sub(r"^\s*-.*\n", "", body, flags=re.M)
    assert broken != mended, body
    return (
        re.sub(r"^(\s*)-", r"\1", broken, flags=re.M),
        re.sub(r"^(\s*)\+", r"\1", mended, flags=re.M),
    )


def check_pair(body, fault, match, launch, *, checks=None):
    """Raise AssertionError unless the broken version trips a check and the mended one trips none.

    `launch` takes a PTX text and options of a launch, `match` is a pattern for the message.
    """
    broken, mended = (texts.copying(lines) for lines in versions(body))
    with pytest.raises(fault, match=match) as caught:
        launch(broken, checks=checks or ptxemu.Checks())
    assert type(caught.value) is fault
    assert caught.value.line is not None
    assert caught.value.remedy
    launch(mended, checks=checks or ptxemu.Checks())
