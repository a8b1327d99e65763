"""The typed configuration of production: an experiment with another model, and the log of what was shown."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, field_validator, model_validator

from conf.dates import IsoDate
from conf.names import FolderName, PlainText, RawLocation
from conf.raw_types import Column, PositiveInt, RawTable, Seed, Separator, Share, Strict

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


class Impressions(Strict):
    """The log of what was shown to users from the published lists (docs/experiments.md).

    measure_recommendations compares the log of the day after the lists with the lists and with the clicks of
    that day. Rows with the same user, item, position, variant and model version are one impression.
    """

    path: RawLocation = Field(
        description="Path or URI of the files of a day, with `{date}`. It may contain globs, `{lake}` and "
        "`{data}`. Text files whose names end in .gz, .bz2 or .zst are decompressed."
    )
    format: Literal["csv", "parquet", "jsonl"] = Field(
        description="`csv`: text with a header line. `parquet`: Parquet. `jsonl`: a JSON object in each line."
    )
    separator: Separator = Field(
        default=",", description="Character between two fields of a line of `csv`. `\\t` is a tab."
    )
    user: PlainText = Field(description="Column with the key of the user, as in the lists.")
    item: PlainText = Field(description="Column with the key of the item, as in the lists.")
    position: PlainText = Field(description="Column with the position in the list; the first is 1.")
    variant: PlainText | None = Field(
        default=None,
        description="Column with the variant of an experiment. Null: the variants are not compared with the "
        "lists.",
    )
    model_version: PlainText | None = Field(
        default=None,
        description="Column with the version of the model that made the list. Null: the versions are not "
        "compared with the lists.",
    )
    max_unmatched_share: Share = Field(
        default=0.05,
        description="If a larger share of the impressions fits no list, measure_recommendations logs a "
        "warning.",
    )
    min_effective_entries: PositiveInt = Field(
        default=200,
        description="Smallest effective number of shown entries with which the click rate of explored "
        "positions in the order of the scores is estimated.",
    )
    confidence: Annotated[float, Field(gt=0, lt=1)] = Field(
        default=0.95, description="Confidence of the intervals."
    )
    replicates: Annotated[int, Field(ge=100, le=10_000)] = Field(
        default=1000, description="Number of resamples of the users, for the intervals."
    )
    seed: Seed = Field(default=0, description="Seed of the resamples.")

    @field_validator("path")
    @classmethod
    def _has_date(cls, path: str) -> str:
        if "{date}" not in path:
            raise ValueError(f"{path!r} must contain {{date}}, because each day has its own files")
        return path

    @model_validator(mode="after")
    def _differ(self) -> Impressions:
        if len(set(self.columns)) < len(self.columns):
            raise ValueError(f"the columns {self.columns} must differ")
        return self

    @property
    def columns(self) -> list[str]:
        """Returns the names of the columns that are read: user, item, position, variant, model version."""
        names = (self.user, self.item, self.position, self.variant, self.model_version)
        return [name for name in names if name is not None]

    @property
    def files(self) -> RawTable:
        """Returns the place of the files as a table, for `etl.raw.files.find_raw`."""
        columns = [Column(name="user", type="string")]
        return RawTable(
            path=self.path, format="parquet" if self.format == "parquet" else "csv", columns=columns
        )


class Serving(Strict):
    """Lists in production: experiments with another model, and the log of what was shown."""

    experiment: ServingExperiment | None = Field(
        default=None, description="An experiment in production. Null: the champion makes all lists."
    )
    impressions: Impressions | None = Field(
        default=None,
        description="The log of what was shown. Null: only clicks are compared with the lists.",
    )
