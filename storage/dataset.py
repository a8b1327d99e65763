"""The data manifest: it lists the feature partitions of each split that one run of build_features published.

It is published as `datasets/dt=<run date>`. Training, evaluation and scoring read it first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from types import NoneType

from conf.errors import DataError
from conf.types import Split
from storage import feature_spec, file_io, format_versions
from storage.feature_spec import FeatureSpec
from storage.format_versions import require_names, typed
from storage.manifest import (
    MANIFEST_NAME,
    Manifest,
    combined_digest,
    current_manifest,
    data_files,
    digest_of,
    read_manifest,
    replace_manifest,
)
from storage.paths import LakePaths, Partition

_NAMED_DAYS = 7


@dataclass(frozen=True)
class Member:
    """The rows of one feature partition that belong to one split.

    Attributes:
        dt, digest: the date of the partition, and the digest of its manifest.
        label: the split that the partition's manifest gives for the files of these rows; None if all files of
            the partition belong to the split.
        clicks: number of rows with label 1; None if the dataset was published by an earlier release, because
            such releases did not count clicks.
    """

    dt: str
    digest: str
    label: str | None
    clicks: int | None = None


@dataclass(frozen=True)
class Dataset:
    """The result of one run of build_features.

    Attributes:
        run_date: the day for which build_features ran.
        workflow_version: the version of the workflow that computed the features.
        splits: maps each split to its feature partitions, in date order. No row is in two splits.
        mode: what build_features did: `fit` (fitted a new workflow), `extend` (added new values to an
            existing workflow) or `apply` (used an existing workflow unchanged).
        parent_workflow: the version from which `workflow_version` was extended; None if it was fitted from
            scratch. Ids have the same meaning in both versions. So a training run can start from the weights
            of a model only if that model uses one of these two versions.
        changed_days: days whose raw log was replaced after the workflow had computed statistics and
            vocabularies from it. The features of these days are computed from the new log, but the
            statistics and vocabularies still come from the old log.
    """

    run_date: str
    workflow_version: str
    splits: dict[str, tuple[Member, ...]]
    mode: str
    parent_workflow: str | None = None
    changed_days: tuple[str, ...] = ()

    @property
    def digest(self) -> str:
        """Returns the digest of the data, which does not depend on file names.

        The version of a model is computed from this digest.
        """
        members = [
            [split, member.dt, member.digest, member.label or ""]
            for split, split_members in self.splits.items()
            for member in split_members
        ]
        return digest_of([self.workflow_version, sorted(members)])

    @property
    def days(self) -> list[str]:
        """Returns the days of all splits, in date order."""
        return sorted({member.dt for members in self.splits.values() for member in members})


def publish_dataset(lake: LakePaths, dataset: Dataset, created_at: str) -> None:
    """Publishes `datasets/dt=<run date>`, unless it is up to date.

    This is the last step of build_features.
    """
    splits = {
        split: [{"dt": m.dt, "digest": m.digest, "label": m.label, "clicks": m.clicks} for m in members]
        for split, members in dataset.splits.items()
    }
    manifest = Manifest(
        table="datasets",
        partition=dataset.run_date,
        files=(),
        schema=(),
        inputs={
            "features": combined_digest(
                (member.digest for members in dataset.splits.values() for member in members), lake.recorder
            )
        },
        facts=format_versions.DATASET.stamp(
            {
                "workflow_version": dataset.workflow_version,
                "parent_workflow": dataset.parent_workflow,
                "mode": dataset.mode,
                "splits": splits,
                "changed_days": list(dataset.changed_days),
            }
        ),
        created_at=created_at,
    )
    partition = lake.datasets.partition(dataset.run_date)
    known = current_manifest(partition, manifest.inputs)
    if known is None or known.facts != manifest.facts:
        replace_manifest(partition, manifest)


def read_dataset(lake: LakePaths, run_date: str) -> Dataset:
    """Reads the dataset of a run date.

    Raises:
        DataError: build_features has not run for that date.
    """
    partition = lake.datasets.partition(run_date)
    path = partition.file(MANIFEST_NAME)
    facts = format_versions.DATASET.check(read_manifest(partition).facts, path)
    with format_versions.DATASET.parsing(path):
        typed(facts, workflow_version=str, mode=str, parent_workflow=(str, NoneType))
        splits = {
            split: tuple(Member(**member) for member in members) for split, members in facts["splits"].items()
        }
        days = (member.dt for members in splits.values() for member in members)
        require_names(facts["workflow_version"], facts["parent_workflow"], *days)
        return Dataset(
            run_date,
            facts["workflow_version"],
            splits,
            facts["mode"],
            facts["parent_workflow"],
            tuple(facts.get("changed_days", ())),
        )


def require_labels(days: Sequence[tuple[str, int, int]], *, only_clicks: bool = False) -> None:
    """Refuses training rows that all have the same label, because a model would learn only a constant.

    Args:
        days: (day, number of rows, number of clicks) for each day of the training rows.
        only_clicks: whether training uses only clicks (`train.only_positive_rows`). If so, all rows may
            be clicks.

    Raises:
        DataError: there are rows, but no row is a click; or all rows are clicks and `only_clicks` is False.
    """
    rows, clicks = sum(day[1] for day in days), sum(day[2] for day in days)
    if not rows or 0 < clicks < rows or (clicks and only_clicks):
        return
    named = ", ".join(f"{day}: {count} of {of} rows" for day, of, count in days[:_NAMED_DAYS])
    more = f", and {len(days) - _NAMED_DAYS} more days" if len(days) > _NAMED_DAYS else ""
    content = "no click" if not clicks else "only clicks"
    raise DataError(
        f"the training rows contain {content} ({named}{more}; {clicks} of {rows} rows in all), and a model "
        "cannot learn from rows that all have the same label",
        "check the quarantine of these days, the section `log.label` and, with split.by=fraction, whether "
        "split.train is large enough, then correct the log or the configuration, and run build_features again"
        if not clicks
        else "check `log.label`; if the log records only what users chose, add the section `negatives`. If "
        "the configuration has this section, no item was left to draw: each user has a row with every item",
    )


def read_spec(lake: LakePaths, workflow_version: str) -> FeatureSpec:
    """Returns the feature spec of a workflow version. Raises DataError if the version has none."""
    path = lake.feature_spec(workflow_version)
    try:
        return feature_spec.loads(file_io.read_text(path), path)
    except FileNotFoundError as error:
        raise DataError(
            f"{path} does not exist", "run build_features: it writes the workflow and its spec"
        ) from error


def id_features_of(lake: LakePaths, spec: FeatureSpec, column: str) -> list[str]:
    """Returns the categorical features that a workflow computes from one raw column, in the spec's order.

    Args:
        lake: the lake of the workflow. If the lake has no `workflow.json` of the workflow, the result is
            empty.
        spec: the features of the workflow.
        column: the raw column.
    """
    path = f"{lake.workflow(spec.workflow_version)}/workflow.json"
    try:
        outputs = format_versions.WORKFLOW.load(
            path,
            lambda workflow: {
                name
                for chain in workflow.get("chains", ())
                if list(chain["inputs"]) == [column]
                for name in chain["outputs"]
            },
        )
    except FileNotFoundError:
        return []
    return [feature.name for feature in spec.categorical if feature.name in outputs]


def split_partitions(
    lake: LakePaths, dataset: Dataset, split: Split
) -> list[tuple[Partition, Manifest, str | None]]:
    """Returns (feature partition, manifest, Member.label) for each partition of a split, in date order.

    Raises:
        DataError: a partition was replaced by different rows after the dataset was published.
    """
    partitions = []
    for member in dataset.splits.get(split, ()):
        partition = lake.features(dataset.workflow_version).partition(member.dt)
        manifest = read_manifest(partition)
        if manifest.digest != member.digest:
            raise DataError(
                f"the rows of {partition.path} (digest {manifest.digest}) differ from those of dataset "
                f"{dataset.run_date} (digest {member.digest})",
                f"run build_features for {dataset.run_date} again",
            )
        partitions.append((partition, manifest, member.label))
    return partitions


def with_present_rows(lake: LakePaths, dataset: Dataset) -> tuple[Dataset, list[str]]:
    """Returns the dataset with the current digests of its partitions, and a list of changed days.

    A day is changed if its rows were replaced after the dataset was published. Use this function to read the
    days in their current state. Training must fail if rows were replaced, so it must not use this function.

    Raises:
        DataError: a partition is missing.
    """
    table = lake.features(dataset.workflow_version)
    digests = {day: read_manifest(table.partition(day)).digest for day in dataset.days}
    splits = {
        split: tuple(replace(member, digest=digests[member.dt]) for member in members)
        for split, members in dataset.splits.items()
    }
    changed = {
        member.dt
        for members in dataset.splits.values()
        for member in members
        if digests[member.dt] != member.digest
    }
    return replace(dataset, splits=splits), sorted(changed)


def split_files(lake: LakePaths, dataset: Dataset, split: Split) -> list[str]:
    """Returns the full paths of the Parquet files of one split, in date order."""
    return [
        path
        for partition, manifest, label in split_partitions(lake, dataset, split)
        for path in data_files(partition, manifest, label)
    ]
