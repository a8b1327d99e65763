"""The few facts of a stage's closing line that somebody who watches the night wants to read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

Closing = Mapping[str, Any]


def remark(closing: Closing) -> str:
    """What a stage did, from its closing JSON object, in about 50 characters, so that its line fits into 100.

    Facts that are not there are left out.
    """
    special = _SPECIAL.get(str(closing.get("job")), _rows)
    return ", ".join(part for part in special(closing) if part)


def _generate_clicks(closing: Closing) -> list[str]:
    best = closing.get("best_auc") or {}
    return [
        _counted(closing.get("rows_out"), "rows"),
        _counted(closing.get("days"), "days"),
        f"best AUC {min(best.values()):.3f} to {max(best.values()):.3f}" if best else "",
    ]


def _build_features(closing: Closing) -> list[str]:
    dropped = sum(closing.get("dropped", {}).values())
    return [
        _counted(closing.get("rows_out"), "rows"),
        f"{dropped:,} dropped" if dropped else "",
        _joined("workflow", closing.get("mode"), _short(closing.get("workflow_version"))),
        _counted(len(closing.get("quality_warnings", [])), "warnings"),
    ]


def _train_model(closing: Closing) -> list[str]:
    return [
        _counted(closing.get("steps"), "steps"),
        _number("validation AUC", closing.get("auc")),
        _joined("model", _short(closing.get("version"))),
    ]


def _evaluate_model(closing: Closing) -> list[str]:
    promoted = closing.get("promoted")
    decision = "" if promoted is None else ("promoted" if promoted else "champion kept")
    return [
        _number("AUC", closing.get("challenger_auc")),
        _number("champion's", closing.get("champion_auc")),
        _number("best", closing.get("best_auc")),
        decision,
    ]


def _score_daily(closing: Closing) -> list[str]:
    coverage = closing.get("coverage")
    return [
        _counted(closing.get("users"), "users"),
        _counted(closing.get("rows_out"), "recommendations"),
        "" if coverage is None else f"{coverage:.0%} of items",
        "" if closing.get("churn") is None else f"{closing['churn']:.0%} new",
    ]


def _deliver(closing: Closing) -> list[str]:
    names = ", ".join(str(each["name"]) for each in closing.get("sinks", []))
    return [_counted(closing.get("users"), "users"), f"to {names}" if names else ""]


def _measure(closing: Closing) -> list[str]:
    k = closing.get("k", "k")
    return [
        f"for {closing['recommendations_date']}" if "recommendations_date" in closing else "",
        _number(f"HR@{k}", closing.get("hit_rate")),
        _number("lift", closing.get("lift"), 2),
        _number("recall", (closing.get("candidates") or {}).get("recall"), 2),
    ]


def _report(closing: Closing) -> list[str]:
    return [str(closing.get("output", ""))]


def _rows(closing: Closing) -> list[str]:
    return [_counted(closing.get("rows_in"), "rows in"), _counted(closing.get("rows_out"), "out")]


def _counted(count: Any, noun: str) -> str:
    return f"{count:,} {noun}" if count else ""


def _number(name: str, value: Any, digits: int = 4) -> str:
    return "" if value is None else f"{name} {value:.{digits}f}"


def _short(version: str | None) -> str | None:
    """The first half of a version: enough to tell two apart in a night."""
    return version and version[:8]


def _joined(noun: str, *words: Any) -> str:
    present = [str(word) for word in words if word]
    return " ".join([noun, *present]) if present else ""


_SPECIAL: dict[str, Callable[[Closing], list[str]]] = {
    "generate_clicks": _generate_clicks,
    "build_features": _build_features,
    "train_model": _train_model,
    "train_retriever": _train_model,
    "evaluate_model": _evaluate_model,
    "score_daily": _score_daily,
    "deliver_recommendations": _deliver,
    "measure_recommendations": _measure,
    "report": _report,
}
