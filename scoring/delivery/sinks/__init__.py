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
    erase(settings: Settings, request: EraseRequest) -> Erased
        optional: removes users (jobs/erase_user.py)
    IN_PROCESS = True
        optional: `deliver` also accepts lists that are an Arrow table. IN_PROCESS may also be a function of
        the settings that returns whether `deliver` does so

A delivery can be repeated: it replaces the lists of a date, and readers see either the old or the new lists.
A sink raises only NightrankErrors. Only modules of sinks in the configuration are imported; a sink imports
heavy packages inside of its functions.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

from conf.errors import ConfigError
from conf.load import read_section
from conf.plugins import SINK
from conf.types import Deliver, SinkConfig, SinkSettings
from scoring.delivery.published_lists import Delivered, Erased, EraseRequest, PublishedLists


def read_settings(deliver: Deliver) -> list[tuple[ModuleType, Any]]:
    """Returns the module and the checked settings of each sink, in the order of the section `deliver`.

    The function reads the entry points of packages even if the checkout has all the sinks. So a package with
    a sink of the same name causes an error.

    Raises:
        ConfigError: a sink does not exist or cannot be imported, a key is not one of its settings, a value
            breaks its rule, or two sinks of the same kind are installed.
    """
    if deliver.sinks:
        SINK.of_packages()
    return [_read(sink, index) for index, sink in enumerate(deliver.sinks)]


def _read(sink: SinkConfig, index: int) -> tuple[ModuleType, SinkSettings]:
    module = _module(sink.kind, f"deliver.sinks.{index}.kind")
    settings: type[SinkSettings] = module.Settings
    read = read_section(
        settings,
        sink.model_dump(),
        f"sink {sink.name}: ",
        f"its settings are {sorted(settings.model_fields)}; correct these keys in the configuration file or "
        "in --set",
        ("deliver", "sinks", str(index), sink.kind),
    )
    return module, read


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


def check_access(deliver: Deliver) -> None:
    """Checks that each sink's user, password and driver exist where the configuration names them.

    Raises:
        ConfigError: a user, a password or a driver is missing, or `read_settings` raises this error.
    """
    for module, settings in read_settings(deliver):
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
