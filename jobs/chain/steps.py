"""Which jobs a night consists of, in order: read by nightly, which runs them, and by plan_night, for a scheduler that does."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import date, timedelta

from conf.types import Config
from storage.lineage import NOT_RECORDED, LineageRecorder
from storage.manifest import is_published, read_manifest
from storage.paths import Lake
from training.registry.versions import champion_as_of


@dataclass(frozen=True)
class Step:
    """One job for one day. `name` is unique in a night; `overrides` are `--set` values of this step alone."""

    job: str
    run_date: str
    name: str
    overrides: tuple[str, ...] = ()


@dataclass(frozen=True)
class Night:
    """One run date of one configuration. `retrain` adds the training of a challenger and the gate.

    `recorder` receives what is read to decide on the steps.
    """

    config: Config
    run_date: str
    retrain: bool
    recorder: LineageRecorder = field(default=NOT_RECORDED, compare=False, repr=False)

    @property
    def lake(self) -> Lake:
        return Lake(self.config.lake, self.recorder)

    def preparing(self) -> list[Step]:
        """The steps up to the gate."""
        if not self.retrain:
            mode = ("workflow.mode=retrain",) if self._champion_is_of_this_date() else ()
            return [self._step("build_features", overrides=mode)]
        features = self._step("build_features", overrides=("workflow.mode=retrain",))
        models = ["train_model", *(["train_retriever"] if self.config.candidates.retrieval else [])]
        return [features, *(self._step(job) for job in (*models, "evaluate_model"))]

    def serving(self) -> list[Step]:
        """The steps behind the gate; known once it has spoken. Lists of the day before are measured if there are any:
        their clicks are in now.
        """
        again = [
            self._step("build_features", name="build_features_again", overrides=("workflow.mode=apply",))
        ]
        listing = ["build_candidates", "score_daily"] if self.config.keys else ["score_rows"]
        delivering = ["deliver_recommendations"] if self.config.deliver.sinks else []
        return [
            *(again if self._champion_lacks_features() else []),
            *(self._step(job) for job in (*listing, *delivering)),
            *(self._step("measure_recommendations", day=day) for day in self._days_to_measure()),
            self.report(),
        ]

    def report(self) -> Step:
        """The last step, which a night that failed takes too."""
        return self._step("report")

    def _step(
        self, job: str, *, name: str | None = None, day: str | None = None, overrides: tuple[str, ...] = ()
    ) -> Step:
        """A step of this night, working on `day` (default: the run date)."""
        return Step(job, day or self.run_date, name or job, overrides)

    def _champion_is_of_this_date(self) -> bool:
        """Whether who serves was promoted on this very date: the day's features must be made as its training made them,
        and not by the workflow of the champion before.
        """
        lake, name = self.lake, self.config.name
        serves = champion_as_of(lake, name, self.run_date)
        return serves is not None and serves != champion_as_of(lake, name, self.run_date, before=True)

    def _champion_lacks_features(self) -> bool:
        """Whether the gate kept a champion of another workflow version than the one just fitted or extended."""
        partition = self.lake.evaluations.partition(self.run_date)
        if not self.retrain or not is_published(partition):
            return False
        facts = read_manifest(partition).facts
        champion, challenger = facts["champion"], facts["challenger"]
        if facts["promoted"] or champion is None:
            return False
        return bool(champion["workflow_version"] != challenger["workflow_version"])

    def _days_to_measure(self) -> list[str]:
        if not self.config.keys:
            return []
        if self.config.measure.against == "test_split":
            return [self.run_date]
        before = (date.fromisoformat(self.run_date) - timedelta(days=1)).isoformat()
        return [before] if is_published(self.lake.recommendations.partition(before)) else []
