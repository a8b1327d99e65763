"""The blends that learn_blend learned. A blend combines scores of a champion and of candidate sources.

    models/<name>/blends/dt=<run date>.json

A blend weighs the scores of one champion, one configuration of `candidates` and one retriever, so it can be
used only with these three. The blend of a date does not depend on files of later dates.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from conf.errors import DataError
from conf.load import config_digest
from conf.types import Config
from storage import file_io, format_versions
from storage.manifest import digest_of
from storage.paths import LakePaths
from training.registry.champion_history import dated_path, dates_of
from training.registry.model_json import read_description
from training.registry.versions import champion_as_of, model_path, retriever_as_of

BLENDS = "blends"


@dataclass(frozen=True)
class BlendKey:
    """The champion, candidates and retriever for which a blend was learned.

    Attributes:
        champion: version of the model whose logits the blend weighs.
        candidates: digest of the section `candidates` of the configuration.
        retriever: version of the model of the source `retrieval`; None if there is no such source, or if the
            champion retrieves.
    """

    champion: str
    candidates: str
    retriever: str | None


@dataclass(frozen=True)
class BlendRecord:
    """A learned blend, as the registry stores it. All values can be written as JSON.

    Attributes:
        key: the champion, candidates and retriever for which the blend was learned.
        run_date: the run date for which it was learned.
        inputs: maps the name of each further input to its digest.
        sources: the names of the sources, in the order of the configuration.
        k: length of the recommendation lists that were measured.
        users: number of users whose validation clicks were measured; 0 if there were none, so that nothing
            was learned and `model` was chosen.
        chosen: the contender whose scores order the recommendation lists: `model`, the name of a source, or
            `blend`.
        contenders: the `name` of each contender, and its `hit_rate` and `ndcg` on the validation clicks.
        weights: `intercept`, `logit`, and the lists `weights` and `absent` with one number per source
            (scoring.requests.BlendRequest); None if `model` was chosen.
    """

    key: BlendKey
    run_date: str
    inputs: Mapping[str, str]
    sources: Sequence[str]
    k: int
    users: int
    chosen: str
    contenders: Sequence[Mapping[str, Any]]
    weights: Mapping[str, Any] | None

    @property
    def digest(self) -> str:
        """Returns a digest of the record. Different records have different digests."""
        return digest_of(asdict(self))

    def to_facts(self) -> dict[str, Any]:
        """Returns the values that the manifest of the recommendation lists and the report contain."""
        names = ("run_date", "k", "users", "chosen", "contenders", "weights")
        return {"sources": list(self.sources), **{name: getattr(self, name) for name in names}}


def record_blend(lake: LakePaths, name: str, record: BlendRecord) -> None:
    """Stores the blend that was learned for a run date, and replaces an earlier one of this date."""
    values = format_versions.BLEND.stamp(asdict(record))
    file_io.replace_json(dated_path(lake, name, BLENDS, record.run_date), values)


def blend_of(lake: LakePaths, name: str, run_date: str) -> BlendRecord | None:
    """Returns the blend that was learned for a run date; None if there is none."""
    path = dated_path(lake, name, BLENDS, run_date)
    try:
        values, record = format_versions.BLEND.load(
            path, lambda stored: (stored, BlendRecord(**{**stored, "key": BlendKey(**stored["key"])}))
        )
    except FileNotFoundError:
        return None
    lake.recorder.record_read(path, digest_of(values))
    return record


def blend_as_of(lake: LakePaths, name: str, run_date: str, key: BlendKey) -> BlendRecord | None:
    """Returns the newest blend up to a run date that belongs to `key`; None if there is none.

    A record with 0 users, for which nothing was learned, is returned only if there is no other record.
    """
    without_users = None
    for date in reversed(dates_of(lake, name, BLENDS)):
        record = blend_of(lake, name, date) if date <= run_date else None
        if record is not None and record.key == key:
            if record.users:
                return record
            without_users = without_users or record
    return without_users


def blend_key(lake: LakePaths, config: Config, run_date: str) -> BlendKey | None:
    """Returns the key that a blend must have to order the recommendation lists of a run date.

    Returns None if there is no champion, or no retriever for the features of the champion.
    """
    champion = champion_as_of(lake, config.name, run_date)
    if champion is None:
        return None
    retriever = None
    if config.candidates.retriever is not None:
        workflow = read_description(model_path(lake, config.name, champion))["workflow_version"]
        try:
            retriever = retriever_as_of(lake, config, run_date, workflow)
        except DataError:
            return None
    return BlendKey(champion, config_digest(config, "candidates"), retriever)
