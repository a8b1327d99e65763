"""Keeps digests consistent: a partition without some rows gets a new digest, and others refer to the old one.

The digest of a partition depends on its number of rows and on its inputs. Inputs are digests of other
partitions, of several combined, or of a dataset. After an erasure, all of these must refer to the new
digests. Otherwise the next run would compute the partitions again, or a training would refuse the feature
rows. A reference that is not known here does no harm: the next run computes the partition again, without the
users.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import date, timedelta

from conf.types import SPLITS, Config
from etl.erasure.lake_partitions import Published
from etl.workflow.preparation_methods import preparation
from storage.dataset import Dataset, Member
from storage.manifest import Manifest, combined_digest, digest_of

DATASETS, LAST_CLICKS = "datasets", "last_clicks"
_MAX_PASSES = 50  # a chain of inputs is shorter
Clicks = Mapping[tuple[str, str, str | None], int]


class DigestChanges:
    """Maps old digests to new ones. Changes of an erasure that was killed are known from its record."""

    def __init__(self, known: Mapping[str, str]) -> None:
        self.changes = dict(known)

    def of(self, digest: str) -> str:
        """Returns the new digest; the same digest if it has not changed."""
        for _ in range(_MAX_PASSES):
            if self.changes.get(digest, digest) == digest:
                break
            digest = self.changes[digest]
        return digest

    def add(self, old: str, new: str) -> None:
        """Records a change."""
        if old != new:
            self.changes[old] = new


def settle(
    partitions: Sequence[Published],
    drafts: Mapping[str, Manifest],
    changes: DigestChanges,
    clicks: Clicks,
    config: Config,
) -> dict[str, Manifest]:
    """Returns the manifests with inputs and members that refer to the new digests.

    Args:
        partitions: all partitions, with their published manifests.
        drafts: maps each path of a partition to its manifest without the users, with the old inputs.
        changes: gets the changed digests.
        clicks: maps (workflow version, day, label of the files) to the number of removed rows with label 1.
        config: the configuration, which says which earlier days histories read.
    """
    settled = dict(drafts)
    for _ in range(_MAX_PASSES):
        before = dict(changes.changes)
        for published in partitions:
            draft = _with_new_inputs(drafts[published.path], changes)
            if published.kind == DATASETS:
                draft = _with_members(draft, changes, clicks)
            settled[published.path] = draft
            changes.add(published.manifest.digest, draft.digest)
        _add_windows(partitions, changes, config)
        if changes.changes == before:
            break
    return settled


def _with_new_inputs(manifest: Manifest, changes: DigestChanges) -> Manifest:
    return replace(manifest, inputs={name: changes.of(digest) for name, digest in manifest.inputs.items()})


def _with_members(manifest: Manifest, changes: DigestChanges, clicks: Clicks) -> Manifest:
    """Returns a data manifest whose members have the new digests, and fewer clicks."""
    facts = dict(manifest.facts)
    version = facts["workflow_version"]
    splits = {split: [Member(**member) for member in members] for split, members in facts["splits"].items()}

    def changed(member: Member) -> Member:
        digest = changes.of(member.digest)
        if digest == member.digest:
            return member
        lost = sum(
            count
            for (of_version, dt, label), count in clicks.items()
            if (of_version, dt) == (version, member.dt) and member.label in (None, label)
        )
        return replace(member, digest=digest, clicks=None if member.clicks is None else member.clicks - lost)

    new = {split: [changed(member) for member in members] for split, members in splits.items()}
    for unique in (False, True):  # publish_latest combines each partition once
        changes.add(_combined(splits, unique), _combined(new, unique))
    changes.add(_dataset_digest(manifest, splits), _dataset_digest(manifest, new))
    facts["splits"] = {split: [dict(vars(member)) for member in members] for split, members in new.items()}
    inputs = {name: changes.of(digest) for name, digest in manifest.inputs.items()}
    return replace(manifest, inputs=inputs, facts=facts)


def _combined(splits: Mapping[str, Sequence[Member]], unique: bool) -> str:
    digests = [member.digest for members in splits.values() for member in members]
    return combined_digest(set(digests) if unique else digests)


def _dataset_digest(manifest: Manifest, splits: Mapping[str, Sequence[Member]]) -> str:
    members = {split: tuple(of_split) for split, of_split in splits.items()}
    return Dataset(manifest.partition, manifest.facts["workflow_version"], members, "").digest


def _add_windows(partitions: Sequence[Published], changes: DigestChanges, config: Config) -> None:
    """Adds the digests of the last clicks of the days before a day, from which histories are computed."""
    if config.history is None:
        return
    old = {one.partition.dt: one.manifest.digest for one in partitions if one.kind == LAST_CLICKS}
    days = {one.partition.dt for one in partitions if one.kind in ("features", DATASETS)} | old.keys()
    after = {(date.fromisoformat(day) + timedelta(days=1)).isoformat() for day in days}
    for day in days | after:
        first = (date.fromisoformat(day) - timedelta(days=config.history.days or 0)).isoformat()
        window = [digest for dt, digest in old.items() if first <= dt < day]
        before, now = combined_digest(window), combined_digest(map(changes.of, window))
        changes.add(before, now)
        for known in (list(SPLITS), list(SPLITS[:-1]), list(SPLITS[:1])):
            latest = [digest_of([preparation(config), known, digest]) for digest in (before, now)]
            changes.add(*latest)
