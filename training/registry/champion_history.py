"""Computes which model is champion on a date, from the gate's decisions and from overrides.

    models/<name>/promotions/dt=….json       the gate's decision of a run date
    models/<name>/interventions/dt=….json    the overrides of a run date: rollbacks, pins, releases

The champion is the model in production. The gate decides whether a newly trained model replaces it. The
champion of a date does not depend on files of later dates. So a rerun or a backfill gets the same champion as
the first run. An override takes effect when the run of its date begins, before training. A promotion takes
effect when the run of its date ends.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from types import NoneType
from typing import Any, Literal, assert_never, get_args

from storage import file_io, format_versions
from storage.format_versions import require_names, typed
from storage.paths import LakePaths
from training.registry.model_json import is_described, read_description

PROMOTIONS, OVERRIDES = "promotions", "interventions"  # folder names
WEIGHTS = "weights"  # key of a promotion: maps versions to the digests of their weights

Action = Literal["rollback", "pin", "release"]


@dataclass(frozen=True)
class Override:
    """A manual decision about the champion, for runs from `run_date` on.

    Attributes:
        run_date: the date on which it takes effect.
        action: `rollback` withdraws the versions in `withdrawn`, so `champion` serves again. `pin` makes
            `champion` serve until the pin is released, even if the gate promotes another model. `release`
            ends a pin.
        champion: the version that is champion after the override.
        by: the person who decided.
        why: the reason.
        at: time of the decision in UTC.
        withdrawn: versions that may no longer serve. No training starts from them.
    """

    run_date: str
    action: Action
    champion: str
    by: str
    why: str
    at: str
    withdrawn: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.action} of {self.run_date} by {self.by}: {self.why}"


@dataclass(frozen=True)
class ChampionState:
    """The champion of a run date and the decisions behind it.

    Attributes:
        champions: the run date and the version of each promotion, pin and release, oldest first. Versions
            that may not serve are left out (see `withdrawn_ancestor`).
        pinned: the pin in force; None if no version is pinned.
        withdrawn: maps each withdrawn version to the rollback that withdrew this version.
        approved: maps each withdrawn version to the versions that a person has chosen since then, as the
            target of a rollback or by a pin. These versions may serve, even if the withdrawn version is one
            of their ancestors.
        parents: maps evaluated challengers to the model from which their training started. The files of
            these models may be deleted.
    """

    champions: tuple[tuple[str, str], ...] = ()
    pinned: Override | None = None
    withdrawn: Mapping[str, Override] = field(default_factory=dict)
    approved: Mapping[str, frozenset[str]] = field(default_factory=dict)
    parents: Mapping[str, str | None] = field(default_factory=dict)

    @property
    def champion(self) -> str | None:
        """Returns the version that is champion; None before the first promotion."""
        if self.pinned is not None:
            return self.pinned.champion
        return self.champions[-1][1] if self.champions else None


def champion_state_as_of(lake: LakePaths, name: str, run_date: str, *, before: bool = False) -> ChampionState:
    """Returns the champion state at the end of the run of a date.

    With `before`, the function returns the state at the beginning of that run, before the gate has decided.
    """
    overrides = read_overrides(lake, name, run_date)
    # Tuples (run date, order within the date, version). On the same date, overrides (0) come before the
    # gate's decision (1). A rollback adds no entry. It withdraws later champions, so that an earlier one
    # serves again.
    champions = [(one.run_date, 0, one.champion) for one in overrides if one.action != "rollback"]
    parents: dict[str, str | None] = {}
    for date, decision in read_decisions(lake, name, run_date):
        if "parent" in decision.get("lineage", {}):  # earlier releases recorded no lineage
            parents[str(decision.get("challenger"))] = decision["lineage"]["parent"]
        if decision["promoted"] and not (before and date == run_date):
            champions.append((date, 1, str(decision["champion_after"])))
    champions.sort(key=lambda entry: entry[:2])
    state = replace(_after(overrides), parents=parents)
    valid = tuple(
        (date, version)
        for date, _, version in champions
        if withdrawn_ancestor(lake, name, version, state) is None
    )
    return replace(state, champions=valid)


def _after(overrides: Sequence[Override]) -> ChampionState:
    """Returns the pinned and the withdrawn versions that result from overrides. `champions` is empty."""
    pinned: Override | None = None
    withdrawn: dict[str, Override] = {}
    approved: dict[str, frozenset[str]] = {}
    for override in overrides:
        if override.action == "rollback":
            pinned = None
            for version in override.withdrawn:
                withdrawn[version], approved[version] = override, frozenset()
        elif override.action == "pin":
            pinned = override
            withdrawn.pop(override.champion, None)
        elif override.action == "release":
            pinned = None
        else:
            assert_never(override.action)
        if override.action != "release":
            approved = {version: approved[version] | {override.champion} for version in withdrawn}
    return ChampionState((), pinned, withdrawn, approved)


def withdrawn_ancestor(lake: LakePaths, name: str, version: str, state: ChampionState) -> str | None:
    """Returns the withdrawn version because of which `version` may not serve: itself or an ancestor.

    The ancestors are the models from which the training runs started. A version may serve although an
    ancestor was withdrawn, if a person has since then chosen this version, or a model between it and the
    ancestor.

    Returns:
        The version itself or its newest ancestor that a rollback withdrew; None if the version may serve.
    """
    if not state.withdrawn:
        return None
    line: set[str] = set()
    current: str | None = version
    while current is not None and current not in line:
        line.add(current)
        if current in state.withdrawn and not line & state.approved[current]:
            return current
        if current in state.parents:
            current = state.parents[current]
        else:
            path = f"{lake.models(name)}/{current}"
            current = read_description(path).get("parent") if is_described(path) else None
    return None


def read_decisions(lake: LakePaths, name: str, until: str) -> list[tuple[str, Mapping[str, Any]]]:
    """Returns one pair (run date, decision of the gate) for each run date up to `until`, ascending."""
    dates = [date for date in dates_of(lake, name, PROMOTIONS) if date <= until]
    paths = {date: dated_path(lake, name, PROMOTIONS, date) for date in dates}
    return [(date, format_versions.PROMOTION.load(path, parse_decision)) for date, path in paths.items()]


def parse_decision(values: dict[str, Any]) -> dict[str, Any]:
    """Checks the values of a promotion, and returns them. Raises KeyError, TypeError or ValueError."""
    typed(values, promoted=bool, champion_after=(str, NoneType))
    require_names(values["champion_after"], values.get("challenger"))
    for name in (WEIGHTS, "lineage"):
        if not isinstance(values.get(name, {}), dict):
            raise TypeError(f"{name} is not an object")
    require_names(values.get("lineage", {}).get("parent"))
    return values


def decided_weights(lake: LakePaths, name: str, until: str, version: str) -> tuple[str, str] | None:
    """Returns the run date and the digest of a model's weights, from the newest decision that has a digest.

    Returns None if no decision has a digest, because earlier releases recorded none.

    Args:
        lake: the lake.
        name: the key `name` of the configuration.
        until: the last run date whose decision is read.
        version: the version of the model.
    """
    for date, decision in reversed(read_decisions(lake, name, until)):
        if version in decision.get(WEIGHTS, {}):
            return date, str(decision[WEIGHTS][version])
    return None


def read_overrides(lake: LakePaths, name: str, until: str) -> list[Override]:
    """Returns the overrides of all run dates up to `until`, in the order in which they were recorded."""
    overrides = []
    for date in dates_of(lake, name, OVERRIDES):
        if date <= until:
            path = dated_path(lake, name, OVERRIDES, date)
            overrides += format_versions.INTERVENTION.load(path, parse_overrides)
    return overrides


def parse_overrides(stored: Mapping[str, Any]) -> list[Override]:
    """Reads the overrides from the content of a file. Raises KeyError, TypeError or ValueError."""
    for values in stored["interventions"]:
        if values["action"] not in get_args(Action):
            raise ValueError(f"action {values['action']!r:.100} does not exist")
        require_names(values["champion"])
    return [
        Override(**{**values, "withdrawn": tuple(values["withdrawn"])}) for values in stored["interventions"]
    ]


def write_overrides(lake: LakePaths, name: str, run_date: str, overrides: Sequence[Override]) -> None:
    """Atomically replaces the overrides (manual decisions about the champion) of one run date."""
    values = {"run_date": run_date, "interventions": [asdict(override) for override in overrides]}
    file_io.replace_json(
        dated_path(lake, name, OVERRIDES, run_date), format_versions.INTERVENTION.stamp(values)
    )


def dates_of(lake: LakePaths, name: str, kind: str) -> list[str]:
    """Returns the run dates of the files in the folder `models/<name>/<kind>`, in ascending order."""
    files = file_io.list_files(f"{lake.models(name)}/{kind}")
    return sorted(match[1] for info in files if (match := re.fullmatch(r"dt=(.+)\.json", info.base_name)))


def dated_path(lake: LakePaths, name: str, kind: str, run_date: str) -> str:
    """Returns the path of a run date's file in the folder `models/<name>/<kind>`."""
    return f"{lake.models(name)}/{kind}/dt={run_date}.json"
