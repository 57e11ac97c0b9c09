"""In which order the blocks of a program should run, so that lanes that part meet again.

Of the lanes that can run, the scheduler picks those whose block has the lowest *rank*. Lanes meet again at
the latest possible place if the rank of a block is above that of all blocks that lead to it. Loops
have no such order, so the blocks of a loop stand together: what follows a loop waits until all lanes have
left it. The head of a loop ranks last within the loop, which keeps lanes that are ahead from
starting the next round while others are still in this one.
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
        # In at the head: what other nodes, or the caller, lead to; the first in the text if it is not clear.
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
    index: dict[int, int] = {}
    low: dict[int, int] = {}
    stack: list[int] = []
    on_stack: set[int] = set()
    found: list[list[int]] = []

    def enter(node: int) -> tuple[int, Iterator[int]]:
        index[node] = low[node] = len(index)
        stack.append(node)
        on_stack.add(node)
        return node, iter(sorted(graph[node], reverse=True))

    def leave(node: int) -> None:
        if low[node] != index[node]:
            return
        cut = stack.index(node)
        found.append(stack[cut:])
        on_stack.difference_update(stack[cut:])
        del stack[cut:]

    for root in sorted(graph, reverse=True):
        if root in index:
            continue
        path = [enter(root)]
        while path:
            node, after = path[-1]
            for successor in after:
                if successor not in index:
                    path.append(enter(successor))
                    break
                if successor in on_stack:
                    low[node] = min(low[node], index[successor])
            else:
                path.pop()
                if path:
                    low[path[-1][0]] = min(low[path[-1][0]], low[node])
                leave(node)
    return found
