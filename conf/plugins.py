"""Plug-ins: the readers, operators, models, losses, candidate sources, rules and sinks, by kind and name.

Each plug-in is one module. For each kind, a folder contains the plug-ins of the checkout, and no other files.
The name of a file is the name of the plug-in in configurations. A package adds a plug-in by an entry point of
the group `nightrank.<kind>`. The name of the entry point is the name of the plug-in, and its value is the
module. docs/extending.md describes the modules of each kind.

This module only lists names. It imports a plug-in when the plug-in is used. So `conf` depends on no other
folder. Reading the entry points opens a file of each installed package. So a process reads them at most once.
It reads them only if a configuration has a name that the checkout does not have, or if all names are listed.

The version of a model depends on code, so it contains digests of source files (`source_digests`).
`PluginNames` adds the names of the checkout's plug-ins to the JSON schema of a key.
"""

from __future__ import annotations

import pkgutil
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from hashlib import sha256
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from importlib.resources import files
from importlib.resources.abc import Traversable
from importlib.util import find_spec
from pathlib import PurePath
from types import ModuleType
from typing import Any, TypeVar

from pydantic import GetJsonSchemaHandler
from pydantic_core import CoreSchema

from conf.errors import ConfigError

Settings = TypeVar("Settings")
# The suffixes of source files and of compiled modules.
_SUFFIXES = (".py", ".so")


@dataclass(frozen=True)
class Kind:
    """A kind of plug-ins.

    Attributes:
        name: the name of the kind; `nightrank.<name>` is the group of the entry points of packages.
        word: the noun for one plug-in of this kind, for messages.
        folder: the package whose modules are the plug-ins of the checkout.
        settings_folder: a package whose modules have the settings of plug-ins that import heavy packages;
            None if settings are in the plug-ins themselves.
    """

    name: str
    word: str
    folder: str
    settings_folder: str | None = None

    def __str__(self) -> str:
        return self.name

    @property
    def words(self) -> str:
        """Returns the noun for several plug-ins of this kind."""
        return f"{self.word}es" if self.word.endswith("s") else f"{self.word}s"

    def built_in(self) -> dict[str, str]:
        """Maps the names of the plug-ins of the checkout to their modules, in the order of the names.

        The modules are not imported. They may be in a folder or in an archive.
        """
        return {name: f"{self.folder}.{name}" for name in _modules_in(self.folder)}

    def of_packages(self) -> dict[str, Plugin]:
        """Maps the names of the plug-ins of all installed packages to the plug-ins, without importing them.

        Raises:
            ConfigError: two plug-ins from packages have the same name, or one has a name of the checkout.
        """
        built_in = self.built_in()
        by_name: dict[str, Plugin] = {}
        for plugin in _installed(tuple(sys.path)):
            if plugin.kind != self:
                continue
            other = by_name.get(plugin.name)
            if plugin.name in built_in or other is not None:
                first = other.origin if other is not None else f"{built_in[plugin.name]} of the checkout"
                raise ConfigError(
                    f"two {self.words} are named {plugin.name!r}: {first} and {plugin.origin}",
                    f"remove the package {plugin.package}, or rename its entry point",
                )
            by_name[plugin.name] = plugin
        return by_name

    def names(self) -> list[str]:
        """Returns the names of all plug-ins of this kind, from the checkout and from packages.

        Raises the errors of `of_packages`.
        """
        return sorted([*self.built_in(), *self.of_packages()])

    def plugins(self) -> list[Plugin]:
        """Returns the plug-ins of the checkout, in the order of their names."""
        return [Plugin(self, name, module) for name, module in self.built_in().items()]

    def find(self, name: str) -> Plugin | None:
        """Returns the plug-in with this name, from the checkout or from a package; None if there is none.

        The entry points of packages are not read if the checkout has the name. Raises the errors of
        `of_packages`.
        """
        module = self.built_in().get(name)
        return self.of_packages().get(name) if module is None else Plugin(self, name, module)

    def find_in_package(self, name: str) -> Plugin | None:
        """Returns the plug-in with this name from a package; None without one, or if the checkout has it.

        The entry points of packages are not read if the checkout has the name. Raises the errors of
        `of_packages`.
        """
        plugin = self.find(name)
        return plugin if plugin is not None and plugin.package is not None else None

    def get(self, name: str) -> Plugin:
        """Returns the plug-in with this name. Call it for names that passed the check of the configuration.

        Raises:
            ConfigError: there is no such plug-in in this process. Also raises the errors of `of_packages`.
        """
        plugin = self.find(name)
        if plugin is None:
            raise ConfigError(
                f"there is no {self.word} {name!r}; known: {self.names()}",
                f"use one of these, or install the package with this {self.word} in the environment of every "
                "process of the job",
            )
        return plugin


LOSS = Kind("losses", "loss", "training.losses")
OPERATOR = Kind("operators", "operator", "etl.operators")
MODEL = Kind("models", "architecture", "training.architectures", "training.architecture_settings")
RULE = Kind("rules", "rule", "scoring.rules.plugins")
SOURCE = Kind("candidate_sources", "source", "scoring.candidates.sources")
SINK = Kind("sinks", "sink", "scoring.delivery.sinks")
READER = Kind("readers", "reader", "etl.readers.formats")
KINDS: Mapping[str, Kind] = {kind.name: kind for kind in (READER, OPERATOR, MODEL, LOSS, SOURCE, RULE, SINK)}


@dataclass(frozen=True)
class Plugin:
    """One operator, model, loss, rule, source, sink or reader.

    Attributes:
        kind: the kind of the plug-in, such as SOURCE.
        name: the name that configurations use, such as `popular`.
        module: the full name of the module, for `importlib.import_module`.
        package: the name of the package (the distribution) that has the module; None for the checkout.
        package_version: the version of this package; empty for the checkout.
    """

    kind: Kind
    name: str
    module: str
    package: str | None = None
    package_version: str = ""

    def __str__(self) -> str:
        return f"the {self.kind.word} {self.name!r}, {self.origin},"

    @property
    def origin(self) -> str:
        """Returns the module of a plug-in, and its checkout or package, as words for messages."""
        place = "checkout" if self.package is None else f"package {self.package} {self.package_version}"
        return f"the module {self.module} of the {place}"

    def load(self) -> ModuleType:
        """Returns the module, and imports it at the first use.

        Raises:
            ConfigError: the module of a package cannot be imported. The error names the package and the
                reason.
        """
        if self.package is None:
            return import_module(self.module)
        try:
            return import_module(self.module)
        except (Exception, SystemExit) as error:  # a module of another package may raise any exception
            raise ConfigError(
                f"{self} cannot be imported: {type(error).__name__}: {error}",
                "correct or reinstall the package that has this entry point",
            ) from error

    def load_settings(self) -> ModuleType:
        """Returns the module with the settings: a module of `Kind.settings_folder`, or the plug-in itself.

        Raises:
            ConfigError: see `load`.
        """
        folder = self.kind.settings_folder
        if self.package is None and folder is not None and self.name in _modules_in(folder):
            return import_module(f"{folder}.{self.name}")
        return self.load()

    def settings(self, kind: type[Settings]) -> type[Settings]:
        """Returns the class `Settings`, which has the base class `kind`.

        Raises:
            ConfigError: see `member`.
        """
        settings_class: type[Settings] = self._member(self.load_settings(), "Settings", kind)
        return settings_class

    def member(self, name: str, kind: type = object) -> Any:
        """Returns a class or function of the module.

        Args:
            name: the name of the class or function, such as `Settings`.
            kind: the base class that a class must have; `object` for a function.

        Raises:
            ConfigError: the module cannot be imported, or has no such class or function.
        """
        return self._member(self.load(), name, kind)

    def _member(self, module: ModuleType, name: str, kind: type) -> Any:
        value = getattr(module, name, None)
        is_class = isinstance(value, type) and issubclass(value, kind)
        if not (callable(value) if kind is object else is_class):
            what = f"a function {name}" if kind is object else f"a class {name}({kind.__name__})"
            raise ConfigError(
                f"{self} lacks {what}",
                f"correct the module; docs/extending.md describes the contract of nightrank.{self.kind.name}",
            )
        return value

    def digest(self) -> str:
        """Returns a digest of the package's name and version, and of all source files beside the module.

        The source files are all files of the outermost Python package that contains the module, or the module
        alone. They include compiled modules, but not the files of other packages that the module imports.

        Raises:
            ConfigError: the module cannot be imported.
        """
        self.load()
        code = f"{self.package} {self.package_version} {_code_digest(self.module)}"
        return sha256(code.encode()).hexdigest()[:16]


def summary(described: Any) -> str:
    """Returns the first paragraph of the docstring of a class on one line, for descriptions of keys."""
    return " ".join((described.__doc__ or "").partition("\n\n")[0].split())


def description(described: Any) -> str:
    """Returns the docstring of a class on one line, for descriptions of keys."""
    return " ".join((described.__doc__ or "").split())


def digests_of(used: Iterable[Plugin | None]) -> dict[str, str]:
    """Returns the digests of those plug-ins of a configuration that come from packages.

    Only plug-ins that the configuration uses have a digest here. So if a package changes, only results
    that use one of its plug-ins count as outdated. Plug-ins of the checkout have no digest here.

    Raises:
        ConfigError: a module cannot be imported.
    """
    return {
        f"{one.kind.name}.{one.name}": one.digest()
        for one in used
        if one is not None and one.package is not None
    }


def _modules_in(folder: str) -> list[str]:
    """Returns the sorted names of the modules in a package, without importing the modules."""
    loaded = sys.modules.get(folder)
    spec = None if loaded else find_spec(folder)
    paths = loaded.__path__ if loaded else (spec and spec.submodule_search_locations) or []
    return _modules_at(tuple(paths))


@lru_cache(maxsize=32)
def _modules_at(paths: tuple[str, ...]) -> list[str]:
    return sorted(module.name for module in pkgutil.iter_modules(paths))


@lru_cache(maxsize=4)
def _installed(path: tuple[str, ...]) -> tuple[Plugin, ...]:
    """Returns the plug-ins of all packages on `path`, the import path of this process."""
    points = entry_points()
    return tuple(
        dict.fromkeys(
            _plugin(kind, point)
            for kind in KINDS.values()
            for point in points.select(group=f"nightrank.{kind.name}")
        )
    )


def _plugin(kind: Kind, point: EntryPoint) -> Plugin:
    package, version = (point.dist.name, point.dist.version) if point.dist is not None else ("", "")
    return Plugin(kind, point.name, point.value, package, version)


def _code_digest(module: str) -> str:
    """Returns the digest of the source files beside an imported module.

    A namespace package has no file, and may contain modules of other packages. So the digest covers
    the outermost package that has a file, and everything in it.
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


# Digests of source files, for results that depend on code, such as models.


def source_digests(
    folder: Traversable, name: str, suffixes: tuple[str, ...] = (".py",)
) -> Iterator[tuple[str, str]]:
    """Yields one pair (path, digest of the content) for every source file below a folder.

    Args:
        folder: a folder on a disk or in a zip archive.
        name: the beginning of each path.
        suffixes: the endings of the names of source files.
    """
    for entry in folder.iterdir():
        if entry.is_dir():
            yield from source_digests(entry, f"{name}/{entry.name}", suffixes)
        elif entry.name.endswith(suffixes):
            yield f"{name}/{entry.name}", sha256(entry.read_bytes()).hexdigest()


def combined_digest(sources: Iterable[tuple[str, str]]) -> str:
    """Returns one digest of 16 hex digits for some files.

    The order of the files does not change the digest.
    """
    return sha256("\n".join(f"{name} {digest}" for name, digest in sorted(sources)).encode()).hexdigest()[:16]


# If the value of a key is the name of a plug-in, the code below lists the checkout's names in its schema.


@dataclass(frozen=True)
class PluginNames:
    """An annotation of a key whose value is the name of a plug-in.

    The schema lists the names that the checkout has when the schema is created. Packages may add other names.

    Attributes:
        kind: the kind of the plug-ins whose names the schema lists.
    """

    kind: Kind

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> Any:
        """Returns the JSON schema of the annotated key, whose value is the name of a plug-in."""
        return self.schema()

    def schema(self) -> dict[str, Any]:
        """Returns the JSON schema of a string that is the name of one of the checkout's plug-ins."""
        return {"enum": [*self.kind.built_in()], "type": "string"}


def list_names(kind: Kind) -> Callable[[dict[str, Any]], None]:
    """Returns a function that lists the checkout's plug-ins in the description of a key in a JSON schema."""

    def add(schema: dict[str, Any]) -> None:
        names = ", ".join(f"`{name}`" for name in kind.built_in())
        schema["description"] += f" The {kind.words} of the checkout are {names}."

    return add
