"""What can be judged: the protocol, and a base class with the defaults of all that is optional."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias

from sdpakit.conformance.model import Profile
from sdpakit.errors import ArgumentTypeError, UnsupportedSpecError, format_error

if TYPE_CHECKING:
    from sdpakit.spec import AttentionSpec

BadCalls: TypeAlias = Literal["exact", "builtin", "unchecked"]
OUTPUTS: tuple[str, ...] = ("out", "lse", "max_logit", "entropy", "sum_p2")


class Target(Protocol):
    """What can be judged."""

    @property
    def name(self) -> str:
        """Name in reports."""
        ...

    @property
    def profile(self) -> Profile:
        """Numerics that the bounds ask for."""
        ...

    @property
    def outputs(self) -> tuple[str, ...]:
        """Outputs that the target can give; others of a case are left unjudged."""
        ...

    @property
    def takes_out(self) -> bool:
        """Whether the callables take `out=`, a mapping from output names to arrays."""
        ...

    @property
    def takes_threads(self) -> bool:
        """Whether the callables take `threads=`, a number."""
        ...

    @property
    def bad_calls(self) -> BadCalls:
        """How a call that does not fit its spec is answered (ERR-1).

        "exact": by the exception class of sdpakit that the case names, with a message of its form.
        "builtin": by any `ValueError` or `TypeError`, as of a program that knows nothing of
        sdpakit. "unchecked": calls are not checked, and cases about them are not put to it.
        """
        ...

    @property
    def versions(self) -> Mapping[str, str]:
        """Versions of the packages that it runs, for the report."""
        ...

    @property
    def note(self) -> str:
        """One line for the report: what is called, and how."""
        ...

    def declares(self, spec: AttentionSpec) -> bool:
        """Return whether the target promises to do this spec, so that a refusal is a failure."""
        ...

    def prepare(self, spec: AttentionSpec) -> Callable[..., Any]:
        """Return a callable (q, k, v, **operands) -> array, or mapping or named tuple of outputs.

        Parameters
        ----------
        spec : AttentionSpec
            What to compute.

        Returns
        -------
        callable
            May be called several times.

        Raises
        ------
        UnsupportedSpecError
            If the target does not do this spec; anything else is a failure.
        """
        ...

    def prepare_gradients(self, spec: AttentionSpec) -> Callable[..., Mapping[str, Any]]:
        """Return a callable (q, k, v, dout=, **operands) -> gradients by name.

        Parameters
        ----------
        spec : AttentionSpec
            What to differentiate.

        Returns
        -------
        callable
            Gives "dq", "dk", "dv", and "dbias", "dsinks", "dparams.NAME" where there is such an
            operand, each in the shape, layout and dtype of its operand (GRAD-3).

        Raises
        ------
        UnsupportedSpecError
            If the target has no gradients, or not of this spec.
        """
        ...


def refusal(name: str, *reasons: str) -> UnsupportedSpecError:
    """Return the exception by which a target says that it does not do a spec.

    Parameters
    ----------
    name : str
        Name of the target.
    *reasons : str
        Why not, at least one; "it has no sinks".

    Returns
    -------
    UnsupportedSpecError
        To be raised from `prepare`.
    """
    return UnsupportedSpecError(f"{name}: {'; '.join(reasons)}", {name: reasons})


class Prepares(Protocol):
    """The least that can be judged."""

    @property
    def name(self) -> str:
        """See `Target.name`."""
        ...

    def prepare(self, spec: AttentionSpec) -> Callable[..., Any]:
        """See `Target.prepare`."""
        ...


AnyTarget: TypeAlias = "Target | Prepares | Callable[..., Any]"


class BaseTarget:
    """A target that promises nothing; derive from it and override what differs.

    Attributes
    ----------
    name, profile, outputs, takes_out, takes_threads, bad_calls, versions, note
        See `Target`.
    """

    name: str = ""
    profile: Profile = Profile()
    outputs: tuple[str, ...] = OUTPUTS
    takes_out: bool = False
    takes_threads: bool = False
    bad_calls: BadCalls = "builtin"
    versions: Mapping[str, str] = {}
    note: str = ""

    def declares(self, spec: AttentionSpec) -> bool:
        """Return False: nothing is promised."""
        return False

    def prepare(self, spec: AttentionSpec) -> Callable[..., Any]:
        """Refuse; see `Target.prepare`."""
        raise refusal(self.name, "it computes nothing")

    def prepare_gradients(self, spec: AttentionSpec) -> Callable[..., Mapping[str, Any]]:
        """Refuse; see `Target.prepare_gradients`."""
        raise refusal(self.name, "it has no gradients")


class _Adopted(BaseTarget):
    """An object with the defaults of `BaseTarget` for what it lacks."""

    def __init__(self, given: Any) -> None:
        for name in _MEMBERS:
            if hasattr(given, name):
                setattr(self, name, getattr(given, name))


_MEMBERS = tuple(name for name in vars(Target) if not name.startswith("_"))


def adopt(given: AnyTarget) -> Target:
    """Return a complete target for whatever can be judged.

    Parameters
    ----------
    given : Target, object with `prepare`, or function
        What an object lacks beyond `prepare` has the default of `BaseTarget`, and its name is that
        of its class; a function becomes a `FunctionTarget`.

    Returns
    -------
    Target
        The same object if nothing is missing.

    Raises
    ------
    ArgumentTypeError
        If it is a class, or neither has `prepare` nor can be called.
    """
    if isinstance(given, type):
        raise _not_a_target(f"the class {given.__name__}", f"give an object: {given.__name__}(...)")
    if callable(getattr(given, "prepare", None)):
        if all(hasattr(given, name) for name in _MEMBERS):
            return given  # type: ignore[return-value] # it has every member of the protocol
        adopted = _Adopted(given)
        adopted.name = adopted.name or type(given).__name__
        return adopted
    if callable(given):
        from sdpakit.conformance.targets.function import FunctionTarget

        return FunctionTarget(given)
    raise _not_a_target(f"{type(given).__name__}", "derive from sdpakit.conformance.BaseTarget")


def _not_a_target(got: str, fix: str) -> ArgumentTypeError:
    allowed = "an object with a method prepare, or a function of q, k, v"
    return ArgumentTypeError(format_error("target", got=got, allowed=allowed, fix=fix))
