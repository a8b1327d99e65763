"""What evaluate_model writes down: the comparison for the report, and the decision for the registry."""

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
    """A challenger's evaluation: both models' measures, how they compare, figures of drift, and the verdict."""

    challenger: ModelInfo
    ours: ModelMeasures
    theirs: ModelMeasures | None
    compared: Comparison | None
    drift: Mapping[str, Any]
    verdict: Verdict

    @property
    def champion_after(self) -> str | None:
        if self.verdict.promoted:
            return self.ours.version
        return self.theirs.version if self.theirs else None

    @property
    def intervals(self) -> dict[str, Any]:
        """Measure → the interval of its difference, where there is one."""
        found = {"auc": self.compared.auc, "log_loss": self.compared.log_loss} if self.compared else {}
        return {name: asdict(each) for name, each in found.items() if each is not None}

    @property
    def checks(self) -> list[dict[str, Any]]:
        """What the gate looked at, the worst first."""
        return [
            _check(each)
            for each in sorted(self.verdict.checks, key=lambda each: _WORST_FIRST.index(each.level))
        ]

    def facts(self, context: RunContext, dataset: Dataset) -> dict[str, Any]:
        """What the evaluation's partition says: JSON values."""
        resampled = {"by": "user" if context.config.keys else "row"}
        return {
            "challenger": self.ours.to_facts(),
            "champion": self.theirs.to_facts() if self.theirs else None,
            "promoted": self.verdict.promoted,
            "reason": self.verdict.reason,
            "margin": context.config.gate.margin,
            "intervals": self.intervals,
            "resampled": {**resampled, "count": self.compared.users} if self.compared else None,
            "checks": self.checks,
            "drift": dict(self.drift),
            "baselines": self.challenger.description.get("baselines", {}),
            "best_auc": best_auc(context, dataset),
        }

    def decision(self) -> ChampionDecision:
        """What the registry keeps: without tables, with all it takes to make the model again."""
        return ChampionDecision(
            self.ours.version,
            self.theirs.version if self.theirs else None,
            self.verdict.promoted,
            self.champion_after,
            self.verdict.reason,
            metrics={
                "challenger": _headline(self.ours),
                "champion": _headline(self.theirs) if self.theirs else None,
            },
            intervals=self.intervals,
            checks=self.checks,
            lineage={key: self.challenger.description.get(key) for key in LINEAGE},
        )


def best_auc(context: RunContext, dataset: Dataset) -> float | None:
    """The best AUC the test day allows, where the log was generated and says so."""
    days = [member.dt for member in dataset.splits["test"]]
    raw = context.lake.raw.partition(days[0]) if len(days) == 1 else None
    return read_manifest(raw).facts.get("best_auc") if raw and is_published(raw) else None


def _headline(measures: ModelMeasures) -> dict[str, Any]:
    ranking = {"ranking": dict(measures.ranking)} if measures.ranking else {}
    return {**{name: measures.measured.facts[name] for name in HEADLINE}, **ranking}


def _check(check: Check) -> dict[str, Any]:
    return asdict(check)
