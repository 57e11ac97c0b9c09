"""What can be judged: the protocol, and a base class with the defaults of all that is optional."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from sdpakit.conformance.model import Profile
from sdpakit.errors import UnsupportedSpecError

if TYPE_CHECKING:
    from sdpakit.spec import AttentionSpec

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


class BaseTarget:
    """A target that promises nothing; derive from it and override what differs.

    Attributes
    ----------
    name, profile, outputs, takes_out, takes_threads, versions, note
        See `Target`.
    """

    name: str = ""
    profile: Profile = Profile()
    outputs: tuple[str, ...] = OUTPUTS
    takes_out: bool = False
    takes_threads: bool = False
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
