"""When a training ends before its last step, and that it does."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import ValidationError

from conf.types import StopAt, Train
from storage.paths import LakePaths
from tests.training.feature_rows import segment_rows
from tests.training.feature_tables import make_config, publish_all
from tests.training.ranks_in_threads import on_ranks
from training.loop.kept_steps import stop_reason
from training.loop.run import run_plan, train_in_process
from training.loop.training_plan import TrainPlan, make_plan
from training.registry.search import PruningRule, read_pruned


def history(*values: float | None, metric: str = "auc") -> list[dict[str, Any]]:
    """Entries with measurements, each behind one without."""
    return [
        entry for value in values for entry in ({"loss": 0.5}, {"loss": 0.5, "validation": {metric: value}})
    ]


@pytest.mark.parametrize(
    "values, rule, expected",
    [
        ([0.7, 0.79], {"value": 0.8}, None),
        ([0.7, 0.81], {"value": 0.8}, "auc 0.81000 has reached the target of 0.8"),
        ([0.81, 0.7], {"value": 0.8}, None),
        ([0.5, 0.4], {"metric": "log_loss", "value": 0.4}, "log_loss 0.40000 has reached"),
        ([0.7, 0.8, 0.79], {"patience": 2}, None),
        ([0.7, 0.8, 0.79, 0.8], {"patience": 2}, "auc has not improved on 0.80000 in 2 evaluations"),
        ([0.4, 0.5, 0.45], {"metric": "log_loss", "patience": 2}, "log_loss has not improved on 0.40000"),
        ([0.7, None, 0.6], {"patience": 2}, None),
        ([None], {"value": 0.8, "patience": 1}, None),
        ([], {"value": 0.8}, None),
    ],
)
def test_reasons_to_stop(values: list[float | None], rule: dict[str, Any], expected: str | None) -> None:
    reason = stop_reason(history(*values, metric=rule.get("metric", "auc")), StopAt.model_validate(rule))
    assert reason is None if expected is None else reason is not None and reason.startswith(expected)


def test_without_a_rule_nothing_stops() -> None:
    assert stop_reason(history(1.0, 0.0, 0.0), None) is None


def test_a_rule_needs_something_to_reach_and_evaluations() -> None:
    with pytest.raises(ValidationError, match="the key `value`, the key `patience`, or both"):
        StopAt()
    with pytest.raises(ValidationError, match="evaluate_every_steps above 0"):
        Train(stop_at=StopAt(value=0.8))


@pytest.mark.parametrize("loss", ["bce", "bpr", "softmax", "full_softmax", "in_batch_softmax"])
@pytest.mark.parametrize("metric", ["auc", "log_loss", "normalized_entropy"])
def test_a_rule_about_probabilities_needs_a_loss_that_predicts_them(loss: str, metric: str) -> None:
    """The log loss of other scores falls and rises with their scale, so it would keep bad weights."""
    negatives = {"negatives": {}} if loss in ("bpr", "softmax") else {}
    rule = {"stop_at": {"metric": metric, "patience": 2}, "evaluate_every_steps": 5}
    train = {"loss": loss, **negatives, **rule}
    if loss == "bce" or metric == "auc":
        Train.model_validate(train)
        return
    with pytest.raises(ValidationError, match=rf"metric={metric} needs probabilities, .*loss={loss} are not"):
        Train.model_validate(train)


def plan_of(lake: LakePaths, **train: Any) -> TrainPlan:
    spec, rows = segment_rows(20_000, seed=1)
    held_out = {"validation": {"2026-01-03": segment_rows(4_000, 2)[1]}}
    dataset = publish_all(
        lake, "2026-01-04", spec, {"train": {"2026-01-02": rows}, **held_out}, file_rows=4_000
    )
    model = {"architecture": "dlrm", "embedding_dim": 8, "bottom_mlp": [8, 8], "top_mlp": [16]}
    settings = {"global_batch_size": 512, "num_ranks": 1, "log_every_steps": 7, **train}
    return make_plan(make_config(lake, model=model, train=settings), lake, dataset)


def test_a_training_ends_at_its_target_and_says_why(tmp_path: Path) -> None:
    plan = plan_of(LakePaths(str(tmp_path)), evaluate_every_steps=5, stop_at={"value": 0.55}, epochs=4)
    description = train_in_process(plan)
    measured = [entry for entry in description["history"] if "validation" in entry]
    assert [entry["step"] for entry in measured] == list(range(5, description["steps"] + 1, 5))
    *before, last = [entry["validation"]["auc"] for entry in measured]
    assert last >= 0.55 > max(before, default=0)
    assert description["stopped"].startswith("auc 0.")
    assert description["steps"] < 160
    assert description["metrics"]["validation"]["auc"] == last  # nothing was trained after it


def test_measuring_on_the_way_changes_no_weight(tmp_path: Path) -> None:
    plain, measured = (
        train_in_process(plan_of(LakePaths(str(tmp_path / name)), keep="last", **train))
        for name, train in [("plain", {}), ("measured", {"evaluate_every_steps": 7})]
    )
    assert [entry["loss"] for entry in plain["history"]] == [entry["loss"] for entry in measured["history"]]
    assert [entry["step"] for entry in measured["history"] if "validation" in entry] == [7, 14, 21, 28, 35]
    assert plain["metrics"] == measured["metrics"]
    assert plain["stopped"] is measured["stopped"] is None


def test_a_profile_is_written_beside_the_checkpoints(tmp_path: Path) -> None:
    plan = plan_of(LakePaths(str(tmp_path)), profile={"first_step": 3, "steps": 2})
    train_in_process(plan)
    (trace,) = Path(f"{plan.checkpoint_path}.profile").iterdir()
    assert trace.name == "rank0-steps3-4.json.gz"
    assert trace.stat().st_size > 1_000


def test_a_profile_past_the_end_is_none(tmp_path: Path) -> None:
    plan = plan_of(LakePaths(str(tmp_path)), profile={"first_step": 4_000})
    train_in_process(plan)
    assert not Path(f"{plan.checkpoint_path}.profile").exists()


def test_a_pruned_training_ends_at_the_same_step_on_all_ranks_and_leaves_only_a_record(
    tmp_path: Path,
) -> None:
    plan = plan_of(LakePaths(str(tmp_path)), evaluate_every_steps=5, epochs=2, num_shards=4)
    steps = plan.steps_per_epoch
    # Position 2 of the limits is no evaluation; at the third evaluation, no AUC is good enough.
    rule = PruningRule("auc", {2: 1.1, round(1000 * 15 / steps): 1.1})
    descriptions = on_ranks(
        2, lambda collectives: run_plan(replace(plan, pruning=rule), collectives, torch.device("cpu"))
    )
    for description in descriptions:
        assert description["steps"] == 15 == description["history"][-1]["step"]
        assert "metrics" not in description
        assert description["stopped"].startswith("pruned, because its best auc up to step 15 is worse than")
    assert read_pruned(plan.model_path) == json.loads(json.dumps(descriptions[0]))
    assert os.listdir(plan.model_path) == ["pruned.json"]
    assert not list(Path(plan.checkpoint_path).glob("step-*"))
    # The same training without the rule is complete, and has the same history up to this step.
    complete = train_in_process(plan)
    assert complete["steps"] == 2 * steps
    for entry, other in zip(descriptions[0]["history"], complete["history"], strict=False):
        assert entry["step"] == other["step"]
        assert entry["loss"] == pytest.approx(other["loss"], rel=1e-4)


def test_a_training_that_stops_by_itself_is_not_pruned(tmp_path: Path) -> None:
    plan = plan_of(LakePaths(str(tmp_path)), evaluate_every_steps=5, stop_at={"value": 0.1}, epochs=2)
    rule = PruningRule("auc", {round(1000 * 5 / plan.steps_per_epoch): 1.1})
    description = train_in_process(replace(plan, pruning=rule))
    assert description["steps"] == 5
    assert description["stopped"].startswith("auc 0.")
    assert "metrics" in description
