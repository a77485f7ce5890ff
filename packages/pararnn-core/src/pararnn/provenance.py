"""Who offers a record, and the loading of what it names."""

from __future__ import annotations

import pkgutil
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from pararnn.errors import PluginError, sentence
from pararnn.specs import Spec

S = TypeVar("S", bound=Spec, covariant=True)


@dataclass(frozen=True, kw_only=True)
class Provenance:
    """Who offers a record: distribution, its version, and the name of the entry point."""

    distribution: str
    version: str
    plugin: str

    def __str__(self) -> str:
        return f"{self.distribution} {self.version}"


@dataclass(frozen=True)
class Entry(Generic[S]):
    """A record and who offers it."""

    spec: S
    provenance: Provenance

    @property
    def name(self) -> str:
        """The bare name, shared by every distribution that offers it."""
        return self.spec.name

    @property
    def qualified_name(self) -> str:
        """`distribution:name`, which is unique."""
        return f"{self.provenance.distribution}:{self.spec.name}"

    @property
    def summary(self) -> str:
        """One line for a table."""
        return self.spec.summary

    def load(self) -> Any:
        """Import and return the object that the record names; `PluginError` when it is not there."""
        return self.resolve(self.spec.target)

    def resolve(self, target: str) -> Any:
        """Import and return the object behind one of the record's targets; `PluginError` when it is not there."""
        try:
            return pkgutil.resolve_name(target)
        except (ImportError, AttributeError) as error:
            raise PluginError(
                f"{self.spec.name!r} of {self.provenance} names {target!r}, which cannot be imported ({sentence(error)}); "
                f"install what is missing, reinstall {self.provenance.distribution}, or report it to its authors",
                target=target,
                provenance=self.provenance,
            ) from error
