"""Which checks a launch makes."""

from __future__ import annotations

from dataclasses import dataclass, fields


@dataclass(frozen=True, kw_only=True)
class Checks:
    """Switches, all on; each is named like the `name` of the fault that it raises.

    Accesses outside the memory of the emulator itself are refused whatever is switched off.
    """

    bounds: bool = True
    alignment: bool = True
    uninitialised: bool = True
    unwritten: bool = True
    race: bool = True
    wait: bool = True
    proxy: bool = True
    accumulator: bool = True
    barrier: bool = True
    divergence: bool = True

    @classmethod
    def only(cls, *names: str) -> Checks:
        """Return checks with just these on.

        Raises
        ------
        ValueError
            For a name that is no check.
        """
        known = {field.name for field in fields(cls)}
        if unknown := sorted(set(names) - known):
            raise ValueError(f"unknown checks {unknown}; there are {sorted(known)}")
        return cls(**{name: name in names for name in known})
