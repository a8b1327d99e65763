"""Which model is champion when: a fold over what the gate decided and what people decided, one small file a run date each.

    models/<name>/promotions/dt=….json       what the gate decided on a run date
    models/<name>/interventions/dt=….json    what people decided, to hold from a run date on: rollbacks, pins, releases

Asked for a date, nothing later is looked at, so a rerun or a backfill of a past night sees what the first run saw. What
people decided for a date holds from the beginning of its night, before anything is trained; what the gate decides, from
its end.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from storage import file_io, format_versions
from storage.paths import Lake

PROMOTIONS, INTERVENTIONS = "promotions", "interventions"

Action = Literal["rollback", "pin", "release"]


@dataclass(frozen=True)
class Intervention:
    """What somebody decided, for nights from `run_date` on.

    Attributes:
        action: `rollback` takes `withdrawn` out, so that `champion` serves again; `pin` makes `champion` serve whatever
            the gate says; `release` ends a pin.
        champion: who serves after it.
        withdrawn: versions that neither serve nor are trained from any more.
        by, why, at: who, for what reason, and when in UTC.
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
class Standing:
    """How things stand on a run date.

    Attributes:
        champions: (run date, version) of everything that made a version champion and still counts, in order.
        pinned: the pin in force.
        withdrawn: version → the rollback that took it out.
    """

    champions: tuple[tuple[str, str], ...] = ()
    pinned: Intervention | None = None
    withdrawn: Mapping[str, Intervention] = field(default_factory=dict)

    @property
    def champion(self) -> str | None:
        if self.pinned is not None:
            return self.pinned.champion
        return self.champions[-1][1] if self.champions else None


def standing_as_of(lake: Lake, name: str, run_date: str, *, before: bool = False) -> Standing:
    """How things stand at the end of a night; with `before`, at its beginning: people have spoken, the gate has not."""
    pinned: Intervention | None = None
    withdrawn: dict[str, Intervention] = {}
    made: list[
        tuple[str, int, str]
    ] = []  # on one date people come first: what they say holds from the night's beginning
    for each in interventions(lake, name, run_date):
        if each.action == "rollback":
            pinned = None
            withdrawn.update(dict.fromkeys(each.withdrawn, each))
        elif each.action == "pin":
            pinned = each
            withdrawn.pop(each.champion, None)
        else:
            pinned = None
        if each.action != "rollback":  # whose champion follows from what is left
            made.append((each.run_date, 0, each.champion))
    for date, decision in promotions(lake, name, run_date):
        if decision["promoted"] and not (before and date == run_date):
            made.append((date, 1, str(decision["champion_after"])))
    made.sort(key=lambda each: each[:2])
    counted = tuple((date, version) for date, _, version in made if version not in withdrawn)
    return Standing(counted, pinned, withdrawn)


def promotions(lake: Lake, name: str, until: str) -> list[tuple[str, Mapping[str, Any]]]:
    """(run date, the gate's decision) up to a date, ascending."""
    dates = [date for date in dates_of(lake, name, PROMOTIONS) if date <= until]
    paths = {date: dated(lake, name, PROMOTIONS, date) for date in dates}
    return [
        (date, format_versions.PROMOTION.check(file_io.read_json(path), path)) for date, path in paths.items()
    ]


def interventions(lake: Lake, name: str, until: str) -> list[Intervention]:
    """What people decided up to a date, in order."""
    found = []
    for date in dates_of(lake, name, INTERVENTIONS):
        if date <= until:
            path = dated(lake, name, INTERVENTIONS, date)
            stored = format_versions.INTERVENTION.check(file_io.read_json(path), path)
            for values in stored["interventions"]:
                found.append(Intervention(**{**values, "withdrawn": tuple(values["withdrawn"])}))
    return found


def write_interventions(lake: Lake, name: str, run_date: str, found: Sequence[Intervention]) -> None:
    """Replaces what people decided for one run date, in one step."""
    values = {"run_date": run_date, "interventions": [asdict(each) for each in found]}
    file_io.replace_json(
        dated(lake, name, INTERVENTIONS, run_date), format_versions.INTERVENTION.stamp(values)
    )


def dates_of(lake: Lake, name: str, kind: str) -> list[str]:
    """The run dates that have a file of this kind, ascending."""
    found = file_io.list_files(f"{lake.models(name)}/{kind}")
    return sorted(match[1] for info in found if (match := re.fullmatch(r"dt=(.+)\.json", info.base_name)))


def dated(lake: Lake, name: str, kind: str, run_date: str) -> str:
    return f"{lake.models(name)}/{kind}/dt={run_date}.json"
