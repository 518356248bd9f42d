"""Decoders, models and metrics that installed packages bring, found by their entry points.

A package lists them in its pyproject.toml, by the name that users type:

    [project.entry-points."npad.decoders"]
    branching = "npad_branching:Branching"

Names are listed without importing a package. A package is imported when a name is asked for that
npad itself does not have.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from npad.errors import InvalidInput, NpadError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

DECODERS, MODELS, METRICS = "npad.decoders", "npad.models", "npad.metrics"  # groups


@dataclass(frozen=True)
class Plugin:
    """A name that installed packages bring; one package, unless two bring the same name."""

    entries: tuple[EntryPoint, ...]

    def __str__(self) -> str:
        entry = self.entries[0]
        return f"{entry.name} of the package {_package(entry)}"

    @property
    def version(self) -> str:
        """The package with its version, and where the value is defined in it."""
        return f"{_package(self.entries[0])} {self.entries[0].value}"

    def load(self) -> Any:
        """Import the package and return what the name stands for.

        Raises:
            InvalidInput: the package cannot be imported, or two packages bring the name.
        """
        if len(self.entries) > 1:
            packages = " and ".join(map(_package, self.entries))
            name = self.entries[0].name
            raise InvalidInput(f"{packages} both bring {name}; uninstall one of these packages")
        return self.call(self.entries[0].load)

    def call(self, function: Callable[..., Any], **arguments: Any) -> Any:
        """Call what the package defines; an exception in it is reported in one line.

        Raises:
            InvalidInput: the call raises an exception.
        """
        try:
            return function(**arguments)
        except NpadError:
            raise
        except (Exception, SystemExit) as error:
            message = " ".join(f"{type(error).__name__}: {error}".split())
            advice = "update or uninstall that package"
            raise InvalidInput(f"{self} raised {message:.200}; {advice}") from error


def installed(group: str) -> dict[str, Plugin]:
    """Return what installed packages bring by name, without importing them."""
    found: dict[str, tuple[EntryPoint, ...]] = {}
    for entry in _entry_points():
        if entry.group == group:
            found[entry.name] = (*found.get(entry.name, ()), entry)
    return {name: Plugin(entries) for name, entries in sorted(found.items())}


@cache
def _entry_points() -> tuple[EntryPoint, ...]:
    from importlib.metadata import entry_points  # 25 ms

    groups = (DECODERS, MODELS, METRICS)
    return tuple(entry for group in groups for entry in entry_points(group=group))


def _package(entry: EntryPoint) -> str:
    """Return the name and version of the package that an entry point is from."""
    return "unknown" if entry.dist is None else f"{entry.dist.name} {entry.dist.version}"
