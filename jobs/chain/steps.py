"""Decides which stages a run has, and in which order. nightly runs the stages; plan_night reports them."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import date, timedelta
from typing import assert_never

from conf.types import Config
from storage.lineage import NOT_RECORDED, LineageRecorder
from storage.manifest import is_published, read_manifest
from storage.paths import LakePaths
from training.registry.blends import blend_as_of, blend_key
from training.registry.refits import promoted_on


@dataclass(frozen=True)
class ChainStep:
    """A step of a run: one job for one day.

    `name` is unique in a run; `overrides` are `--set` values for this job.
    """

    job: str
    run_date: str
    name: str
    overrides: tuple[str, ...] = ()


@dataclass(frozen=True)
class RunPlan:
    """The plan of a run: it chooses the stages for one configuration and one run date.

    If `retrain` is true, the run also trains a challenger and runs the gate. `recorder` records the data that
    this object reads.
    """

    config: Config
    run_date: str
    retrain: bool
    recorder: LineageRecorder = field(default=NOT_RECORDED, compare=False, repr=False)

    @property
    def lake(self) -> LakePaths:
        """The lake of the configuration."""
        return LakePaths(self.config.lake, self.recorder)

    def steps_before_gate(self) -> list[ChainStep]:
        """Returns the steps up to the gate's decision; only build_features if `retrain` is false.

        The gate is evaluate_model. With `train.refit`, refit_model follows, which does nothing if the gate
        has not promoted the challenger.
        """
        if not self.retrain:
            mode = ("workflow.mode=apply",) if self._promoted_on_run_date() else ()
            return [self._step("build_features", overrides=mode)]
        # With workflow.mode=fit, a new workflow is fitted instead of extending the champion's.
        mode = () if self.config.workflow.mode == "fit" else ("workflow.mode=retrain",)
        features = self._step("build_features", overrides=mode)
        models = ["train_model", *(["train_retriever"] if self.config.candidates.retriever else [])]
        refit = ["refit_model"] if self.config.train.refit else []
        return [features, *(self._step(job) for job in (*models, "evaluate_model", *refit))]

    def steps_after_gate(self) -> list[ChainStep]:
        """Returns the steps after the gate. Call this method only after the gate has decided.

        With measure.against=next_day, one step measures the lists of the previous day, if there are any: the
        clicks on these lists have arrived by now. With test_split, it measures the lists of the run date.
        """
        again = [
            self._step("build_features", name="build_features_again", overrides=("workflow.mode=apply",))
        ]
        scoring = ["score_rows"]
        if self.config.keys:
            blend = ["learn_blend"] if self._lacks_blend() else []
            scoring = [*blend, "build_candidates", "score_daily"]
        delivery = ["deliver_recommendations"] if self.config.deliver.sinks else []
        return [
            *(again if self._champion_lacks_features() else []),
            *(self._step(job) for job in (*scoring, *delivery)),
            *(self._step("measure_recommendations", day=day) for day in self._days_to_measure()),
            self.report_step(),
        ]

    def report_step(self) -> ChainStep:
        """Returns the last step, `report`. It also runs if an earlier step has failed."""
        return self._step("report")

    def _step(
        self, job: str, *, name: str | None = None, day: str | None = None, overrides: tuple[str, ...] = ()
    ) -> ChainStep:
        """Returns a step of this run that works on `day` (default: the run date)."""
        return ChainStep(job, day or self.run_date, name or job, overrides)

    def _promoted_on_run_date(self) -> bool:
        """Returns whether the champion was promoted on the run date itself.

        If so, the features of the run date must be built with the workflow of this champion, and not with the
        workflow of the previous champion.
        """
        return promoted_on(self.lake, self.config.name, self.run_date) is not None

    def _champion_lacks_features(self) -> bool:
        """Returns whether features must be built again, with the workflow of the champion.

        This is necessary if the gate kept the champion, and the champion's workflow differs from the
        challenger's workflow.
        """
        partition = self.lake.evaluations.partition(self.run_date)
        if not self.retrain or not is_published(partition):
            return False
        facts = read_manifest(partition).facts
        champion, challenger = facts["champion"], facts["challenger"]
        if facts["promoted"] or champion is None:
            return False
        return bool(champion["workflow_version"] != challenger["workflow_version"])

    def _lacks_blend(self) -> bool:
        """Returns whether score.blend=auto is set, but no blend of the champion and the sources is recorded.

        The sources are those of the section `candidates`. A record in which `users` is 0 does not count: on
        its date, the validation split had no clicks from which a blend could be learned.
        """
        if self.config.score.blend == "none":
            return False
        if self.config.score.blend == "auto":
            key = blend_key(self.lake, self.config, self.run_date)
            blend = blend_as_of(self.lake, self.config.name, self.run_date, key) if key else None
            return blend is None or not blend.users
        assert_never(self.config.score.blend)

    def _days_to_measure(self) -> list[str]:
        """Returns the days whose lists this run measures: one day or none."""
        if not self.config.keys:
            return []
        if self.config.measure.against == "test_split":
            return [self.run_date]
        if self.config.measure.against == "next_day":
            day_before = (date.fromisoformat(self.run_date) - timedelta(days=1)).isoformat()
            return [day_before] if is_published(self.lake.recommendations.partition(day_before)) else []
        assert_never(self.config.measure.against)
