"""The gate's rules, case by case, and that each reason can be read by people."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from conf.types import Gate
from metrics.bootstrap import Interval
from scoring.evaluation.gate import ChallengerComparison, GateCheck, ModelFigures, Verdict, decide, level_of
from scoring.evaluation.gate_run import held_out_days
from scoring.model.model_info import ModelInfo
from storage.dataset import Dataset, Member

GOOD = ModelFigures(0.7612, 0.4, 1.02)
CHAMPION = ModelFigures(0.7590, 0.41, 0.98)


def verdict(
    low: float,
    high: float,
    *,
    gate: dict[str, Any] | None = None,
    challenger: ModelFigures = GOOD,
    champion: ModelFigures = CHAMPION,
    loss: tuple[float, float] = (-0.02, 0.0),
    rows: int = 60_000,
    users: int = 4_000,
    other_checks: tuple[GateCheck, ...] = (),
) -> Verdict:
    """The verdict on a challenger with this interval of the AUC."""
    auc = Interval(challenger.auc - champion.auc, low, high, 0.95, 1000)
    log_loss = Interval(challenger.log_loss - champion.log_loss, *loss, 0.95, 1000)
    comparison = ChallengerComparison(champion, auc, log_loss, rows, users)
    return decide(Gate(**(gate or {})), challenger, comparison, other_checks)


def levels(decision: Verdict) -> dict[str, str]:
    """Check → level."""
    return {check.name: check.level for check in decision.checks}


def test_the_reason_has_both_figures_and_the_interval() -> None:
    decision = verdict(0.0008, 0.0035)
    assert decision.promoted
    assert decision.reason == (
        "AUC 0.7612 against the champion's 0.7590 (+0.0022, 95% from +0.0008 to +0.0035): "
        "not worse by more than gate.margin=0.002"
    )


@pytest.mark.parametrize(
    "low, high, promoted, message",
    [
        (-0.002, 0.001, True, "not worse by more than"),
        (-0.0021, 0.001, False, "may be worse by more than gate.margin=0.002"),
        (-0.009, -0.0019, False, "may be worse"),
        (-0.009, -0.0021, False, "0.0021): worse by more than gate.margin=0.002"),
        (-0.004, 0.004, False, "test on more days (split.test_days) or raise gate.margin"),
    ],
)
def test_the_interval_decides_and_not_the_point(
    low: float, high: float, promoted: bool, message: str
) -> None:
    decision = verdict(low, high)
    assert decision.promoted is promoted
    assert message in decision.reason
    assert ("equally good model" in decision.reason) == (
        not promoted and high - low > 0.004 and high >= -0.002
    )


def test_an_identical_model_passes_a_margin_of_zero() -> None:
    assert verdict(0.0, 0.0, gate={"margin": 0.0}, challenger=CHAMPION).promoted


def test_log_loss_decides_only_where_it_has_a_margin() -> None:
    worse = (0.001, 0.02)
    assert verdict(0.0, 0.01, loss=worse).promoted
    decision = verdict(0.0, 0.01, loss=worse, gate={"log_loss_margin": 0.01})
    assert not decision.promoted
    assert (
        "log loss 0.4000 against the champion's 0.4100 (-0.0100, 95% from +0.0010 to +0.0200): may be worse"
        in (decision.reason)
    )
    assert verdict(0.0, 0.01, loss=worse, gate={"log_loss_margin": 0.02}).promoted


@pytest.mark.parametrize(
    "few, name", [({"rows": 999}, "gate.min_rows=1,000"), ({"users": 49}, "gate.min_users=50")]
)
def test_few_rows_or_users_decide_nothing(few: dict[str, int], name: str) -> None:
    decision = verdict(0.01, 0.02, **few)  # type: ignore[arg-type]
    assert not decision.promoted
    assert f"too few to decide on ({name})" in decision.reason


@pytest.mark.parametrize(
    "challenger_ratio, champion_ratio, level",
    [
        (1.25, 1.0, "ok"),
        (0.8, 1.0, "ok"),
        (1.26, 1.0, "hold"),
        (0.79, 1.2, "hold"),
        (1.3, 1.4, "warn"),
        (0.7, 1.6, "warn"),
    ],
)
def test_calibration_stays_in_its_band_unless_the_champion_is_further_off(
    challenger_ratio: float, champion_ratio: float, level: str
) -> None:
    decision = verdict(
        0.0,
        0.01,
        challenger=ModelFigures(0.7612, 0.4, challenger_ratio),
        champion=ModelFigures(0.7590, 0.41, champion_ratio),
    )
    assert levels(decision)["calibration"] == level
    assert decision.promoted is (level != "hold")
    assert (
        f"the challenger predicts {challenger_ratio:.3f} times the observed clicks" in decision.reason
    ) is (level == "hold")


def test_without_an_interval_nothing_is_promoted() -> None:
    comparison = ChallengerComparison(CHAMPION, None, None, 60_000, 4_000)
    decision = decide(Gate(), GOOD, comparison)
    assert not decision.promoted
    assert "no interval: too few clicks or non-clicks to resample" in decision.reason


def test_drift_that_holds_is_named_after_the_comparison() -> None:
    drift = GateCheck(
        "score_psi",
        "hold",
        "the PSI of the challenger's scores against the champion's scores is 0.700",
        0.7,
        0.5,
        "gate.drift.score_psi_hold",
    )
    decision = verdict(0.0, 0.01, other_checks=(drift, GateCheck("oov_share", "warn", "new ids", 0.6)))
    assert not decision.promoted
    assert decision.reason.endswith(
        "not worse by more than gate.margin=0.002; "
        "the PSI of the challenger's scores against the champion's scores is 0.700"
    )


def test_a_first_model_is_promoted_whatever_drift_says_but_not_against_people() -> None:
    drift = GateCheck("feature_psi", "hold", "C1 moved", 0.9)
    decision = decide(Gate(), ModelFigures(0.61, 0.5, 3.0), None, [drift])
    assert decision.promoted
    assert decision.reason == "first model: AUC 0.6100, no champion to compare with"
    assert levels(decision) == {"calibration": "warn", "feature_psi": "warn"}
    decision = decide(Gate(), GOOD, None, [GateCheck("standing", "hold", "it was withdrawn")])
    assert not decision.promoted
    assert decision.reason.endswith("; it was withdrawn")


@pytest.mark.parametrize("comparison", [None, ChallengerComparison(CHAMPION, None, None, 60_000, 4_000)])
def test_a_model_without_an_auc_never_serves(comparison: ChallengerComparison | None) -> None:
    decision = decide(Gate(), ModelFigures(float("nan"), float("nan"), 1.0), comparison)
    assert not decision.promoted
    assert "the challenger's AUC is nan" in decision.reason


@pytest.mark.parametrize(
    "value, expected",
    [
        (None, ("ok", None)),
        (0.25, ("ok", None)),
        (0.26, ("warn", 0.25)),
        (0.5, ("warn", 0.25)),
        (0.6, ("hold", 0.5)),
    ],
)
def test_levels(value: float | None, expected: tuple[str, float | None]) -> None:
    assert level_of(value, 0.25, 0.5) == expected
    assert level_of(9.0, None, None) == ("ok", None)


@pytest.mark.parametrize(
    "values, message",
    [
        (
            {"drift": {"score_psi_warn": 0.3, "score_psi_hold": 0.2}},
            "score_psi_warn=0.3 must not be above score_psi_hold=0.2",
        ),
        ({"calibration_low": 1.1}, "1 must be between calibration_low"),
        ({"replicates": 10}, "replicates"),
    ],
)
def test_limits_that_contradict_themselves_are_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Gate(**values)


def test_scores_that_are_no_click_probabilities_have_no_calibration_and_no_log_loss() -> None:
    ranking, drawn = ModelFigures(0.7612, None, None), ModelFigures(0.7612, 0.9, None)
    assert levels(decide(Gate(), ranking, None)) == {}
    comparison = ChallengerComparison(
        ModelFigures(0.7590, None, None), Interval(0.0022, 0.0, 0.004, 0.95, 9), None, 10**5, 10**4
    )
    assert levels(decide(Gate(), ranking, comparison)) == {"auc": "ok", "rows": "ok", "users": "ok"}
    margin = Gate(log_loss_margin=0.1)
    for challenger in (ranking, drawn):  # the champion has no log loss
        decision = decide(margin, challenger, comparison)
        assert decision.promoted
        (check,) = [check for check in decision.checks if check.name == "log_loss"]
        assert (check.level, check.setting) == ("warn", "gate.log_loss_margin")
        assert "gate.log_loss_margin=0.1 was not checked" in check.message
    probabilities = decide(Gate(calibration_high=1.5), ModelFigures(0.7612, 0.4, 3.0), comparison)
    assert levels(probabilities)["calibration"] == "hold"  # the champion has no ratio to compare with


def test_one_row_and_one_user_are_counted_as_one() -> None:
    decision = verdict(0.0, 0.01, rows=1, users=1)
    said = {check.name: check.message for check in decision.checks}
    assert said["rows"].startswith("1 row in the test split is too few to decide on (gate.min_rows=")
    assert said["users"].startswith("1 user in the test split is too few to decide on (gate.min_users=")


@pytest.mark.parametrize(
    "of_challenger, of_champion, left, message",
    [
        ([1, 2], [1, 2], [6, 7, 8], None),
        (
            [1],
            [5, 6],
            [7, 8],
            "the champion v1 was trained on the test days ['2026-01-06'], so the gate measures",
        ),
        ([8], [6], [7], "challenger v2 was trained on the test days ['2026-01-08'] and the champion v1 was"),
        (
            [8],
            [6, 7],
            [6, 7, 8],
            "so no test day is left for the comparison: train again for a later run date",
        ),
        ([6, 7, 8], None, [6, 7, 8], "no test day is left"),
    ],
)
def test_test_days_on_which_a_model_was_trained_are_left_out_or_stop_the_promotion(
    of_challenger: list[int], of_champion: list[int] | None, left: list[int], message: str | None
) -> None:
    def day(number: int) -> str:
        return f"2026-01-{number:02d}"

    models = [
        cast(ModelInfo, SimpleNamespace(version=version, description={"trained_days": list(map(day, days))}))
        for version, days in (("v2", of_challenger), ("v1", of_champion))
        if days is not None
    ]
    test = tuple(Member(day(number), "d", None) for number in (6, 7, 8))
    dataset = Dataset(day(8), "w", {"train": (Member(day(1), "d", None),), "test": test}, "fit")
    measured, checks = held_out_days(dataset, models)
    assert measured.splits == {
        **dataset.splits,
        "test": tuple(one for one in test if one.dt in map(day, left)),
    }
    if message is None:
        assert (measured, checks) == (dataset, [])
        return
    (check,) = checks
    assert message in check.message
    assert check.level == ("hold" if len(left) == 3 else "warn")
    assert verdict(0.0, 0.01, other_checks=(check,)).promoted == (check.level == "warn")
    assert decide(Gate(), GOOD, None, (check,)).promoted, "no other model can serve"
