"""Extensions: modules of other packages, which add operators, models, rules, sources, sinks or readers.

A package names such a module by an entry point. The group of the entry point is `nightrank.<kind>`, its name
is the name of the extension in configurations, and its value is the module. docs/extending.md says what a
module of each kind contains.

The entry points of all packages are read at most once in a process, because this opens a file of each
package: when a configuration has a name that the checkout does not have, or when all names are listed. A
module is imported only if the configuration or a stored workflow uses its extension.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from hashlib import sha256
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from importlib.resources import files
from pathlib import PurePath
from types import ModuleType
from typing import Any, Literal

from conf.errors import ConfigError
from conf.source_digests import combined_digest, source_digests

Kind = Literal["operators", "models", "rules", "candidate_sources", "sinks", "readers"]

# How messages name a member of each kind.
_WORDS: Mapping[Kind, str] = {
    "operators": "operator",
    "models": "architecture",
    "rules": "rule",
    "candidate_sources": "source",
    "sinks": "sink",
    "readers": "reader",
}
# Source files and compiled modules of a package.
_SUFFIXES = (".py", ".so")


@dataclass(frozen=True)
class Extension:
    """A module of another package that adds one operator, model, rule, source, sink or reader.

    Attributes:
        kind: what the module adds.
        name: its name in configurations.
        module: the name of the module.
        package: the name of the package (the distribution) that has the module.
        package_version: the version of this package.
    """

    kind: Kind
    name: str
    module: str
    package: str
    package_version: str

    def __str__(self) -> str:
        return f"the {self.word} {self.name!r}, {self.origin},"

    @property
    def word(self) -> str:
        """Returns the word for a member of this kind, for messages."""
        return _WORDS[self.kind]

    @property
    def origin(self) -> str:
        """Returns the module and the package, for messages."""
        return f"the module {self.module} of the package {self.package} {self.package_version}"

    def load(self) -> ModuleType:
        """Returns the module, and imports it at the first use.

        Raises:
            ConfigError: the module cannot be imported. The error names the package and the reason.
        """
        try:
            return import_module(self.module)
        except (Exception, SystemExit) as error:  # a module of others may raise anything
            raise ConfigError(
                f"{self} cannot be imported: {type(error).__name__}: {error}",
                "correct or reinstall the package that has this entry point",
            ) from error

    def member(self, name: str, kind: type = object) -> Any:
        """Returns a class or function of the module.

        Args:
            name: its name in the module.
            kind: the base class that it must have, if it is a class; `object` for a function.

        Raises:
            ConfigError: the module cannot be imported, or has no such class or function.
        """
        value = getattr(self.load(), name, None)
        is_class = isinstance(value, type) and issubclass(value, kind)
        if not (callable(value) if kind is object else is_class):
            what = f"a function {name}" if kind is object else f"a class {name}({kind.__name__})"
            raise ConfigError(
                f"{self} lacks {what}",
                f"correct the module; docs/extending.md describes the contract of nightrank.{self.kind}",
            )
        return value

    def digest(self) -> str:
        """Returns a digest of the package's name and version, and of all source files beside the module.

        The source files are those of the outermost package of Python that contains the module, or the module
        alone. They include compiled modules. Files of other packages that the module imports do not count.

        Raises:
            ConfigError: the module cannot be imported.
        """
        self.load()
        code = f"{self.package} {self.package_version} {_code_digest(self.module)}"
        return sha256(code.encode()).hexdigest()[:16]


def extensions(kind: Kind, built_in: Mapping[str, str]) -> dict[str, Extension]:
    """Returns the extensions of a kind in all installed packages, by name, without importing them.

    Args:
        kind: the kind.
        built_in: maps the names of this kind that the checkout has to their modules.

    Raises:
        ConfigError: an extension has the name of another one, or a name of the checkout.
    """
    by_name: dict[str, Extension] = {}
    for extension in _installed(tuple(sys.path)):
        if extension.kind != kind:
            continue
        other = by_name.get(extension.name)
        if extension.name in built_in or other is not None:
            first = other.origin if other is not None else f"{built_in[extension.name]} of the checkout"
            raise ConfigError(
                f"two {_WORDS[kind]}s are named {extension.name!r}: {first} and {extension.origin}",
                "remove one of the two packages, or rename the entry point in one of them",
            )
        by_name[extension.name] = extension
    return by_name


def find_extension(kind: Kind, name: str, built_in: Mapping[str, str]) -> Extension | None:
    """Returns the extension with this name; None if there is none, or if the checkout has the name.

    The entry points of packages are not read if the checkout has the name. Raises the errors of `extensions`.
    """
    return None if name in built_in else extensions(kind, built_in).get(name)


def known_names(kind: Kind, built_in: Mapping[str, str]) -> list[str]:
    """Returns all names of a kind, those of the checkout and those of packages, for messages.

    Raises the errors of `extensions`.
    """
    return sorted([*built_in, *extensions(kind, built_in)])


def digests_of(used: Iterable[Extension | None]) -> dict[str, str]:
    """Returns the digests of the extensions that a configuration uses, for a version or for inputs.

    The result is empty if there are none, so that versions without extensions do not change.

    Raises:
        ConfigError: a module cannot be imported.
    """
    return {f"{one.kind}.{one.name}": one.digest() for one in used if one is not None}


@lru_cache(maxsize=4)
def _installed(path: tuple[str, ...]) -> tuple[Extension, ...]:
    """Returns the extensions of all packages on the import path `path`, which is the one of this process."""
    points = entry_points()
    return tuple(
        dict.fromkeys(
            _extension(kind, point) for kind in _WORDS for point in points.select(group=f"nightrank.{kind}")
        )
    )


def _extension(kind: Kind, point: EntryPoint) -> Extension:
    package, version = (point.dist.name, point.dist.version) if point.dist is not None else ("", "")
    return Extension(kind, point.name, point.value, package, version)


def _code_digest(module: str) -> str:
    """Returns the digest of the source files beside an imported module.

    A namespace package has no file, and may contain modules of other packages. So the search begins at the
    outermost package that has a file.
    """
    parts = module.split(".")
    names = [".".join(parts[: length + 1]) for length in range(len(parts))]
    root = next((sys.modules[name] for name in names if getattr(sys.modules[name], "__file__", None)), None)
    if root is None or root.__spec__ is None:
        return ""
    if hasattr(root, "__path__"):
        return combined_digest(source_digests(files(root), root.__name__, _SUFFIXES))
    loader: Any = root.__spec__.loader
    content: bytes = loader.get_data(root.__file__)
    return combined_digest([(PurePath(str(root.__file__)).name, sha256(content).hexdigest())])
