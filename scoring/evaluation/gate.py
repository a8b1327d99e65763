"""The rules that decide whether a challenger (a new model) replaces the champion (the model that serves).

An evaluation has five steps. gate_run.py runs these steps in order:

1. gate_run.py measures both models on the same test rows and compares the measures.
2. gate_lists.py measures the recommendation lists of both models for the same users. gate_run.py compares the
   measures.
3. gate_run.py checks how far the challenger's scores differ from the champion's, and how far the data differ
   from the train days.
4. gate.py (this file) decides. It uses only the measures and the results of the checks, and reads no table.
5. gate_run.py formats the result for the report and for the registry.

The challenger is promoted if the test shows, with a configured confidence, that the challenger is not worse
than the champion by more than a margin. Equal quality is enough, because the challenger was trained on newer
data. Two AUC values of one day also differ by chance, so the gate compares a confidence interval of their
difference with the margin.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from conf.messages import counted
from conf.types import Gate
from metrics.bootstrap import Interval

Level = Literal["ok", "warn", "hold"]

# Name of the check that fails if a person decided against the challenger (gate_run.py). It prevents the
# promotion even if there is no champion yet, when most other checks only warn.
STANDING = "standing"


@dataclass(frozen=True)
class GateMeasure:
    """A measure in which the challenger must not be worse than the champion by more than a margin.

    Attributes:
        name: the name of the check, such as `auc`.
        label: the name of the measure in messages.
        setting: the configuration key of the margin; None if the measure has no margin.
        remedy: what messages recommend, besides a larger margin, if the interval is too wide.
        few: the reason that messages give if the confidence interval cannot be computed.
        sign: -1 if a smaller value is better, otherwise 1.
    """

    name: str
    label: str
    setting: str | None
    remedy: str = "test on more days (split.test_days)"
    few: str = "too few clicks or non-clicks to resample"
    sign: Literal[1, -1] = 1


_AUC = GateMeasure("auc", "AUC", "gate.margin")
_LOG_LOSS = GateMeasure("log_loss", "log loss", "gate.log_loss_margin", sign=-1)


@dataclass(frozen=True)
class ModelFigures:
    """The measures of one model on the test rows.

    Attributes:
        auc: area under the ROC curve.
        log_loss: the mean log loss over the rows, in nats; None if the scores are not probabilities.
        calibration: the sum of the predicted probabilities divided by the number of clicks; None if the
            scores are not click probabilities.
    """

    auc: float
    log_loss: float | None
    calibration: float | None


@dataclass(frozen=True)
class ChallengerComparison:
    """The comparison of challenger and champion on the same test rows.

    Attributes:
        champion: the figures of the champion.
        auc, log_loss: confidence intervals of the differences in AUC and in log loss, challenger minus
            champion; None if there are too few clicks or non-clicks to resample.
        rows, users: number of rows and number of users of the test split. If the log has no user column,
            `users` is the number of distinct row ids.
    """

    champion: ModelFigures
    auc: Interval | None
    log_loss: Interval | None
    rows: int
    users: int


@dataclass(frozen=True)
class GateCheck:
    """The result of one check of the gate.

    Attributes:
        name: the name of the checked figure, such as `auc`.
        level: `hold` prevents the promotion; `warn` only logs a warning; `ok` does nothing.
        message: the result as a sentence.
        value, limit: the value of the figure, and the limit that the value was compared with.
        setting: configuration key that sets the limit.
    """

    name: str
    level: Level
    message: str
    value: float | None = None
    limit: float | None = None
    setting: str | None = None


@dataclass(frozen=True)
class Verdict:
    """The gate's decision.

    Attributes:
        promoted: whether the challenger becomes the champion.
        reason: the reason for the decision, as a sentence.
        checks: the results of all checks. The checks that compare the two models come first.
    """

    promoted: bool
    reason: str
    checks: tuple[GateCheck, ...] = ()


def decide(
    gate: Gate,
    challenger: ModelFigures,
    comparison: ChallengerComparison | None,
    other_checks: Sequence[GateCheck] = (),
) -> Verdict:
    """Promotes the challenger unless a check has the level `hold`.

    If there is no champion yet, the challenger is promoted even if checks of quality or drift fail, because
    no other model could serve. In this case, checks that would prevent the promotion become warnings. There
    are two exceptions: this first model is not promoted if its AUC is not finite, or if a person decided
    against the promotion.

    Args:
        gate: the section `gate` of the configuration.
        challenger: the figures of the challenger.
        comparison: the comparison with the champion; None if there is no champion yet.
        other_checks: the checks of lists and of drift, and the check of manual decisions.
    """
    checks = list(_quality_checks(gate, challenger, comparison))
    if not math.isfinite(challenger.auc):
        message = f"the challenger's AUC is {challenger.auc:.4f}"
        checks.insert(0, GateCheck("auc", "hold", message, challenger.auc))
        return _verdict("", [*checks, *other_checks])
    if comparison is None:
        lead = f"first model: AUC {challenger.auc:.4f}, no champion to compare with"
        return _verdict(lead, [_as_warning(check) for check in (*checks, *other_checks)])
    return _verdict("", [*checks, *other_checks])


def keep_champion(unmeasured: str | None, other_checks: Sequence[GateCheck]) -> Verdict:
    """Returns the verdict if no model can be measured on the test rows: the champion continues to serve.

    Args:
        unmeasured: the reason why the AUC is undefined.
        other_checks: the checks of lists and of drift, and the check of manual decisions.
    """
    return _verdict("", [GateCheck("auc", "hold", f"{unmeasured}; the champion stays"), *other_checks])


def level_of(value: float | None, warn: float | None, hold: float | None) -> tuple[Level, float | None]:
    """Returns the level of a figure, and the limit that the figure exceeds.

    If the figure exceeds no limit, the result is `ok` and None.
    """
    if value is not None and hold is not None and value > hold:
        return "hold", hold
    if value is not None and warn is not None and value > warn:
        return "warn", warn
    return "ok", None


def _verdict(lead: str, checks: list[GateCheck]) -> Verdict:
    """Returns the verdict: the challenger is promoted unless one of `checks` has the level `hold`.

    The reason begins with `lead`. If `lead` is empty, the reason begins with the message of the check of the
    AUC. The messages of the other checks with the level `hold` follow.
    """
    first = [] if lead else [check.message for check in checks if check.name == "auc"][:1]
    holding = [check.message for check in checks if check.level == "hold"]
    parts = [*([lead] if lead else first), *(message for message in holding if message not in first)]
    return Verdict(not holding, "; ".join(parts), tuple(checks))


def _as_warning(check: GateCheck) -> GateCheck:
    """Replaces the level `hold` by `warn` for a first model, except in the check of manual decisions."""
    return replace(check, level="warn") if check.level == "hold" and check.name != STANDING else check


def _quality_checks(
    gate: Gate, challenger: ModelFigures, comparison: ChallengerComparison | None
) -> Iterator[GateCheck]:
    """Yields the checks of the challenger's quality. Without a champion, only the calibration is checked.

    The calibration is checked only if the scores are click probabilities.
    """
    if comparison is not None and math.isfinite(challenger.auc):
        champion = comparison.champion
        yield margin_check(_AUC, challenger.auc, champion.auc, comparison.auc, gate.margin)
        if challenger.log_loss is not None and champion.log_loss is not None:
            yield margin_check(
                _LOG_LOSS,
                -challenger.log_loss,
                -champion.log_loss,
                _negated(comparison.log_loss),
                gate.log_loss_margin,
            )
        elif gate.log_loss_margin is not None:
            message = (
                f"{_LOG_LOSS.setting}={gate.log_loss_margin:g} was not checked: the scores of the champion "
                "or the challenger are not probabilities, so they have no log loss"
            )
            yield GateCheck("log_loss", "warn", message, None, gate.log_loss_margin, _LOG_LOSS.setting)
        yield _minimum_check("rows", comparison.rows, gate.min_rows)
        yield _minimum_check("users", comparison.users, gate.min_users)
    if challenger.calibration is not None:
        champion_ratio = comparison.champion.calibration if comparison else None
        yield _calibration_check(gate, challenger.calibration, champion_ratio)


def margin_check(
    measure: GateMeasure,
    challenger: float,
    champion: float,
    gain: Interval | None,
    margin: float | None,
) -> GateCheck:
    """Checks that the challenger is not worse than the champion by more than the margin.

    The gain is the challenger's value minus the champion's value. The level is `hold` if the confidence
    interval of the gain begins below -margin, or if there is no interval. Without a margin, the level is
    always `ok`. If smaller values of a measure are better (`sign` is -1), callers negate its values. So a
    larger value is always better here.
    """
    name, sign, setting = measure.name, measure.sign, measure.setting
    message = (
        f"{measure.label} {sign * challenger:.4f} against the champion's {sign * champion:.4f} "
        f"({sign * (challenger - champion):+.4f}"
    )
    if gain is None:
        message += f"; no interval: {measure.few})"
        level: Level = "ok" if margin is None else "hold"
        return GateCheck(name, level, message, challenger - champion, margin, setting)
    low, high = sorted((sign * gain.low, sign * gain.high))
    message += f", {gain.confidence:.0%} from {low:+.4f} to {high:+.4f})"
    if margin is None:
        return GateCheck(name, "ok", message, gain.low)
    if gain.low >= -margin:
        message += f": not worse by more than {setting}={margin:g}"
        return GateCheck(name, "ok", message, gain.low, margin, setting)
    if gain.high < -margin:
        message += f": worse by more than {setting}={margin:g}"
    else:
        message += f": may be worse by more than {setting}={margin:g}"
        if gain.high - gain.low > 2 * margin:
            message += (
                "; the interval is wider than twice the margin, so even an equally good model would not be "
                f"promoted: {measure.remedy} or raise {setting}"
            )
    return GateCheck(name, "hold", message, gain.low, margin, setting)


def _negated(interval: Interval | None) -> Interval | None:
    """Returns the interval of a difference with the opposite sign; None without an interval."""
    if interval is None:
        return None
    return Interval(
        -interval.difference, -interval.high, -interval.low, interval.confidence, interval.replicates
    )


def _minimum_check(name: Literal["rows", "users"], count: int, minimum: int) -> GateCheck:
    """Checks the number of rows or users in the test split.

    The level is `hold` if this number is less than `minimum`.
    """
    setting = f"gate.min_{name}"
    message = f"{counted(count, name.removesuffix('s'))} in the test split"
    if count >= minimum:
        return GateCheck(name, "ok", message, count, minimum, setting)
    message += f" {'is' if count == 1 else 'are'} too few to decide on ({setting}={minimum:,})"
    return GateCheck(name, "hold", message, count, minimum, setting)


def _calibration_check(gate: Gate, ratio: float, champion: float | None) -> GateCheck:
    """Checks the challenger's calibration: the ratio of predicted clicks to observed clicks.

    The level is `hold` if the ratio is outside the configured range. If the champion's ratio is even further
    from 1, the level is `warn`.
    """
    low, high = gate.calibration_low, gate.calibration_high
    message = f"the challenger predicts {ratio:.3f} times the observed clicks"
    if low <= ratio <= high:
        return GateCheck("calibration", "ok", message, ratio)
    limit, setting = (low, "gate.calibration_low") if ratio < low else (high, "gate.calibration_high")
    message += f", outside of {low:g} to {high:g} ({setting})"
    if champion is not None and _distance(champion) > _distance(ratio):
        message += f"; the champion's ratio, {champion:.3f}, is further from 1"
        return GateCheck("calibration", "warn", message, ratio, limit, setting)
    return GateCheck("calibration", "hold", message, ratio, limit, setting)


def _distance(ratio: float) -> float:
    """Returns the distance of a ratio from 1 on a log scale, so that 1/2 and 2 have the same distance."""
    return abs(math.log(ratio)) if ratio > 0 else math.inf
