"""Overrides: manual changes of the champion (rollback, pin, release), and promotions that they forbid.

Each override is stored as a dated record. Repeating an override has no effect.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from conf.errors import ConfigError, DataError
from storage import file_io
from storage.leases import lease
from storage.paths import LakePaths
from training.registry import versions
from training.registry.champion_history import (
    Action,
    ChampionState,
    Override,
    champion_state_as_of,
    read_overrides,
    withdrawn_ancestor,
    write_overrides,
)
from training.registry.model_json import is_complete

_MIN_PREFIX_LENGTH = 4
_WAIT_S = 60.0  # how long to wait while another process changes the same date's overrides


@dataclass(frozen=True)
class OverrideRequest:
    """A requested change of the champion.

    Attributes:
        run_date: the date on which it takes effect.
        by: the person who requests it.
        why: the reason; must not be blank.
        version: the version to roll back to, or to pin. The first characters of the version are enough.
    """

    run_date: str
    by: str
    why: str
    version: str | None = None


def roll_back(lake: LakePaths, name: str, request: OverrideRequest) -> Override | None:
    """Withdraws all champions that came after `request.version`, so that this version serves again.

    If the request names no version, the newest earlier champion whose files are complete serves again.

    Returns:
        The recorded override; None if nothing changes. Nothing changes if `request.version` already serves,
        or if the request names no version and the newest override of the run date is a rollback.

    Raises:
        DataError: there is no earlier champion with complete files, `request.version` has never been
            champion, or its files are not complete.
    """
    return _alone(_roll_back, lake, name, request)


def _roll_back(lake: LakePaths, name: str, request: OverrideRequest) -> Override | None:
    state = champion_state_as_of(lake, name, request.run_date)
    current = state.champion
    if current is None:
        raise DataError(
            f"{lake.models(name)} has no champion on {request.run_date}, so there is nothing to roll back",
            "correct --run-date, or train a model first (train_model, evaluate_model)",
        )
    served = [version for _, version in state.champions]
    if request.version is None:
        overrides = _overrides_of_date(lake, name, request.run_date)
        if overrides and overrides[-1].action == "rollback":
            return None
        earlier = dict.fromkeys(version for version in reversed(served) if version != current)
        target = next((one for one in earlier if is_complete(versions.model_path(lake, name, one))), None)
        if target is None:
            deleted = f": the files of {', '.join(earlier)} are deleted or damaged" if earlier else ""
            raise DataError(
                f"{name} has no earlier champion that could serve again instead of {current}{deleted}",
                "train another model (train_model, evaluate_model), or pin a version with --pin. Complete "
                f"versions: {_listed(lake, name)}",
            )
    else:
        target = _full_version(request.version, served, f"champions up to {request.run_date}")
        if target == current:
            return None
        if not is_complete(versions.model_path(lake, name, target)):
            raise DataError(
                f"{target} cannot serve again, because its files are deleted or damaged",
                f"roll back to another champion, or pin a version with --pin. Complete versions: "
                f"{_listed(lake, name)}",
            )
    last = max(index for index, version in enumerate(served) if version == target)
    withdrawn = {*served[last + 1 :], current}
    return _record(lake, name, request, "rollback", target, tuple(sorted(withdrawn)))


def pin(lake: LakePaths, name: str, request: OverrideRequest) -> Override | None:
    """Makes a version champion until the pin is released, even if the gate promotes another model.

    If a rollback has withdrawn the version, the pin ends the withdrawal.

    Returns:
        The recorded override; None if the version is already pinned.

    Raises:
        DataError: the version does not exist.
    """
    return _alone(_pin, lake, name, request)


def _pin(lake: LakePaths, name: str, request: OverrideRequest) -> Override | None:
    target = _full_version(request.version or "", _complete_versions(lake, name), "complete models")
    pinned = champion_state_as_of(lake, name, request.run_date).pinned
    if pinned is not None and pinned.champion == target:
        return None
    return _record(lake, name, request, "pin", target)


def release(lake: LakePaths, name: str, request: OverrideRequest) -> Override | None:
    """Ends a pin. Returns the recorded override, or None if no version is pinned.

    After the release, the version that was pinned serves until a challenger is promoted.

    Raises:
        DataError: the gate has promoted another version on the run date, so this version would serve at once.
    """
    return _alone(_release, lake, name, request)


def _release(lake: LakePaths, name: str, request: OverrideRequest) -> Override | None:
    state = champion_state_as_of(lake, name, request.run_date)
    if state.pinned is None:
        return None
    pinned = state.pinned.champion
    # In `champions`, a date's promotion comes after its overrides. So if the last entry has the run date and
    # is not the pinned version, the gate promoted its version on this date.
    if state.champions and (last := state.champions[-1])[0] == request.run_date and last[1] != pinned:
        raise DataError(
            f"the gate promoted {last[1]} on {request.run_date}, so if the pin of {pinned} were released on "
            f"this date, {last[1]} would serve at once",
            f"release the pin on a later --run-date: {pinned} then serves until a challenger is promoted. Or "
            f"pin {last[1]}, if this version should serve",
        )
    return _record(lake, name, request, "release", pinned)


def _alone(
    change: Callable[[LakePaths, str, OverrideRequest], Override | None],
    lake: LakePaths,
    name: str,
    request: OverrideRequest,
) -> Override | None:
    """Makes a change while no other process changes the file with the overrides of the date.

    Then updates the aliases in MLflow.

    Raises:
        InfrastructureError: another process has been changing the overrides of the date for a minute.
    """
    with lease(lake, request.run_date, "champion", name, _WAIT_S):
        override = change(lake, name, request)
    if override is not None:
        versions.set_aliases(lake, name)
    return override


def _record(
    lake: LakePaths,
    name: str,
    request: OverrideRequest,
    action: Action,
    champion: str,
    withdrawn: tuple[str, ...] = (),
) -> Override:
    """Adds an override (a manual decision about the champion) to the file of its run date."""
    if not request.why.strip():
        raise ConfigError(
            f"a {action} needs a reason", "give the reason with --why, for people who read the history"
        )
    override = Override(
        request.run_date, action, champion, request.by, request.why, file_io.utc_now(), withdrawn
    )
    overrides = _overrides_of_date(lake, name, request.run_date)
    write_overrides(lake, name, request.run_date, [*overrides, override])
    return override


def _overrides_of_date(lake: LakePaths, name: str, run_date: str) -> list[Override]:
    return [override for override in read_overrides(lake, name, run_date) if override.run_date == run_date]


def _complete_versions(lake: LakePaths, name: str) -> list[str]:
    folders = [info.base_name for info in file_io.list_files(lake.models(name)) if not info.is_file]
    return [version for version in folders if is_complete(versions.model_path(lake, name, version))]


def _listed(lake: LakePaths, name: str) -> str:
    return ", ".join(sorted(_complete_versions(lake, name))) or "none"


def _full_version(prefix: str, candidates: list[str], what: str) -> str:
    """Returns the only candidate that starts with `prefix`. `what` names the candidates in errors."""
    long_enough = len(prefix) >= _MIN_PREFIX_LENGTH
    matches = sorted(
        {
            version
            for version in candidates
            if version == prefix or (long_enough and version.startswith(prefix))
        }
    )
    if prefix in matches:
        return prefix
    if len(matches) != 1:
        problem = f"{prefix!r} matches all of {matches}" if matches else f"{prefix!r} is none of the {what}"
        listed = ", ".join(dict.fromkeys(candidates)) or "none"
        raise DataError(
            problem,
            "write one of these versions, or enough of its first characters (at least "
            f"{_MIN_PREFIX_LENGTH}): {listed}",
        )
    return matches[0]


def reason_against_promotion(lake: LakePaths, name: str, version: str, state: ChampionState) -> str | None:
    """Returns why overrides forbid the promotion of a version; None if they allow it."""
    if state.pinned is not None and state.pinned.champion != version:
        return f"champion {state.pinned.champion} is pinned ({state.pinned})"
    return withdrawal_of(lake, name, version, state)


def withdrawal_of(lake: LakePaths, name: str, version: str, state: ChampionState) -> str | None:
    """Returns the rollback because of which a version may not serve; None if it may serve.

    The rollback withdrew the version or one of its ancestors (see `withdrawn_ancestor`).
    """
    ancestor = withdrawn_ancestor(lake, name, version, state)
    if ancestor is None:
        return None
    subject = version if ancestor == version else f"{version} was trained from {ancestor}, which"
    return f"{subject} was withdrawn ({state.withdrawn[ancestor]})"
