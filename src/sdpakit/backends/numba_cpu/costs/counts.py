"""Operations of the loops of generated code, counted in the text of its LLVM IR.

What a mask or a logit costs is read off the code that computes it, so no table of operations has to
follow the emitters. Instructions that do not change from round to round are left out, as the code
generator moves them out of the loop; so is what becomes part of another instruction.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields

from sdpakit.backends.numba_cpu.machine import Core

# Names, addresses within reach of a load, jumps, and a sign that a multiply-add takes with it.
_FREE = frozenset(
    ("phi", "br", "ret", "bitcast", "getelementptr", "inttoptr", "ptrtoint", "freeze", "fneg")
)
_ADDS = frozenset(("fadd", "fsub", "fcmp"))
_FLOATS = frozenset(("fmul", "fptosi", "sitofp", "uitofp", "fptrunc", "fpext"))
_SHUFFLES = frozenset(("shufflevector", "insertelement", "extractelement"))
# Functions that take more than one instruction, by the tables that `machine.py` names.
_CALLS = {"reduce": 2, "scalef": 2, "floor": 2, "ceil": 2, "copysign": 2}
_INTEGER_PRODUCT = 2

_FUNCTION = re.compile(r'^define .*?@"?([^"(]+)"?\(.*?\n\{\n(.*?)^\}', re.MULTILINE | re.DOTALL)
_LABEL = re.compile(r'^"?([^"\s;]+?)"?:', re.MULTILINE)
_LINE = re.compile(r'^ +(?:%"?([^"\s]+)"? = )?(?:tail )?(\w+)')
_NAMES = re.compile(r'%"?([\w.]+)"?')
_VECTOR = re.compile(r"<(\d+) x (float|double|half|bfloat|ptr|i\d+)>")
_BITS = {"float": 32, "double": 64, "half": 16, "bfloat": 16, "ptr": 64}
_FIRST_LANE = re.compile(r"<i32 0(, i32 0)*>$")
_NUMBER = re.compile(r"[.]\d+$")


@dataclass(slots=True)
class Work:
    """Instructions of one round of a loop.

    Attributes
    ----------
    arithmetic : float
        On the ports of the multiply-adds, whatever the core.
    adds : float
        Additions, comparisons, maxima.
    logic : float
        Whatever else is done to vectors.
    shuffles, loads, stores, divisions : float
        Of each kind.
    scalars : float
        What is not done to vectors.
    depth : float
        Longest chain of dependent instructions.
    """

    arithmetic: float = 0
    adds: float = 0
    logic: float = 0
    shuffles: float = 0
    loads: float = 0
    stores: float = 0
    divisions: float = 0
    scalars: float = 0
    depth: float = 0

    def add(self, kind: str, count: float = 1) -> None:
        """Count instructions of one kind."""
        setattr(self, kind, getattr(self, kind) + count)

    def plus(self, other: Work) -> Work:
        """Return both, one after the other."""
        names = [f.name for f in fields(Work) if f.name != "depth"]
        total = Work(**{name: getattr(self, name) + getattr(other, name) for name in names})
        total.depth = max(self.depth, other.depth)
        return total

    def cycles(self, core: Core, *, double: bool) -> float:
        """Return the cycles of one round among many: what the busiest part of the core needs.

        A chain that is long beside what the core has in flight shows: rounds then overlap only as
        far as the window reaches.
        """
        floats = self.arithmetic + (0 if core.adds_apart else self.adds)
        vectors = self.arithmetic + self.adds + self.logic + self.shuffles
        instructions = vectors + self.loads + self.stores + self.scalars + self.divisions
        return max(
            floats / core.arithmetic,
            vectors / core.vector,
            self.shuffles / core.shuffles,
            self.loads / core.loads,
            self.stores / core.stores,
            self.divisions * core.division[double],
            instructions / core.issue,
            self.depth * core.latency * instructions / core.window,
        )


@dataclass(frozen=True, slots=True)
class _Instruction:
    """One line of IR."""

    name: str
    opcode: str
    operands: tuple[str, ...]
    text: str


Blocks = Mapping[str, Sequence[_Instruction]]


def loop_work(text: str, vector_bytes: int) -> dict[str, Work]:
    """Return the work of one round of every loop of a module, without the loops inside it.

    Parameters
    ----------
    text : str
        LLVM IR as llvmlite prints it.
    vector_bytes : int
        Bytes of a vector register.

    Returns
    -------
    dict of str to Work
        By "function:loop", a loop being named by its head. Loops of one name in one function, which
        llvmlite tells apart by a number, are added up.
    """
    found: dict[str, Work] = {}
    for function, lines in _FUNCTION.findall(text):
        blocks = _blocks(lines)
        for head, body, inner in _loops(blocks):
            name = f"{function}:{_NUMBER.sub('', head)}"
            own = [line for block in blocks if block in body - inner for line in blocks[block]]
            given = {line.name for block in inner for line in blocks[block]}
            work = _Counter(own, given, 8 * vector_bytes).count()
            found[name] = found[name].plus(work) if name in found else work
    return found


def _blocks(body: str) -> dict[str, list[_Instruction]]:
    """Return the basic blocks of the body of a function."""
    blocks: dict[str, list[_Instruction]] = {}
    for line in body.splitlines():
        label, found = _LABEL.match(line), _LINE.match(line)
        if label:
            current = blocks.setdefault(label[1], [])
        elif found:
            name, opcode = found[1] or "", found[2]
            operands = tuple(_NAMES.findall(line[found.end() :]))
            current.append(_Instruction(name, opcode, operands, line))
    return blocks


def _loops(blocks: Blocks) -> Iterator[tuple[str, set[str], set[str]]]:
    """Yield head and blocks of each loop, and those of its blocks that lie in loops inside it."""
    after = {
        name: [x for x in lines[-1].operands if x in blocks] if lines[-1].opcode == "br" else []
        for name, lines in blocks.items()
    }
    bodies: dict[str, set[str]] = {}
    for latch, head in _back_edges(after):
        bodies.setdefault(head, {head}).update(_between(after, head, latch))
    for head, body in bodies.items():
        yield head, body, set().union(*(other for other in bodies.values() if other < body))


def _back_edges(after: Mapping[str, Sequence[str]]) -> Iterator[tuple[str, str]]:
    """Yield (from, to) of the jumps that go back to a block on the way to where they start."""
    start = next(iter(after))
    path, seen, stack = {start}, {start}, [(start, iter(after[start]))]
    while stack:
        block, rest = stack[-1]
        following = next(rest, None)
        if following is None:
            path.discard(block)
            stack.pop()
        elif following in path:
            yield block, following
        elif following not in seen:
            seen.add(following)
            path.add(following)
            stack.append((following, iter(after[following])))


def _between(after: Mapping[str, Sequence[str]], head: str, latch: str) -> set[str]:
    """Return the blocks from which `latch` is reached without passing `head`."""
    found, todo = {head}, [latch]
    while todo:
        block = todo.pop()
        if block not in found:
            found.add(block)
            todo += [name for name, targets in after.items() if block in targets]
    return found


class _Counter:
    """Counts the lines of one loop; `given` are names that loops inside it leave behind."""

    def __init__(self, lines: Sequence[_Instruction], given: set[str], vector_bits: int) -> None:
        self.lines, self.vector_bits = lines, vector_bits
        self.by_name = {line.name: line for line in lines if line.name}
        self.depth = dict.fromkeys(given, 0.0)  # of what changes from round to round
        self.work = Work()

    def count(self) -> Work:
        """Return the work of a round."""
        for line in self.lines:
            if not self._varies(line):
                continue
            latency = self._line(line)
            before = max((self.depth.get(name, 0.0) for name in line.operands), default=0.0)
            self.depth[line.name] = 0.0 if line.opcode == "phi" else before + latency
        self.work.depth = max(self.depth.values(), default=0.0)
        return self.work

    def _varies(self, line: _Instruction) -> bool:
        """Return whether an instruction has to be done in every round."""
        always = line.opcode in ("phi", "store", "br") or "prefetch" in line.text
        reads = line.opcode == "load" and "!invariant.load" not in line.text
        return always or reads or any(name in self.depth for name in line.operands)

    def _line(self, line: _Instruction) -> float:
        """Count an instruction; return how many latencies of arithmetic it takes."""
        if line.opcode in _FREE:
            return 0
        if line.opcode in ("load", "store"):
            self.work.add(f"{line.opcode}s", self._registers(line.text))
            return 1 if line.opcode == "load" else 0
        if _VECTOR.search(line.text) is None:
            self.work.add("loads" if "prefetch" in line.text else "scalars")
            return 0.25
        kind, count = self._kind(line)
        count *= self._registers(line.text)
        self.work.add(kind, count)
        return min(count, 2.0)

    def _registers(self, text: str) -> float:
        """Return how many registers the widest vector of an instruction takes."""
        sizes = [
            int(n) * (_BITS[kind] if kind in _BITS else int(kind[1:]))
            for n, kind in _VECTOR.findall(text)
        ]
        return max(1.0, max(sizes, default=0) / self.vector_bits)

    def _kind(self, line: _Instruction) -> tuple[str, float]:
        """Return the kind of a vector instruction and how many instructions it becomes."""
        opcode = line.opcode
        if opcode == "call":
            return _call(line.text)
        if opcode == "select":
            return "logic", 0 if self._is_maximum(line) else 1
        if opcode in _SHUFFLES:
            return "shuffles", self._shuffle(line)
        if opcode == "fdiv":
            return "divisions", 1
        if opcode in _ADDS or opcode in _FLOATS:
            return "adds" if opcode in _ADDS else "arithmetic", 1
        return "logic", _INTEGER_PRODUCT if opcode == "mul" else 1

    def _is_maximum(self, line: _Instruction) -> bool:
        """Return whether a comparison and this selection of what it compared are one maximum."""
        condition = self.by_name.get(line.operands[0]) if line.operands else None
        if condition is None or condition.opcode != "fcmp":
            return False
        return bool(condition.operands) and set(condition.operands) == set(line.operands[1:])

    def _shuffle(self, line: _Instruction) -> float:
        """Return 0 for both halves of a broadcast from memory, which is a load, else 1."""
        if line.opcode == "insertelement" and "undef" in line.text:
            return 0
        source = self.by_name.get(line.operands[0] if line.operands else "")
        if _FIRST_LANE.search(line.text) is None or source is None:
            return 1
        inserted = [self.by_name[name].opcode for name in source.operands if name in self.by_name]
        return 0 if source.opcode == "insertelement" and "load" in inserted else 1


def _call(text: str) -> tuple[str, float]:
    if "sqrt" in text:
        return "divisions", 1
    known = [count for name, count in _CALLS.items() if name in text]
    return ("logic", 1) if "fabs" in text else ("arithmetic", known[0] if known else 1)
