"""Random programs of branches and loops, against Python threads that run one by one.

The blocks of a program stand in a random order in its text, so that lanes can meet again only if
they run in the order of the control flow.
"""

import random
from contextlib import suppress

import numpy as np
import pytest
from tests.ptxemu.threads import kernel, run

MASK = 0xFFFFFFFF


class Writer:
    """Writes blocks of PTX; each ends with a jump, so that their order is free."""

    def __init__(self, seed):
        self.random = random.Random(seed)
        self.blocks, self.labels, self.counters, self.votes = [], 0, 0, 0

    def label(self):
        self.labels += 1
        return f"L{self.labels}"

    def block(self, label, lines, jump):
        self.blocks.append(f"{label}:\n" + "".join(f"    {line}\n" for line in [*lines, jump]))

    def jump(self, label):
        return f"bra {label};"

    def fork(self, bit, yes, no):
        """Return lines that jump to one of two labels by a bit of `%r9`."""
        test = f"shr.u32 %r20, %r9, {bit}; and.b32 %r20, %r20, 1; setp.ne.u32 %p1, %r20, 0;"
        return f"{test}\n    @%p1 bra {yes};\n    bra {no};"

    def text(self, tree):
        """Return the body of a kernel."""
        self.statements("BEGIN", "END", tree, None)
        self.random.shuffle(self.blocks)
        counters = "".join(f"    .reg .b32 %c{n};\n" for n in range(1, self.counters + 1))
        start = "    mad.lo.u32 %r9, %r3, 0x9E3779B1, 12345;\n    bra BEGIN;\n"
        return counters + start + "".join(self.blocks) + "END:\n"

    def statements(self, here, after, tree, loop):
        for number, statement in enumerate(tree):
            following = after if number == len(tree) - 1 else self.label()
            self.statement(here, following, statement, loop)
            here = following

    def statement(self, here, after, statement, loop):  # noqa: C901
        match statement:
            case ("mix", factor, term):
                self.block(here, [f"mad.lo.u32 %r9, %r9, {factor}, {term};"], self.jump(after))
            case ("vote", bit):
                self.votes += 1
                test = f"shr.u32 %r20, %r9, {bit}; and.b32 %r20, %r20, 1; setp.ne.u32 %p1, %r20, 0;"
                vote = "vote.sync.ballot.b32 %r21, %p1, -1; // vote"
                self.block(here, [test, vote, "xor.b32 %r9, %r9, %r21;"], self.jump(after))
            case ("meet", bit):
                test = f"shr.u32 %r20, %r9, {bit}; and.b32 %r20, %r20, 1; setp.ne.u32 %p1, %r20, 0;"
                meet = self.label()
                self.block(here, [test, "bar.red.popc.u32 %r21, 0, %p1;"], self.jump(meet))
                self.block(meet, ["add.u32 %r9, %r9, %r21;"], self.jump(after))
            case ("if", bit, yes, no):
                labels = self.label() if yes else after, self.label() if no else after
                self.block(here, [], self.fork(bit, *labels))
                for label, part in zip(labels, (yes, no), strict=True):
                    if part:
                        self.statements(label, after, part, loop)
            case ("loop", bits, body):
                self.counters += 1
                counter, head, inside, latch = f"%c{self.counters}", *(self.label() for _ in "abc")
                self.block(here, [f"and.b32 {counter}, %r9, {bits};"], self.jump(head))
                test = f"setp.eq.u32 %p1, {counter}, 0;\n    @%p1 bra {after};\n    bra {inside};"
                self.block(head, [], test)
                self.statements(inside, latch, body, (latch, after))
                self.block(latch, [f"sub.u32 {counter}, {counter}, 1;"], self.jump(head))
            case ("break", bit):
                self.block(here, [], self.fork(bit, loop[1], after))
            case ("continue", bit):
                self.block(here, [], self.fork(bit, loop[0], after))
            case ("return", bits):
                gone = self.label()
                test = f"and.b32 %r20, %r9, {bits}; setp.eq.u32 %p1, %r20, {bits};"
                self.block(here, [test, f"@%p1 bra {gone};"], self.jump(after))
                self.block(gone, ["bra STORE;"], "bra STORE;")


def program(source, depth=0, *, loop=False):
    """Return a random tree of statements."""
    tree = []
    for _ in range(source.randint(1, 4)):
        kinds = ["mix", "mix"]
        kinds += ["vote", "meet", "return"] if depth == 0 else []
        kinds += ["if", "loop"] if depth < 3 else []
        kinds += ["break", "continue"] if loop else []
        bit = source.randint(0, 31)
        match source.choice(kinds):
            case "mix":
                factor = source.randrange(1, 1 << 32, 2)
                tree.append(("mix", factor, source.getrandbits(32)))
            case "if":
                yes, no = (program(source, depth + 1, loop=loop) for _ in "yn")
                tree.append(("if", bit, yes, no if source.random() < 0.6 else []))
            case "loop":
                tree.append(
                    ("loop", source.choice([1, 3, 6]), program(source, depth + 1, loop=True))
                )
            case "return":
                tree.append(("return", 7 << source.randint(0, 28)))
            case kind:
                tree.append((kind, bit))
    return tree


class Leave(Exception):  # noqa: N818
    """A jump out of statements: to the latch of a loop, behind it, or to the end."""

    def __init__(self, kind):
        self.kind = kind


class Thread:
    """One thread; `run` yields what it brings to a vote or barrier, and gets what comes of it."""

    def __init__(self, number):
        self.value = (number * 0x9E3779B1 + 12345) & MASK
        self.running = self.run_all

    def bit(self, bit):
        return self.value >> bit & 1

    def run_all(self, tree):
        with suppress(Leave):
            yield from self.run(tree)

    def run(self, tree):
        for statement in tree:
            yield from self.one(statement)

    def one(self, statement):  # noqa: C901
        match statement:
            case ("mix", factor, term):
                self.value = (self.value * factor + term) & MASK
            case ("vote", bit):
                self.value ^= yield "vote", self.bit(bit)
            case ("meet", bit):
                self.value = (self.value + (yield "meet", self.bit(bit))) & MASK
            case ("if", bit, yes, no):
                yield from self.run(yes if self.bit(bit) else no)
            case ("loop", bits, body):
                for _ in range(self.value & bits):
                    try:
                        yield from self.run(body)
                    except Leave as leave:
                        if leave.kind == "break":
                            break
                        if leave.kind != "continue":
                            raise
            case ("return", bits):
                if self.value & bits == bits:
                    raise Leave("return")
            case (kind, bit):
                if self.bit(bit):
                    raise Leave(kind)


def expected(tree, threads):
    """Return the values of the threads of a block."""
    all_threads = [Thread(number) for number in range(threads)]
    runs = {number: thread.run_all(tree) for number, thread in enumerate(all_threads)}
    answers = dict.fromkeys(runs)
    while runs:
        asked = {}
        for number, answer in answers.items():
            try:
                asked[number] = runs[number].send(answer)
            except StopIteration:
                del runs[number]
        answers = {}
        for number in runs:
            alike = range(number // 32 * 32, number // 32 * 32 + 32)
            kind = asked[number][0]
            if kind == "vote":
                answers[number] = sum(asked[n][1] << n % 32 for n in alike if n in runs)
            else:
                answers[number] = sum(value for _, value in asked.values())
    return [thread.value for thread in all_threads]


@pytest.mark.parametrize("seed", range(40))
def test_random_programs(seed):
    threads = 72
    tree = program(random.Random(seed))
    while not any(kind in str(tree) for kind in ("'if'", "'loop'")):
        tree += program(random.Random(str(tree)))
    writer = Writer(seed)
    body = writer.text(tree)
    out, report = run(body, threads)
    np.testing.assert_array_equal(out[0], expected(tree, threads))
    for number, row in enumerate(kernel(body).splitlines(), 1):
        if "// vote" in row:  # the lanes of each warp have met again
            assert report.counters.by_line[number] <= 3
