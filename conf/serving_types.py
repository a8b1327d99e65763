"""The typed configuration of experiments in production: which users get the lists of another model."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, model_validator

from conf.dates import IsoDate
from conf.names import FolderName
from conf.raw_types import PositiveInt, Seed, Strict

CHALLENGER = "challenger"


class ServingExperiment(Strict):
    """An experiment: some users, the treatment, get the lists of another model (docs/experiments.md).

    All other users, the control, get the lists of the champion.

    A hash of the salt and the user chooses the variant of a user. So a user has the same variant on all run
    dates, and experiments with different salts choose independently of each other.
    """

    name: FolderName = Field(description="Name of the experiment. Another experiment needs another name.")
    salt: FolderName | None = Field(
        default=None,
        description="Text that is hashed with the user. Two experiments with one salt have the same users in "
        "the treatment, if their shares are equal. Null: the name.",
    )
    share: Annotated[float, Field(gt=0, lt=1)] = Field(description="Share of the users in the treatment.")
    model: FolderName = Field(
        default=CHALLENGER,
        description="Version of the model that ranks for the treatment: a model of this configuration, one "
        "of its refits, or one that compare_models trained. `challenger`: the last challenger before `start` "
        "that the gate did not promote.",
    )
    start: IsoDate = Field(description="First run date of the experiment.")
    end: IsoDate | None = Field(
        default=None, description="Last run date of the experiment. Null: it does not end by itself."
    )
    stop_below: Annotated[float, Field(ge=-1, lt=0)] | None = Field(
        default=None,
        description="Guard rail: the experiment stops if the whole confidence interval of the relative "
        "difference of NDCG@k, treatment to control, is below this number, such as -0.05. Null: it does not "
        "stop by itself.",
    )
    min_users: PositiveInt = Field(
        default=200,
        description="Smallest number of users with clicks in each variant, added up over days, with which "
        "`stop_below` can stop the experiment.",
    )
    resume: IsoDate | None = Field(
        default=None,
        description="Run date from which a stopped experiment runs again. Its figures are then those of this "
        "date and later ones. Null: a stop is final.",
    )
    confidence: Annotated[float, Field(gt=0, lt=1)] = Field(
        default=0.95, description="Confidence of the intervals."
    )
    replicates: Annotated[int, Field(ge=100, le=10_000)] = Field(
        default=1000, description="Number of resamples of the users, for the intervals."
    )
    seed: Seed = Field(default=0, description="Seed of the resamples.")

    @model_validator(mode="after")
    def _dates_ascend(self) -> ServingExperiment:
        if self.end is not None and self.end < self.start:
            raise ValueError(f"end={self.end} is before start={self.start}")
        if self.resume is not None and not self.start < self.resume <= (self.end or self.resume):
            raise ValueError(
                f"resume={self.resume} must be after start={self.start}, and not after end={self.end}"
            )
        return self

    @property
    def salted_prefix(self) -> str:
        """Returns the text that is put before the key of a user. A salt cannot contain its last character."""
        return f"{self.salt or self.name}:"

    def runs_on(self, run_date: str) -> bool:
        """Returns whether a run date is one of the experiment."""
        return self.start <= run_date <= (self.end or run_date)

    def first_date(self, run_date: str) -> str:
        """Returns the first run date whose figures count on a run date: `start`, or a past `resume`."""
        return self.resume if self.resume is not None and self.resume <= run_date else self.start


class Serving(Strict):
    """Experiments in production: other lists than those of the champion for some users."""

    experiment: ServingExperiment | None = Field(
        default=None, description="An experiment in production. Null: the champion makes all lists."
    )
