"""In which order the blocks of a program should run, so that lanes that part meet again.

Of the lanes that can run, the scheduler picks those whose block has the lowest *rank*. Lanes meet
again as soon as they can if the rank of a block is above that of all blocks that lead to it. Loops
have no such order, so the blocks of a loop stand together: what follows a loop waits until all
lanes have left it. The head of a loop ranks last within the loop, which keeps lanes that are
ahead from starting the next round while others are still in this one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from sdpakit.ptxemu.program import Operand, Program, Target, Vector

Graph = dict[int, list[int]]


def ranks(program: Program) -> list[int]:
    """Return the rank of each block; the end of the program, ``len(blocks)``, has the highest."""
    graph = {number: successors(program, number) for number in range(len(program.blocks))}
    end = len(program.blocks)
    order = _ordered({n: [s for s in after if s != end] for n, after in graph.items()}, {0})
    found = [0] * (end + 1)
    for rank, number in enumerate([*order, end]):
        found[number] = rank
    return found


def successors(program: Program, number: int) -> list[int]:
    """Return the blocks that may follow a block."""
    block = program.blocks[number]
    if block.start == block.stop:
        return [number + 1]
    last = program.instructions[block.stop - 1]
    if last.opcode in {"bra", "brx"}:
        after = list(dict.fromkeys(targets(last.operands)))
    elif last.opcode in {"ret", "exit", "trap"}:
        after = []
    else:
        return [number + 1]
    if last.guard is not None and number + 1 not in after:
        after.append(number + 1)
    return after


def targets(operands: Sequence[Operand]) -> Iterator[int]:
    """Yield the blocks that operands name, those in vectors too."""
    for operand in operands:
        if isinstance(operand, Target):
            yield operand.block
        elif isinstance(operand, Vector):
            yield from targets(operand.items)


def _ordered(graph: Graph, entries: set[int]) -> list[int]:
    """Return the nodes in an order of the kind that this module is about."""
    found: list[int] = []
    for component in reversed(_components(graph)):
        if len(component) == 1:
            found.extend(component)
            continue
        inside = set(component)
        # The head is where other nodes, or the caller, come in; of several, the first in the text.
        heads = {s for n, after in graph.items() if n not in inside for s in after} | entries
        head = min(inside & heads, default=min(inside))
        rest = {
            n: [s for s in graph[n] if s in inside and s != head] for n in sorted(inside - {head})
        }
        found.extend(_ordered(rest, {s for s in graph[head] if s in rest}))
        found.append(head)
    return found


def _components(graph: Graph) -> list[list[int]]:
    """Return the strongly connected components, each after those that it leads to (Tarjan).

    What stands later in the text is walked first, so that the reversed result is as close to the
    text as it can be.
    """
    walk = _Walk(graph)
    for root in sorted(graph, reverse=True):
        if root not in walk.index:
            walk.from_root(root)
    return walk.found


class _Walk:
    """The state of Tarjan's algorithm; without recursion, as programs have thousands of blocks."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.index: dict[int, int] = {}
        self.low: dict[int, int] = {}
        self.stack: list[int] = []
        self.on_stack: set[int] = set()
        self.found: list[list[int]] = []

    def from_root(self, root: int) -> None:
        path = [self.enter(root)]
        while path:
            node, after = path[-1]
            for successor in after:
                if successor not in self.index:
                    path.append(self.enter(successor))
                    break
                if successor in self.on_stack:
                    self.low[node] = min(self.low[node], self.index[successor])
            else:
                path.pop()
                if path:
                    above = path[-1][0]
                    self.low[above] = min(self.low[above], self.low[node])
                self.leave(node)

    def enter(self, node: int) -> tuple[int, Iterator[int]]:
        self.index[node] = self.low[node] = len(self.index)
        self.stack.append(node)
        self.on_stack.add(node)
        return node, iter(sorted(self.graph[node], reverse=True))

    def leave(self, node: int) -> None:
        if self.low[node] != self.index[node]:
            return
        cut = self.stack.index(node)
        self.found.append(self.stack[cut:])
        self.on_stack.difference_update(self.stack[cut:])
        del self.stack[cut:]
