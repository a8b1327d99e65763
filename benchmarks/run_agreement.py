"""Checks that the contenders of benchmarks/run.py have done the same work."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa

from benchmarks.agreement import Disagreement
from benchmarks.peers.plain_data import ITEM, USER, keys, read_days
from benchmarks.run_contenders import Run

AUC_TOLERANCE, HIT_RATE_TOLERANCE = 0.005, 0.02


def clicks_of(raw: Path, day: str, cores: int) -> pa.Table:
    """Returns the clicks of a day with the columns `user_id` and `item_id`, each pair once."""
    (files,) = read_days(raw, [day], cores)
    clicked = np.concatenate([file.labels() for file in files]) > 0
    users, items = (keys(files, column).of_rows(clicked) for column in (USER, ITEM))
    return pa.table({"user_id": users, "item_id": items}).group_by(["user_id", "item_id"]).aggregate([])


def hit_rate(lists: pa.Table, clicks: pa.Table) -> float:
    """Returns the share of users with at least one clicked item in their list.

    Only users with a list and with clicks count. Both tables have the columns `user_id` and `item_id`.
    """
    users = lists.select(["user_id"]).group_by("user_id").aggregate([])
    measured = clicks.join(users, "user_id", join_type="inner")
    hits = measured.join(lists, ["user_id", "item_id"], join_type="inner")
    return len(hits["user_id"].unique()) / len(measured["user_id"].unique())


def require_same_work(ours: Run, script: Run, clicks: pa.Table) -> dict[str, float]:
    """Compares two runs of the same date. Returns the AUC of both models and the hit rate, of both runs.

    Args:
        ours: a run of nightly.
        script: a run of the plain script.
        clicks: the clicks of the day after the run date.

    Raises:
        Disagreement: rows, users with lists, AUC or hit rate differ.
    """
    for what, value, expected in (
        ("rows kept", ours.kept, script.kept),
        ("rows dropped", ours.dropped, script.dropped),
        ("entries of lists", len(ours.lists), len(script.lists)),
        ("users with a list", len(ours.lists["user_id"].unique()), len(script.lists["user_id"].unique())),
    ):
        if value != expected:
            raise Disagreement(
                f"{what}: nightly has {value:,}, the script has {expected:,}; they must be equal"
            )
    figures = {
        "auc_nightly": ours.auc,
        "auc_script": script.auc,
        "baseline_auc_nightly": ours.baseline_auc,
        "baseline_auc_script": script.baseline_auc,
        "hit_rate_nightly": hit_rate(ours.lists, clicks),
        "hit_rate_script": hit_rate(script.lists, clicks),
    }
    tolerances = {"auc": AUC_TOLERANCE, "baseline_auc": AUC_TOLERANCE, "hit_rate": HIT_RATE_TOLERANCE}
    for what, tolerance in tolerances.items():
        mine, theirs = figures[f"{what}_nightly"], figures[f"{what}_script"]
        if not abs(mine - theirs) <= tolerance:
            raise Disagreement(
                f"{what}: {mine:.4f} of nightly and {theirs:.4f} of the script differ by more than {tolerance}, "
                "so the two do not do the same work"
            )
    return figures
