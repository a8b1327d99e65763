"""Makes a short remark for the progress line of a stage: the most useful facts of its job summary."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from conf.counted import counted
from storage.job_summary import JobSummary


def remark(summary: JobSummary | None) -> str:
    """Returns the result of a stage in about 50 characters. Its progress line then fits into 100.

    Facts that are missing in the summary are left out. The remark is empty if there is no summary.
    """
    if summary is None:
        return ""
    phrases = _BY_JOB.get(summary.job, _rows)(summary)
    return ", ".join(phrase for phrase in phrases if phrase)


def _generate_clicks(summary: JobSummary) -> list[str]:
    best = summary.facts.get("best_auc") or {}
    return [
        _count(summary.rows_out, "row"),
        _count(summary.facts.get("days"), "day"),
        f"best AUC {min(best.values()):.3f} to {max(best.values()):.3f}" if best else "",
    ]


def _build_features(summary: JobSummary) -> list[str]:
    facts, dropped = summary.facts, sum((summary.dropped or {}).values())
    return [
        _count(summary.rows_out, "row"),
        f"{dropped:,} dropped" if dropped else "",
        _phrase("workflow", facts.get("mode"), _short(facts.get("workflow_version"))),
        _count(len(facts.get("quality_warnings", [])), "warning"),
    ]


def _train_model(summary: JobSummary) -> list[str]:
    facts = summary.facts
    return [
        _count(facts.get("steps"), "step"),
        _number("validation AUC", facts.get("auc")),
        _phrase("model", _short(facts.get("version"))),
    ]


def _refit_model(summary: JobSummary) -> list[str]:
    facts = summary.facts
    version = facts.get("version")
    return [
        _count(facts.get("steps"), "step"),
        _phrase("model", _short(version)) if version else "no model was promoted",
    ]


def _evaluate_model(summary: JobSummary) -> list[str]:
    facts = summary.facts
    promoted = facts.get("promoted")
    decision = "" if promoted is None else ("promoted" if promoted else "champion kept")
    return [
        _number("AUC", facts.get("challenger_auc")),
        _number("champion's", facts.get("champion_auc")),
        _number("best", facts.get("best_auc")),
        decision,
        "" if facts.get("unmeasured") is None else "not measured",
    ]


def _learn_blend(summary: JobSummary) -> list[str]:
    facts, chosen = summary.facts, summary.facts.get("chosen")
    ndcgs = [contender["ndcg"] for contender in facts.get("contenders") or []]
    return [
        _phrase("lists ranked by", chosen),
        "" if facts.get("users") != 0 else "no validation clicks to learn from",
        _number(f"validation NDCG@{facts.get('k', 'k')}", max(ndcgs, default=None)),
    ]


def _score_daily(summary: JobSummary) -> list[str]:
    coverage, churn = summary.facts.get("coverage"), summary.facts.get("churn")
    return [
        _count(summary.facts.get("users"), "user"),
        _count(summary.rows_out, "recommendation"),
        "" if coverage is None else f"{coverage:.0%} of items",
        "" if churn is None else f"{churn:.0%} new",
    ]


def _deliver_recommendations(summary: JobSummary) -> list[str]:
    names = ", ".join(str(sink["name"]) for sink in summary.facts.get("sinks", []))
    return [_count(summary.facts.get("users"), "user"), f"to {names}" if names else ""]


def _measure_recommendations(summary: JobSummary) -> list[str]:
    facts = summary.facts
    return [
        f"for {facts['recommendations_date']}" if "recommendations_date" in facts else "",
        _phrase("not measured:", facts.get("unmeasured")),
        _number(f"HR@{facts.get('k', 'k')}", facts.get("hit_rate")),
        _number("lift", facts.get("lift"), 2),
        _number("new users'", _new_users(facts).get("hit_rate")),
        _number("recall", (facts.get("candidates") or {}).get("recall"), 2),
        _treatment(facts.get("experiment") or {}),
        _shown(facts.get("impressions") or {}),
    ]


def _treatment(experiment: Mapping[str, Any]) -> str:
    """Returns the relative difference of NDCG between the variants of an experiment, with its interval."""
    between = (experiment.get("total") or {}).get("differences", {}).get("ndcg") or {}
    low, high = between.get("relative_low"), between.get("relative_high")
    if low is None or high is None:
        return ""
    words = f"treatment {between['relative_difference']:+.1%} ({low:+.1%} to {high:+.1%})"
    return f"{words}, stops on {experiment['stops_on']}" if experiment.get("stops_on") else words


def _shown(impressions: Mapping[str, Any]) -> str:
    """Returns the share of list entries that were shown, and the click rate of the first position."""
    if not impressions.get("entries"):
        return ""
    words = f"{impressions['entries_shown'] / impressions['entries']:.0%} of entries shown"
    positions = (impressions["variants"].get("all") or {}).get("positions") or [{}]
    rate = positions[0].get("click_rate")
    return words if rate is None else f"{words}, {rate:.1%} of the first clicked"


def _new_users(facts: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns the figures of the lists of users who are new to the model; empty if they are missing."""
    return (facts.get("cold_start") or {}).get("new_users", {}).get("lists", {})


def _report(summary: JobSummary) -> list[str]:
    return [summary.output or ""]


def _rows(summary: JobSummary) -> list[str]:
    return [
        _count(summary.rows_in, "row in", "rows in"),
        f"{summary.rows_out:,} out" if summary.rows_out else "",
    ]


def _count(count: Any, noun: str, plural: str | None = None) -> str:
    return counted(count, noun, plural) if count else ""


def _number(name: str, value: Any, digits: int = 4) -> str:
    return "" if value is None else f"{name} {value:.{digits}f}"


def _short(version: str | None) -> str | None:
    """Returns the first half of a version, which is enough to distinguish the versions of a run."""
    return version and version[:8]


def _phrase(noun: str, *words: Any) -> str:
    """Returns the noun followed by the words that are not empty, or an empty string if all are empty."""
    present = [str(word) for word in words if word]
    return " ".join([noun, *present]) if present else ""


_BY_JOB: dict[str, Callable[[JobSummary], list[str]]] = {
    "generate_clicks": _generate_clicks,
    "build_features": _build_features,
    "train_model": _train_model,
    "train_retriever": _train_model,
    "evaluate_model": _evaluate_model,
    "refit_model": _refit_model,
    "learn_blend": _learn_blend,
    "score_daily": _score_daily,
    "deliver_recommendations": _deliver_recommendations,
    "measure_recommendations": _measure_recommendations,
    "report": _report,
}
