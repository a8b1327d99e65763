"""The simulated sums of experiments: totals, spread of the resamples, and the last line of the script."""

from __future__ import annotations

import json

import numpy as np
import pytest

from benchmarks.experiment_stops import HIT_RATE, USERS, day_sums, main
from scoring.evaluation.measured_lists import UNITS


def test_sums_have_the_totals_and_the_spread_of_a_bootstrap() -> None:
    sums = day_sums(np.random.default_rng(1), 4_000, 5_000)
    hits = sums["hit"][0] / 4_000
    assert sums["users"][0] == sums["clicked"][0] == 4_000
    assert hits == pytest.approx(HIT_RATE, abs=0.03)
    assert 0 < sums["ndcg"][0] < sums["hit"][0] * UNITS
    rates = sums["hit"][1:] / sums["clicked"][1:]
    assert rates.std() == pytest.approx(np.sqrt(hits * (1 - hits) / 4_000), rel=0.05)


def test_the_last_line_has_a_share_for_each_number_of_users(capsys: pytest.CaptureFixture[str]) -> None:
    main(["--experiments", "3", "--replicates", "100"])
    summary = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert summary["experiments"] == 3
    widths = [summary["ours"][f"{users}_half_width"] for users in USERS]
    assert widths == sorted(widths, reverse=True)
    assert all(0 <= share <= 1 for share in summary["peers"]["one_look"].values())
