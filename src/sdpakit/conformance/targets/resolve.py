"""From the text that names a target to the target.

A text is, in this order: a name that comes with sdpakit, a peer, or "mutant:NAME"; an entry point
of the group "sdpakit.targets"; "package.module:object" or "path/to/file.py:object". What comes with
sdpakit wins over an entry point of its name: to install a package changes no target that was there
before, and the object of the entry point can be named as "package.module:object".

A package offers targets so::

    [project.entry-points."sdpakit.targets"]
    mine = "my_package.adapter:MyTarget"

The object is a target, a class or factory of one that is called without arguments, or a function of
q, k, v, which becomes a `FunctionTarget`.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import sys
import zlib
from collections.abc import Callable
from difflib import get_close_matches
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

from sdpakit.conformance.contained import described
from sdpakit.conformance.target import BaseTarget, Target, adopt
from sdpakit.conformance.undisturbed import loaded
from sdpakit.errors import ArgumentError, ArgumentTypeError, did_you_mean, format_error

GROUP = "sdpakit.targets"
_BACKENDS = ("interp", "numba_cpu")
_OWN = (*_BACKENDS, "cupy", "cupy-simt", "naive", "reference")
_MUTANT = "mutant:"
_FORMS = "package.module:object, path/to/file.py:object"
_KINDS = "a target, a class or factory of one that takes no arguments, a function of q, k, v"

T = TypeVar("T")


def names() -> tuple[str, ...]:
    """Return all names that can be resolved, mutants apart.

    Returns
    -------
    tuple of str
        What comes with sdpakit, then peers, installed or not, then entry points.
    """
    from sdpakit.conformance import peers

    others = sorted({point.name for point in entry_points(group=GROUP)})
    return tuple(dict.fromkeys((*_OWN, *peers.names(), *others)))


def resolve(text: str) -> Target:
    """Return the target that a text names.

    Parameters
    ----------
    text : str
        A name of `names()`, "mutant:NAME", "package.module:object" or "path/to/file.py:object".

    Returns
    -------
    Target
        A fresh one, where the object is a class or factory. A function is named as the text. What
        loading it changed in the process is put right and remembered (`undisturbed.at_load`).

    Raises
    ------
    ArgumentError
        If there is no such target, its module cannot be loaded, or it cannot be made.
    ArgumentTypeError
        If the object is of another kind.
    BackendUnavailableError
        If a peer is not installed.
    """
    if not isinstance(text, str):
        raise _kind_error(str(text), text)
    return loaded(lambda: _resolved(text))


def _resolved(text: str) -> Target:
    from sdpakit.conformance import peers

    if text in _OWN:
        return _own(text)
    if text in peers.names():
        return peers.make(text)
    if text.startswith(_MUTANT):
        return _mutant(text)
    points = [point for point in entry_points(group=GROUP) if point.name == text]
    if points:
        return _as_target(text, _of_entry_point(text, points))
    if ":" in text:
        return _as_target(text, _of_path(text))
    raise _error(text, f"{', '.join(names())}, {_MUTANT}NAME, {_FORMS}", _remedy(text))


def _own(name: str) -> Target:
    from sdpakit.conformance.targets import builtin_targets

    return builtin_targets()[name]


def _mutant(text: str) -> Target:
    from sdpakit.conformance.mutants import MUTANTS

    name = text.removeprefix(_MUTANT)
    if name not in MUTANTS:
        near = [repr(one) for one in get_close_matches(name, MUTANTS)]
        fix = f"did you mean {' or '.join(near)}?" if near else "name one of these"
        allowed = (
            f"{_MUTANT} and one of {len(MUTANTS)} names, "
            "those of sdpakit.conformance.mutants.MUTANTS"
        )
        raise _error(text, allowed, fix)
    target = MUTANTS[name].factory()
    target.name = text
    return target


def _of_entry_point(text: str, points: list[EntryPoint]) -> Any:
    """Return the object of an entry point; two that name different objects are an error."""
    where = sorted({f"{point.value} of {_package(point)}" for point in points})
    if len({point.value for point in points}) > 1:
        raise _error(
            text,
            f"one entry point of a name; there are {' and '.join(where)}",
            f"name the object, {points[0].value}, or uninstall one of the packages",
        )
    return _attempt(text, f"the entry point {where[0]}", points[0].load)


def _package(point: EntryPoint) -> str:
    return point.dist.name if point.dist is not None else "an unknown package"


def _of_path(text: str) -> Any:
    """Return the object that "package.module:object" or "path/to/file.py:object" names."""
    where, _, name = text.rpartition(":")
    if not where or not name:
        raise _error(text, _FORMS, "put a module before the colon and an object behind it")
    if where.endswith(".py") or "/" in where or "\\" in where:
        module = _of_file(text, Path(where))
    else:
        module = _of_module(text, where)
    return _member(text, module, name)


def _of_file(text: str, path: Path) -> ModuleType:
    if not path.is_file():
        beside = [str(one) for one in path.parent.glob("*.py")] if path.parent.is_dir() else []
        fix = did_you_mean(path, beside, "give the path of a file, from this folder or in full")
        raise _error(text, f"a file of Python; there is no {path}", fix)
    # A name of its own for each path: two files may be called alike.
    name = f"sdpakit_target_{path.stem}_{zlib.crc32(str(path.resolve()).encode()):08x}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise _error(text, "a file of Python, PATH.py", "give it a name that ends in .py")
    loader = spec.loader
    _reach(path.resolve().parent)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and pickle look their module up
    try:
        _attempt(text, f"the file {path}", lambda: loader.exec_module(module))
    except ArgumentError:
        del sys.modules[name]
        raise
    return module


def _of_module(text: str, name: str) -> ModuleType:
    _reach(Path.cwd())
    return _attempt(text, f"the module {name}", lambda: importlib.import_module(name))


def _reach(folder: Path) -> None:
    """Let modules of a folder be imported, behind all others: they hide nothing."""
    if str(folder) not in sys.path:
        sys.path.append(str(folder))


def _member(text: str, module: ModuleType, name: str) -> Any:
    found: Any = module
    for part in name.split("."):
        if not hasattr(found, part):
            where = text.rpartition(":")[0]
            offered = _offered(found)
            near = get_close_matches(part, offered, n=1)
            fix = f"name one of {', '.join(offered)}" if offered else f"define it in {where}"
            fix = f"did you mean {near[0]!r}?" if near else fix
            raise _error(text, f"an object; there is no {part!r} in {where}", fix)
        found = getattr(found, part)
    return found


def _offered(found: Any) -> list[str]:
    """Return the names of what may be a target: what can be called or prepares, no modules."""
    members = vars(found) if hasattr(found, "__dict__") else {}
    return [
        name
        for name, value in members.items()
        if not name.startswith("_")
        and (callable(value) or callable(getattr(value, "prepare", None)))
        and getattr(value, "__module__", None) != "typing"
    ]


def _as_target(text: str, found: Any) -> Target:
    """Return the target that an object is or makes."""
    if not isinstance(found, type):
        if callable(getattr(found, "prepare", None)):
            return adopt(found)
        if not callable(found):
            raise _kind_error(text, found)
        if not _is_factory(found):
            return _of_function(text, found)
    made = _attempt(text, f"{getattr(found, '__name__', 'it')}()", found)
    if callable(getattr(made, "prepare", None)) and not isinstance(made, type):
        return adopt(made)
    if callable(made) and not isinstance(made, type) and not _is_factory(made):
        return _of_function(text, made)
    raise _kind_error(text, made)


def _of_function(text: str, function: Callable[..., Any]) -> Target:
    from sdpakit.conformance.targets.function import FunctionTarget

    return FunctionTarget(function, name=text)


def _is_factory(found: Callable[..., Any]) -> bool:
    """Return whether a function is called without arguments; one of q, k, v is not."""
    try:
        parameters = inspect.signature(found).parameters.values()
    except (TypeError, ValueError):
        return False  # a built-in function that does not say
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    several = [p for p in parameters if p.kind is p.VAR_POSITIONAL]
    must = [
        p
        for p in parameters
        if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
    ]
    return not must and not several and len(positional) < 3


def _attempt(text: str, what: str, action: Callable[[], T]) -> T:
    """Do something with the user's code; what it raises is told as a bad target."""
    try:
        return action()
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        got = f"{text!r}: {what} raised {described(error)}"
        fix = "make it load in Python first"
        if isinstance(error, ModuleNotFoundError) and error.name:
            fix = f"install the package that has {error.name}, or name another module"
        raise ArgumentError(
            format_error("target", got=got, allowed=f"what loads, and gives {_KINDS}", fix=fix)
        ) from error


def _remedy(text: str) -> str:
    otherwise = "see `sdpakit conformance --list`"
    if "." in text:
        otherwise = f"name an object in it: {text}:object"
    return did_you_mean(text, names(), otherwise)


def _error(text: str, allowed: str, fix: str) -> ArgumentError:
    return ArgumentError(format_error("target", got=repr(text), allowed=allowed, fix=fix))


def _kind_error(text: str, found: object) -> ArgumentTypeError:
    kind = found.__name__ if isinstance(found, type) else type(found).__name__
    fix = f"derive from sdpakit.conformance.{BaseTarget.__name__}, or name a function"
    got = f"{text!r}, which gives {kind}"
    return ArgumentTypeError(format_error("target", got=got, allowed=_KINDS, fix=fix))
