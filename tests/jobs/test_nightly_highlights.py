"""Remarks on stages, from whole job summaries and from such as lack everything."""

from __future__ import annotations

import json
from typing import Any

import pytest

from jobs.chain.run_chain import remark
from storage.job_summary import JobSummary


@pytest.mark.parametrize(
    "values, text",
    [
        (
            {"job": "generate_clicks", "rows_out": 660_000, "days": 11, "best_auc": {"a": 0.81, "b": 0.823}},
            "660,000 rows, 11 days, best AUC 0.810 to 0.823",
        ),
        (
            {
                "job": "build_features",
                "rows_in": 1_000,
                "rows_out": 990,
                "dropped": {"x": 4, "y": 6},
                "mode": "fit",
                "workflow_version": "0123456789abcdef",
                "quality_warnings": ["C1 drifted", "C2 drifted"],
            },
            "990 rows, 10 dropped, workflow fit 01234567, 2 warnings",
        ),
        (
            {"job": "train_model", "steps": 350, "auc": 0.79, "version": "abc"},
            "350 steps, validation AUC 0.7900, model abc",
        ),
        (
            {
                "job": "evaluate_model",
                "promoted": False,
                "challenger_auc": 0.7,
                "champion_auc": 0.71,
                "best_auc": None,
            },
            "AUC 0.7000, champion's 0.7100, champion kept",
        ),
        (
            {"job": "score_daily", "users": 10, "rows_out": 100, "coverage": 0.815},
            "10 users, 100 recommendations, 82% of items",
        ),
        (
            {"job": "score_daily", "users": 10, "rows_out": 100, "coverage": 0.815, "churn": 0.25},
            "10 users, 100 recommendations, 82% of items, 25% new",
        ),
        (
            {"job": "deliver_recommendations", "users": 1200, "sinks": [{"name": "app"}, {"name": "files"}]},
            "1,200 users, to app, files",
        ),
        (
            {
                "job": "measure_recommendations",
                "recommendations_date": "d",
                "k": 5,
                "hit_rate": 0.2,
                "lift": None,
            },
            "for d, HR@5 0.2000",
        ),
        (
            {
                "job": "measure_recommendations",
                "k": 5,
                "hit_rate": 0.2,
                "cold_start": {"new_users": {"users": 3, "lists": {"hit_rate": 0.125}}},
                "candidates": {"recall": 0.625},
            },
            "HR@5 0.2000, new users' 0.1250, recall 0.62",
        ),
        (
            {
                "job": "measure_recommendations",
                "experiment": {
                    "stops_on": None,
                    "total": {
                        "differences": {
                            "ndcg": {
                                "relative_difference": 0.02,
                                "relative_low": -0.0104,
                                "relative_high": 0.05,
                            }
                        }
                    },
                },
            },
            "treatment +2.0% (-1.0% to +5.0%)",
        ),
        ({"job": "train_retriever", "steps": 7, "auc": 0.7}, "7 steps, validation AUC 0.7000"),
        ({"job": "refit_model", "steps": 7, "version": "0123456789abcdef"}, "7 steps, model 01234567"),
        ({"job": "refit_model", "version": None}, "no model was promoted"),
        ({"job": "build_candidates", "rows_in": 3, "rows_out": 3}, "3 rows in, 3 out"),
    ],
)
def test_remark(values: dict[str, Any], text: str) -> None:
    summary = JobSummary.parse(json.dumps({**values, "seconds": {}}))
    assert remark(summary) == text


@pytest.mark.parametrize(
    "job",
    [
        "generate_clicks",
        "build_features",
        "train_model",
        "evaluate_model",
        "score_daily",
        "deliver_recommendations",
        "report",
        "x",
    ],
)
def test_remark_on_a_summary_without_facts_is_short_and_no_error(job: str) -> None:
    assert len(remark(JobSummary.parse(json.dumps({"job": job, "seconds": {}})))) < 10


def test_a_stage_without_a_summary_has_no_remark() -> None:
    assert remark(None) == ""
