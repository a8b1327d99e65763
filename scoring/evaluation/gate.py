"""Whether a challenger takes the champion's place: pure arithmetic on what was measured, and words for people.

The challenger is promoted where it is not worse by more than a margin, with confidence: it has seen newer data, so equal is
good enough, but a point estimate of one day is not enough to call it equal.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from conf.types import Gate
from metrics.bootstrap import Interval

Level = Literal["ok", "warn", "hold"]

_SHORT = {"auc": "AUC", "log_loss": "log loss"}


@dataclass(frozen=True)
class Figures:
    """One model on the test rows. `calibration` is predicted over observed clicks."""

    auc: float
    log_loss: float
    calibration: float


@dataclass(frozen=True)
class Check:
    """One thing the gate looked at. `setting` names the key that decided, `said` tells people what was found."""

    name: str
    level: Level
    said: str
    value: float | None = None
    limit: float | None = None
    setting: str | None = None


@dataclass(frozen=True)
class Comparison:
    """Challenger and champion on the same rows.

    Attributes:
        auc, log_loss: intervals of challenger minus champion; None where too few rows of a class can be resampled.
        rows, users: what the test split holds; `users` counts rows where the log has no keys.
    """

    champion: Figures
    auc: Interval | None
    log_loss: Interval | None
    rows: int
    users: int


@dataclass(frozen=True)
class Verdict:
    """`promoted`, why in words for people, and every check with its level."""

    promoted: bool
    reason: str
    checks: tuple[Check, ...] = ()


def judge(
    gate: Gate, challenger: Figures, compared: Comparison | None, others: Sequence[Check] = ()
) -> Verdict:
    """Promotes unless a check holds the challenger back.

    Args:
        compared: None where there is no champion yet: a first model is promoted whatever drift says, for want of another;
            what would have held it is a warning then. Without a finite AUC, or where `others` bar it, it is not.
        others: checks of drift and of the registry (`reason_against_promotion`).
    """
    own = [*_own(gate, challenger, compared)]
    if not math.isfinite(challenger.auc):
        own.insert(0, Check("auc", "hold", f"the challenger's AUC is {challenger.auc:.4f}", challenger.auc))
        return _verdict("", [*own, *others])
    if compared is None:
        lead = f"first model: AUC {challenger.auc:.4f}, no champion to compare with"
        return _verdict(
            lead, [each if each.name == "standing" else _as_warning(each) for each in (*own, *others)]
        )
    return _verdict("", [*own, *others])


def level_of(value: float | None, warn: float | None, hold: float | None) -> tuple[Level, float | None]:
    """The level of a figure and the limit it is above; without a value, or above neither, it is ok."""
    if value is not None and hold is not None and value > hold:
        return "hold", hold
    if value is not None and warn is not None and value > warn:
        return "warn", warn
    return "ok", None


def _verdict(lead: str, checks: list[Check]) -> Verdict:
    """The reason begins with how the models compare, then names whatever else holds the challenger."""
    held = [each for each in checks if each.level == "hold"]
    first = [] if lead else [each.said for each in checks if each.name == "auc"][:1]
    more = [each.said for each in held if each.said not in first]
    return Verdict(not held, "; ".join([*([lead] if lead else first), *more]), tuple(checks))


def _as_warning(check: Check) -> Check:
    level: Level = "warn" if check.level == "hold" else check.level
    return Check(check.name, level, check.said, check.value, check.limit, check.setting)


def _own(gate: Gate, challenger: Figures, compared: Comparison | None) -> Iterator[Check]:
    if compared is not None and math.isfinite(challenger.auc):
        champion = compared.champion
        yield _not_worse("auc", challenger.auc, champion.auc, compared.auc, gate.margin)
        yield _not_worse(
            "log_loss",
            -challenger.log_loss,
            -champion.log_loss,
            _negated(compared.log_loss),
            gate.log_loss_margin,
        )
        yield _enough("rows", compared.rows, gate.min_rows)
        yield _enough("users", compared.users, gate.min_users)
    yield _calibrated(gate, challenger, compared.champion if compared else None)


def _not_worse(
    name: Literal["auc", "log_loss"],
    ours: float,
    theirs: float,
    between: Interval | None,
    margin: float | None,
) -> Check:
    """Holds where the interval of the gain begins below -margin. Log loss comes with its sign turned: more is better."""
    sign = 1 if name == "auc" else -1
    setting = "gate.margin" if name == "auc" else "gate.log_loss_margin"
    said = f"{_SHORT[name]} {sign * ours:.4f} against the champion's {sign * theirs:.4f} ({sign * (ours - theirs):+.4f}"
    if between is None:
        said += "; no interval: too few rows of a class to resample)"
        return Check(name, "ok" if margin is None else "hold", said, ours - theirs, margin, setting)
    ends = sorted((sign * between.low, sign * between.high))
    said += f", {between.confidence:.0%} from {ends[0]:+.4f} to {ends[1]:+.4f})"
    if margin is None:
        return Check(name, "ok", said, between.low)
    if between.low >= -margin:
        return Check(
            name, "ok", f"{said}: not worse by more than {setting}={margin:g}", between.low, margin, setting
        )
    if between.high < -margin:
        said += f": worse by more than {setting}={margin:g}"
    else:
        said += f": may be worse by more than {setting}={margin:g}"
        if between.high - between.low > 2 * margin:
            said += (
                f"; the interval is wider than twice the margin, so that an equal model would be kept out as well: test on "
                f"more days (split.test_days) or raise {setting}"
            )
    return Check(name, "hold", said, between.low, margin, setting)


def _negated(between: Interval | None) -> Interval | None:
    if between is None:
        return None
    return Interval(-between.difference, -between.high, -between.low, between.confidence, between.replicates)


def _enough(what: str, count: int, least: int) -> Check:
    if count >= least:
        return Check(what, "ok", f"{count:,} {what} in the test split", count, least, f"gate.min_{what}")
    said = f"{count:,} {what} in the test split are too few to decide on (gate.min_{what}={least:,})"
    return Check(what, "hold", said, count, least, f"gate.min_{what}")


def _calibrated(gate: Gate, challenger: Figures, champion: Figures | None) -> Check:
    low, high, ratio = gate.calibration_low, gate.calibration_high, challenger.calibration
    said = f"predicted clicks are {ratio:.3f} times the observed ones"
    if low <= ratio <= high:
        return Check("calibration", "ok", said, ratio)
    limit, setting = (low, "gate.calibration_low") if ratio < low else (high, "gate.calibration_high")
    said += f", outside of {low:g} to {high:g} ({setting})"
    if champion is not None and _distance(champion.calibration) > _distance(ratio):
        said += f"; the champion's are {champion.calibration:.3f} times, further off"
        return Check("calibration", "warn", said, ratio, limit, setting)
    return Check("calibration", "hold", said, ratio, limit, setting)


def _distance(ratio: float) -> float:
    """How far a ratio is from 1, the same for a half and for two."""
    return abs(math.log(ratio)) if ratio > 0 else math.inf
