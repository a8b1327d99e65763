"""Last step of the gate: formats the result as facts for the report and as a record for the registry."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from scoring.evaluation.gate import Check, Comparison, Verdict
from scoring.evaluation.gate_list_checks import ListComparison
from scoring.evaluation.gate_lists import ListFigures
from scoring.evaluation.gate_measures import ModelMeasures
from scoring.model.model_info import ModelInfo
from storage.dataset import Dataset
from storage.manifest import is_published, read_manifest
from storage.run_context import RunContext
from training.registry.versions import ChampionDecision

HEADLINE = ("auc", "log_loss", "normalized_entropy", "predicted_over_observed", "rows", "positives")
LINEAGE = (
    "run_date",
    "parent",
    "trained_days",
    "dataset_digest",
    "workflow_version",
    "config_digest",
    "code_version",
)
_WORST_FIRST = ("hold", "warn", "ok")


@dataclass(frozen=True)
class Evaluation:
    """The evaluation of a challenger against the champion.

    Attributes:
        info: the challenger's model.json.
        challenger, champion: the measures of each model; `champion` is None if there is no champion.
        comparison: the comparison of challenger and champion; None if there is no champion.
        lists: the comparison of the models' lists.
        drift: the figures that `drift_checks` returns.
        verdict: the decision and all checks.
    """

    info: ModelInfo
    challenger: ModelMeasures
    champion: ModelMeasures | None
    comparison: Comparison | None
    lists: ListComparison
    drift: Mapping[str, Any]
    verdict: Verdict

    @property
    def champion_after(self) -> str | None:
        """Returns the version of the champion after this decision; None if there is no champion."""
        if self.verdict.promoted:
            return self.challenger.version
        return self.champion.version if self.champion else None

    @property
    def intervals(self) -> dict[str, Any]:
        """Returns the confidence intervals of the differences, challenger minus champion.

        The keys are `auc` and `log_loss`, and for lists `hit_rate` and `ndcg`. A key is missing if its
        interval is unknown.
        """
        if self.comparison is None:
            return {}
        intervals = {"auc": self.comparison.auc, "log_loss": self.comparison.log_loss}
        known = {name: asdict(interval) for name, interval in intervals.items() if interval is not None}
        return known | self.lists.interval_facts()

    @property
    def checks(self) -> list[dict[str, Any]]:
        """Returns the results of all checks as JSON values, ordered by severity: `hold`, `warn`, `ok`."""
        ordered = sorted(self.verdict.checks, key=lambda check: _WORST_FIRST.index(check.level))
        return [_check_facts(check) for check in ordered]

    def facts(self, context: RunContext, dataset: Dataset) -> dict[str, Any]:
        """Returns the facts that evaluate_model publishes in the table `evaluations`, as JSON values."""
        resampled_by = "user" if context.config.keys else "row"
        return {
            "challenger": self.challenger.to_facts(),
            "champion": self.champion.to_facts() if self.champion else None,
            "promoted": self.verdict.promoted,
            "reason": self.verdict.reason,
            "margin": context.config.gate.margin,
            "lists_margin": context.config.gate.lists_margin,
            "lists": self.lists.to_facts(),
            "intervals": self.intervals,
            "resampled": {"by": resampled_by, "count": self.comparison.users} if self.comparison else None,
            "checks": self.checks,
            "drift": dict(self.drift),
            "baselines": self.info.description.get("baselines", {}),
            "best_auc": best_auc(context, dataset),
        }

    def decision(self) -> ChampionDecision:
        """Returns the decision as a record for the model registry.

        The record contains the headline figures of both models. It also contains the lineage that is needed
        to train the challenger again.
        """
        return ChampionDecision(
            self.challenger.version,
            self.champion.version if self.champion else None,
            self.verdict.promoted,
            self.champion_after,
            self.verdict.reason,
            metrics={
                "challenger": _headline(self.challenger, self.lists.challenger),
                "champion": _headline(self.champion, self.lists.champion) if self.champion else None,
            },
            intervals=self.intervals,
            checks=self.checks,
            lineage={key: self.info.description.get(key) for key in LINEAGE},
        )


def best_auc(context: RunContext, dataset: Dataset) -> float | None:
    """Returns the AUC of the true click probabilities on the test day: the best AUC that a model can reach.

    Only generated logs record the true click probabilities. The result is None for other logs, and if there
    are several test days.
    """
    days = [member.dt for member in dataset.splits["test"]]
    raw = context.lake.raw.partition(days[0]) if len(days) == 1 else None
    return read_manifest(raw).facts.get("best_auc") if raw and is_published(raw) else None


def _headline(measures: ModelMeasures, lists: ListFigures | None) -> dict[str, Any]:
    """Returns those figures of a model that the registry records."""
    ranking = {"ranking": dict(measures.ranking)} if measures.ranking else {}
    of_lists = {"lists": lists.to_facts()} if lists else {}
    return {**{name: measures.facts[name] for name in HEADLINE}, **ranking, **of_lists}


def _check_facts(check: Check) -> dict[str, Any]:
    """Returns a check as JSON values. In the JSON, the field `message` is named `said`."""
    return {"said" if name == "message" else name: value for name, value in asdict(check).items()}
