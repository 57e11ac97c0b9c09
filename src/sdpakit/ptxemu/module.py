"""A PTX module: its entries, and the program of each."""

from __future__ import annotations

from functools import cached_property

from sdpakit.ptxemu.errors import LaunchError
from sdpakit.ptxemu.layout import ModuleData, module_data
from sdpakit.ptxemu.linker import link
from sdpakit.ptxemu.parser import parse_tree
from sdpakit.ptxemu.program import Program
from sdpakit.ptxemu.slots import share_slots
from sdpakit.ptxemu.syntax import Function, Tree


class Module:
    """A parsed module.

    Parameters
    ----------
    tree : Tree
        What was parsed.

    Attributes
    ----------
    tree : Tree
        As given.
    """

    def __init__(self, tree: Tree) -> None:
        self.tree = tree
        self._programs: dict[str, Program] = {}

    @property
    def target(self) -> str:
        """Architecture: ``"sm_90a"``."""
        return self.tree.target

    @property
    def entries(self) -> tuple[str, ...]:
        """Names of the kernels, in order."""
        return tuple(self._functions)

    @cached_property
    def _functions(self) -> dict[str, Function]:
        return {f.name: f for f in self.tree.functions if f.is_entry and f.body is not None}

    @cached_property
    def _data(self) -> ModuleData:
        return module_data(self.tree)

    def program(self, name: str | None = None) -> Program:
        """Return a kernel, ready to run.

        Parameters
        ----------
        name : str, optional
            Of the entry; not needed if there is one only.

        Returns
        -------
        Program
            The same object each time.

        Raises
        ------
        LaunchError
            If there is no such entry, or several and no name.
        PtxSyntaxError
            If a name in it is not declared.
        UnsupportedInstruction
            If it calls what cannot be inlined.
        """
        if name is None:
            if len(self.entries) != 1:
                raise LaunchError(
                    f"the module has {len(self.entries)} entries, so give the name of one: "
                    f"{', '.join(self.entries) or 'there is none'}"
                )
            name = self.entries[0]
        if name not in self._functions:
            raise LaunchError(
                f"the module has no entry {name!r}; it has {', '.join(self.entries) or 'none'}"
            )
        if name not in self._programs:
            linked = link(self.tree, self._data, self._functions[name])
            self._programs[name] = share_slots(linked)
        return self._programs[name]


def parse(ptx: str) -> Module:
    """Parse PTX.

    Parameters
    ----------
    ptx : str
        The text of a module.

    Returns
    -------
    Module
        Its entries; each is linked when its program is asked for.

    Raises
    ------
    PtxSyntaxError
        If it is no PTX; the message has line and column and says what was expected.
    """
    return Module(parse_tree(ptx))
