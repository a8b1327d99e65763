"""Sinks by name: `scoring/delivery/sinks/<kind>.py` contains the sink `<kind>`.

Every module of this folder is a sink. A package outside of the checkout adds a sink by an entry point of the
group `nightrank.sinks`. The name of the entry point is the kind of the sink, and its value is a module. The
module of a sink contains

    class Settings(SinkSettings)
        the keys of the sink below deliver.sinks
    deliver(settings: Settings, lists: PublishedLists) -> Delivered
        delivers the lists
    check(settings: Settings) -> None
        optional: raises ConfigError if credentials, drivers or files of a delivery are missing
    places(settings: Settings) -> list[str]
        optional: the folders (paths or URIs) and other places whose content a delivery replaces. Two sinks
        must not have a place in common, and a place must not be a table of the lake
    erase(settings: Settings, request: EraseRequest) -> Erased
        optional: removes users (jobs/erase_user.py)
    IN_PROCESS = True
        optional: `deliver` also accepts lists that are an Arrow table. IN_PROCESS may also be a function of
        the settings that returns whether `deliver` does so

In the key `path` of a sink, `{lake}` and `{data}` are replaced by the values of these keys.

A delivery can be repeated: it replaces the lists of a date, and readers see either the old or the new lists.
A sink raises only NightrankErrors. Only modules of sinks in the configuration are imported; a sink imports
heavy packages inside of its functions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Any

from conf.errors import ConfigError
from conf.load import read_section
from conf.names import SCHEMES, scheme_of
from conf.plugins import SINK
from conf.types import Deliver, SinkConfig, SinkSettings
from scoring.delivery.published_lists import Delivered, Erased, EraseRequest, PublishedLists
from storage import file_io
from storage.paths import FOLDERS


def read_settings(deliver: Deliver, folders: Mapping[str, str]) -> list[tuple[ModuleType, Any]]:
    """Returns the module and the checked settings of each sink, in the order of the section `deliver`.

    The function reads the entry points of packages even if the checkout has all the sinks. So a package with
    a sink of the same name causes an error.

    Args:
        deliver: the section of the configuration.
        folders: `folders` of the configuration: maps `lake` and `data` to the strings that replace `{lake}`
            and `{data}` in paths.

    Raises:
        ConfigError: a sink does not exist or cannot be imported, a key is not one of its settings, or a value
            breaks its rule. Also raised if two sinks of the same kind are installed, if two sinks have the
            same place, or if the place of a sink is a table of the lake.
    """
    if deliver.sinks:
        SINK.of_packages()
    sinks = [_read(sink, index, folders) for index, sink in enumerate(deliver.sinks)]
    _check_places(sinks, folders.get("lake"))
    return sinks


def _read(sink: SinkConfig, index: int, folders: Mapping[str, str]) -> tuple[ModuleType, SinkSettings]:
    module = _module(sink.kind, f"deliver.sinks.{index}.kind")
    settings: type[SinkSettings] = module.Settings
    values = sink.model_dump()
    if isinstance(values.get("path"), str):
        for placeholder, folder in folders.items():
            values["path"] = values["path"].replace(f"{{{placeholder}}}", folder)
    read = read_section(
        settings,
        values,
        f"sink {sink.name}: ",
        f"its settings are {sorted(settings.model_fields)}; correct these keys in the configuration file or "
        "in --set",
        ("deliver", "sinks", str(index), sink.kind),
    )
    return module, read


def _check_places(sinks: Sequence[tuple[ModuleType, SinkSettings]], lake: str | None) -> None:
    """Checks that no sink would replace what another sink or another job has written.

    Raises:
        ConfigError: two sinks have the same place, or a place is the lake or in a table of it.
    """
    names: dict[str, str] = {}
    for module, settings in sinks:
        places = getattr(module, "places", None)
        for place in places(settings) if places is not None else ():
            resolved = file_io.resolved(place) if scheme_of(place) in SCHEMES else place
            where = f"deliver.sinks: the sink {settings.name} delivers to {place}"
            other = names.setdefault(resolved, settings.name)
            if other != settings.name:
                raise ConfigError(
                    f"{where}, like the sink {other}: each would replace what the other has delivered",
                    "give each sink a place of its own",
                )
            if lake is not None and _is_of_lake(resolved, file_io.resolved(lake)):
                raise ConfigError(
                    f"{where}, but jobs write this folder of the lake {lake}",
                    "choose a folder outside of the lake, such as one next to it",
                )


def _is_of_lake(folder: str, lake: str) -> bool:
    """Returns whether a folder is the root of the lake, or in a folder that jobs write there."""
    below = folder.removeprefix(f"{lake}/")
    return folder == lake or (below != folder and below.split("/")[0] in FOLDERS)


def deliver_to(module: ModuleType, settings: SinkSettings, lists: PublishedLists) -> Delivered:
    """Delivers the lists to a sink that `read_settings` has returned.

    Raises:
        ConfigError: the function `deliver` of the sink does not return a `Delivered`.
    """
    delivered = module.deliver(settings, lists)
    if not isinstance(delivered, Delivered):
        raise ConfigError(
            f"the sink {settings.name} returned a {type(delivered).__name__}, not a Delivered",
            f"let `deliver` of {module.__name__} return a Delivered: the target and the number of entries",
        )
    return delivered


def works_in_process(module: ModuleType, settings: SinkSettings) -> bool:
    """Returns whether the sink can deliver lists that are an Arrow table, without Spark."""
    declared = getattr(module, "IN_PROCESS", False)
    return bool(declared(settings) if callable(declared) else declared)


def erase_from(module: ModuleType, settings: SinkSettings, request: EraseRequest) -> Erased | None:
    """Removes users from a sink of the configuration; returns None if the sink has no function `erase`."""
    erase = getattr(module, "erase", None)
    if erase is None:
        return None
    erased: Erased = erase(settings, request)
    return erased


def check_access(deliver: Deliver, folders: Mapping[str, str]) -> None:
    """Checks that each sink's user, password and driver exist where the configuration names them.

    Raises:
        ConfigError: a user, a password or a driver is missing, or `read_settings` raises this error.
    """
    for module, settings in read_settings(deliver, folders):
        check = getattr(module, "check", None)
        if check is not None:
            check(settings)


def _module(kind: str, key: str) -> ModuleType:
    """Returns the module of the sink that the configuration names under `key`.

    Raises:
        ConfigError: the sink does not exist, its module cannot be imported, or its module is not a sink.
    """
    plugin = SINK.find(kind)
    if plugin is None:
        raise ConfigError(
            f"{key}={kind!r} does not exist; known: {SINK.names()}",
            f"set {key} to one of these, or install a package with an entry point of the group "
            "nightrank.sinks",
        )
    plugin.settings(SinkSettings)
    plugin.member("deliver")
    return plugin.load()
