"""What people do about the champion: roll back, pin, release. Each is a dated record; doing it again changes nothing."""

from __future__ import annotations

from dataclasses import dataclass

from conf.errors import ConfigError, DataError
from storage import file_io
from storage.paths import Lake
from training.registry import versions
from training.registry.champion_history import (
    Action,
    Intervention,
    interventions,
    standing_as_of,
    write_interventions,
)
from training.registry.model_json import is_complete

_SHORTEST = 4


@dataclass(frozen=True)
class Request:
    """Who wants what, from which run date on, and why. `version`: whom to roll back to, or whom to pin."""

    run_date: str
    by: str
    why: str
    version: str | None = None


def roll_back(lake: Lake, name: str, request: Request) -> Intervention | None:
    """Withdraws the champion, and every champion since `version` was one, so that it serves again from the run date on.

    Without a version: the champion before the present one. None where nothing is to be done: `version` serves already, or
    the run date has a rollback already and no version says how much further to go.

    Raises:
        DataError: there is no champion to go back to, or `version` has not been one.
    """
    standing = standing_as_of(lake, name, request.run_date)
    current = standing.champion
    served = list(standing.champions)
    if current is None:
        raise DataError(
            f"{lake.models(name)} has no champion on {request.run_date}", "there is nothing to roll back"
        )
    if request.version is None:
        if any(each.action == "rollback" for each in _of_date(lake, name, request.run_date)):
            return None
        target = next((version for _, version in reversed(served) if version != current), None)
        if target is None:
            raise DataError(
                f"champion {current} is the first of {name} that still counts: there is none to go back to",
                "train another one (train_model, evaluate_model), or pin a version with --pin",
            )
    else:
        target = _full(
            request.version, [version for _, version in served], f"champions up to {request.run_date}"
        )
        if target == current:
            return None
    last = max(place for place, (_, version) in enumerate(served) if version == target)
    withdrawn = {version for _, version in served[last + 1 :]} | {current}
    return _record(lake, name, request, "rollback", target, tuple(sorted(withdrawn)))


def pin(lake: Lake, name: str, request: Request) -> Intervention | None:
    """Makes a version champion from the run date on, whatever the gate says, until it is released; None if it is pinned.

    A version that was withdrawn counts again.

    Raises:
        DataError: there is no such version.
    """
    wanted = _full(request.version or "", _complete_versions(lake, name), "whole models")
    pinned = standing_as_of(lake, name, request.run_date).pinned
    if pinned is not None and pinned.champion == wanted:
        return None
    return _record(lake, name, request, "pin", wanted)


def release(lake: Lake, name: str, request: Request) -> Intervention | None:
    """Ends a pin: its version serves on until a challenger is promoted. None if nothing is pinned."""
    pinned = standing_as_of(lake, name, request.run_date).pinned
    return None if pinned is None else _record(lake, name, request, "release", pinned.champion)


def _record(
    lake: Lake,
    name: str,
    request: Request,
    action: Action,
    champion: str,
    withdrawn: tuple[str, ...] = (),
) -> Intervention:
    if not request.why.strip():
        raise ConfigError(f"a {action} needs a reason", "say it with --why, for those who read the history")
    made = Intervention(
        request.run_date, action, champion, request.by, request.why, file_io.utc_now(), withdrawn
    )
    write_interventions(lake, name, request.run_date, [*_of_date(lake, name, request.run_date), made])
    versions.set_aliases(lake, name)
    return made


def _of_date(lake: Lake, name: str, run_date: str) -> list[Intervention]:
    return [each for each in interventions(lake, name, run_date) if each.run_date == run_date]


def _complete_versions(lake: Lake, name: str) -> list[str]:
    folders = [info.base_name for info in file_io.list_files(lake.models(name)) if not info.is_file]
    return [each for each in folders if is_complete(versions.model_path(lake, name, each))]


def _full(given: str, known: list[str], what: str) -> str:
    """The one known version that is, or begins with, what was given."""
    found = sorted(
        {each for each in known if each == given or (len(given) >= _SHORTEST and each.startswith(given))}
    )
    if given in found:
        return given
    if len(found) != 1:
        problem = f"{given!r} is none of the {what}" if not found else f"{given!r} may be any of {found}"
        listed = ", ".join(dict.fromkeys(known)) or "none"
        raise DataError(problem, f"name one of them, or its first {_SHORTEST} letters at least: {listed}")
    return found[0]
