"""Compares the lists of challenger and champion, and checks them against `gate.lists_margin`.

NDCG@k decides, because its interval is narrower than that of the hit rate, and because it also falls if the
hits move down in the lists. The hit rate is reported.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from conf.counted import counted
from conf.types import Gate
from metrics.bootstrap import Interval, interval
from scoring.evaluation.gate import Check, Measure, margin_check
from scoring.evaluation.gate_lists import ListFigures, ListMeasurement

_SETTING = "gate.lists_margin"
_FEW = "too few users to resample"


@dataclass(frozen=True)
class ListComparison:
    """The figures of the lists of challenger and champion, for the same users.

    Attributes:
        measurement: what was measured.
        challenger, champion: the figures of each model. `challenger` is None if lists were not measured,
            `champion` also if there is no champion.
        intervals: maps `hit_rate` and `ndcg` to the confidence interval of the difference, challenger minus
            champion. A key is missing if its interval is unknown.
    """

    measurement: ListMeasurement
    challenger: ListFigures | None = None
    champion: ListFigures | None = None
    intervals: Mapping[str, Interval] = field(default_factory=dict)

    def to_facts(self) -> dict[str, Any]:
        """Returns the figures as JSON values for the facts of the evaluation, without the intervals."""
        return {
            "k": self.measurement.k,
            "users": self.measurement.users,
            "skipped": self.measurement.skipped,
            "challenger": self.challenger.to_facts() if self.challenger else None,
            "champion": self.champion.to_facts() if self.champion else None,
        }

    def interval_facts(self) -> dict[str, Any]:
        """Returns the intervals as JSON values."""
        return {name: asdict(between) for name, between in self.intervals.items()}


def compare_lists(
    confidence: float, measurement: ListMeasurement, challenger: str, champion: str | None
) -> ListComparison:
    """Computes the differences between the lists of two models, with their confidence intervals.

    Args:
        confidence: the confidence of the intervals.
        measurement: the figures of the models' lists.
        challenger, champion: versions of the models; `champion` is None if there is none.
    """
    ours = measurement.models.get(challenger)
    theirs = measurement.models.get(champion) if champion else None
    if ours is None or theirs is None:
        return ListComparison(measurement, ours, theirs)
    differences = {"hit_rate": ours.hit_rate - theirs.hit_rate, "ndcg": ours.ndcg - theirs.ndcg}
    intervals = {
        name: interval(difference, ours.replicates[name], theirs.replicates[name], confidence)
        for name, difference in differences.items()
    }
    known = {name: between for name, between in intervals.items() if between is not None}
    return ListComparison(measurement, ours, theirs, known)


def list_checks(gate: Gate, comparison: ListComparison) -> list[Check]:
    """Returns the checks of the lists.

    The list is empty if there is no champion. If lists could not be measured, the only check says why. If
    fewer than `gate.min_users` users were measured, the lists do not decide.
    """
    measurement = comparison.measurement
    if measurement.skipped is not None:
        message = f"lists were not compared: {measurement.skipped}"
        return [Check("list_ndcg", measurement.level, message)]
    ours, theirs = comparison.challenger, comparison.champion
    if ours is None or theirs is None:
        return []
    k, between = measurement.k, comparison.intervals
    enough = measurement.users >= gate.min_users
    remedy = "measure more users (gate.lists_users)"
    ndcg = Measure("list_ndcg", f"NDCG@{k} of lists", _SETTING, remedy, _FEW)
    hit_rate = Measure("list_hit_rate", f"HR@{k} of lists", None, few=_FEW)
    checks = [
        margin_check(
            ndcg, ours.ndcg, theirs.ndcg, between.get("ndcg"), gate.lists_margin if enough else None
        ),
        margin_check(hit_rate, ours.hit_rate, theirs.hit_rate, between.get("hit_rate"), None),
    ]
    if not enough and gate.lists_margin is not None:
        users = f"{counted(measurement.users, 'user')} {'is' if measurement.users == 1 else 'are'}"
        message = f"{checks[0].message}; {users} too few to decide on (gate.min_users={gate.min_users:,})"
        checks[0] = replace(checks[0], level="warn", message=message)
    return checks
