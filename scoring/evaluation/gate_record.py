"""Last step of the gate: formats the result as facts for the report and as a record for the registry."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from scoring.evaluation.gate import Check, Comparison, Verdict
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
    """The evaluation of a challenger.

    Attributes:
        info: the challenger's model.json.
        challenger, champion: measures of both models; `champion` is None if there is no champion.
        comparison: the comparison of both models; None if there is no champion.
        drift: the figures that `drift_checks` returns.
        verdict: the decision and all checks.
    """

    info: ModelInfo
    challenger: ModelMeasures
    champion: ModelMeasures | None
    comparison: Comparison | None
    drift: Mapping[str, Any]
    verdict: Verdict

    @property
    def champion_after(self) -> str | None:
        """Version of the champion after this decision."""
        if self.verdict.promoted:
            return self.challenger.version
        return self.champion.version if self.champion else None

    @property
    def intervals(self) -> dict[str, Any]:
        """Maps auc and log_loss to the interval of the difference between the models, if it is known."""
        if self.comparison is None:
            return {}
        intervals = {"auc": self.comparison.auc, "log_loss": self.comparison.log_loss}
        return {name: asdict(interval) for name, interval in intervals.items() if interval is not None}

    @property
    def checks(self) -> list[dict[str, Any]]:
        """The checks as JSON values. The most severe levels come first."""
        ordered = sorted(self.verdict.checks, key=lambda check: _WORST_FIRST.index(check.level))
        return [_check_facts(check) for check in ordered]

    def facts(self, context: RunContext, dataset: Dataset) -> dict[str, Any]:
        """The facts that evaluate_model publishes in the table `evaluations`, as JSON values."""
        resampled_by = "user" if context.config.keys else "row"
        return {
            "challenger": self.challenger.to_facts(),
            "champion": self.champion.to_facts() if self.champion else None,
            "promoted": self.verdict.promoted,
            "reason": self.verdict.reason,
            "margin": context.config.gate.margin,
            "intervals": self.intervals,
            "resampled": {"by": resampled_by, "count": self.comparison.users} if self.comparison else None,
            "checks": self.checks,
            "drift": dict(self.drift),
            "baselines": self.info.description.get("baselines", {}),
            "best_auc": best_auc(context, dataset),
        }

    def decision(self) -> ChampionDecision:
        """The registry's record: headline figures, and the lineage needed to train the model again."""
        return ChampionDecision(
            self.challenger.version,
            self.champion.version if self.champion else None,
            self.verdict.promoted,
            self.champion_after,
            self.verdict.reason,
            metrics={
                "challenger": _headline(self.challenger),
                "champion": _headline(self.champion) if self.champion else None,
            },
            intervals=self.intervals,
            checks=self.checks,
            lineage={key: self.info.description.get(key) for key in LINEAGE},
        )


def best_auc(context: RunContext, dataset: Dataset) -> float | None:
    """The AUC of the true click probabilities on the test day, which is the best possible AUC.

    Only a generated log has this fact. None for other logs, and if there are several test days.
    """
    days = [member.dt for member in dataset.splits["test"]]
    raw = context.lake.raw.partition(days[0]) if len(days) == 1 else None
    return read_manifest(raw).facts.get("best_auc") if raw and is_published(raw) else None


def _headline(measures: ModelMeasures) -> dict[str, Any]:
    """The figures of a model that are recorded in the registry."""
    ranking = {"ranking": dict(measures.ranking)} if measures.ranking else {}
    return {**{name: measures.quality.facts[name] for name in HEADLINE}, **ranking}


def _check_facts(check: Check) -> dict[str, Any]:
    """A check with the keys of the published format, which calls the message `said`."""
    return {"said" if name == "message" else name: value for name, value in asdict(check).items()}
