"""What the page of a run shows, as compact JSON: cases once, texts once, outcomes as rows."""

from __future__ import annotations

import json
import math
import shlex
from dataclasses import dataclass, field
from typing import Any

from sdpakit.conformance.model import Outcome, Run, Worst
from sdpakit.conformance.report.facts import About, about, command_head
from sdpakit.conformance.report.tally import SHOWN, matrix, shown, target_names
from sdpakit.conformance.rules import rule_text

# Characters of a page, of one outcome without its message, of one case, and of all messages
# together at least: ten targets that fail everywhere must still make a page that opens at once.
_PAGE, _ROW, _CASE, _MESSAGES = 2_700_000, 100, 300, 300_000
_SHORTEST, _LONGEST = 60, 4000  # characters that a message keeps in any case, and at most
_CUT = "… (cut)"


def script_json(run: Run) -> str:
    """Return the data of a page, safe inside a `script` element.

    Parameters
    ----------
    run : Run
        What to show.

    Returns
    -------
    str
        JSON without "<", ">" or "&", so that no text in it can end the element.
    """
    text = json.dumps(page_data(run), ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def page_data(run: Run) -> dict[str, Any]:
    """Return the data of a page.

    Parameters
    ----------
    run : Run
        What to show.

    Returns
    -------
    dict
        "cases" are rows of id, family, rules, catches, source, bound, level, seed, what of the
        command stands for the case, and the exception that is right. "outcomes" are rows of case,
        target, verdict, share, message, worst, unjudged, seconds, reason, where all but share,
        worst and seconds are places in the lists beside them; a row may end early, and what is
        missing is 0, which stands for "nothing".
    """
    texts = _Texts(_room(run))
    names = target_names(run)
    cases = {name: place for place, name in enumerate(dict.fromkeys(o.case for o in run.outcomes))}
    known = [about(name) for name in cases]
    rules = dict.fromkeys(rule for case in known for rule in case.rules)
    outcomes = [_outcome(run, o, cases[o.case], names, texts) for o in run.outcomes]
    return {
        "verdicts": list(SHOWN),
        "targets": [{"name": name, "command": command_head(name)} for name in names],
        "families": list(matrix(run)),
        "rules": {rule: rule_text(rule) for rule in rules},
        "cases": [_case(case) for case in known],
        "outcomes": outcomes,
        "texts": texts.all,
        "cut": texts.is_cut,
    }


@dataclass(slots=True)
class _Texts:
    """Texts by place, each once; the first is the empty one."""

    room: int
    is_cut: bool = False
    all: list[str] = field(default_factory=lambda: [""])
    places: dict[str, int] = field(default_factory=lambda: {"": 0})

    def place(self, text: str) -> int:
        """Return the place of a text, which is cut to the room there is."""
        if len(text) > self.room:
            text = text[: self.room] + _CUT
            self.is_cut = True
        if text not in self.places:
            self.places[text] = len(self.all)
            self.all.append(text)
        return self.places[text]


def _room(run: Run) -> int:
    """Return how many characters one message may have."""
    lengths = sorted(len(text) for text in {_message(outcome) for outcome in run.outcomes})
    cases = len({outcome.case for outcome in run.outcomes})
    left = max(_MESSAGES, _PAGE - _ROW * len(run.outcomes) - _CASE * cases)
    for count, length in zip(range(len(lengths), 0, -1), lengths, strict=True):
        if length * count > left:
            return max(_SHORTEST, min(_LONGEST, left // count))
        left -= length
    return _LONGEST


def _message(outcome: Outcome) -> str:
    """Return the message without what the page says about the case anyway."""
    return outcome.message.partition(f"\n  {outcome.case} ")[0]


def _case(case: About) -> list[Any]:
    quoted = shlex.quote(case.id)
    return [
        case.id,
        case.family,
        list(case.rules),
        case.catches,
        case.source,
        case.bound,
        case.level if case.known else "",
        case.seed,
        "" if quoted == case.id else quoted,
        case.refuses,
    ]


def _outcome(run: Run, outcome: Outcome, case: int, names: list[str], texts: _Texts) -> list[Any]:
    row: list[Any] = [
        case,
        names.index(outcome.target),
        SHOWN.index(shown(run, outcome)),
        _number(outcome.share, 4),
        texts.place(_message(outcome)),
        0 if outcome.worst is None else _worst(outcome.worst),
        texts.place(", ".join(outcome.unjudged)),
        _number(outcome.seconds, 2),
        texts.place(run.expected.get((outcome.target, outcome.case), "")),
    ]
    while len(row) > 3 and row[-1] == 0:
        row.pop()
    return row


def _worst(worst: Worst) -> list[Any]:
    got, right = _number(worst.got, 9), _number(worst.right, 9)
    return [worst.output, list(map(int, worst.index)), got, right, _number(worst.bound, 4)]


def _number(x: float, digits: int) -> float | str:
    """Return a number short enough for a page, as text where JSON has none."""
    if math.isnan(x):
        return "NaN"
    if math.isinf(x):
        return "+infinity" if x > 0 else "-infinity"
    short = float(f"{x:.{digits}g}")
    return int(short) if short == int(short) and abs(short) < 1e6 else short
