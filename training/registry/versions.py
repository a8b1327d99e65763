"""Which model is which: versions, the run that made them, and the champion of every date. JSON files in the lake.

    models/<name>/<version>/model.json       complete when it is there
    models/<name>/runs/dt=<run date>.json    the version train_model made for a run date: that date's challenger
    models/<name>/promotions/dt=….json       what the gate decided on a run date (training.registry.champion_history)
    models/<name>/interventions/dt=….json    what people decided, to hold from a run date on (training.registry.champion_history)

Asked for a date, the registry looks at nothing later, so a rerun or a backfill sees what the first run saw.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from hashlib import sha256
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Any

from conf.errors import DataError
from conf.types import Config
from storage import file_io, format_versions
from storage.manifest import digest_of
from storage.paths import Lake
from training.registry import mlflow_mirror
from training.registry.champion_history import (
    INTERVENTIONS,
    PROMOTIONS,
    Standing,
    dated,
    dates_of,
    standing_as_of,
)
from training.registry.model_json import is_described, read_description

# Of the train section, what does not change what comes out of a training: `retrain` decides about the parent, which counts.
_NOT_IN_VERSION: dict[str, bool | set[str]] = {
    "num_ranks": True,
    "elastic": True,
    "log_every_steps": True,
    "checkpoint_every_steps": True,
    "keep_checkpoints": True,
    "device": True,
    "compile": True,
    "cuda_graphs": True,
    "kernels": True,  # as with `device`, another implementation of the same sums, and `auto` depends on the node
    "profile": True,
    "start_timeout_s": True,
    "retrain": True,
    "reading": {"read_ahead_mib", "staging_folder", "staging_mib"},
    "embeddings": {"placement", "replicated_max_bytes", "row_wise_share", "rank_max_bytes"},
}
RUNS = "runs"
_CODE = ("conf", "storage", "metrics", "spark", "etl", "training")


@dataclass(frozen=True)
class Decision:
    """What the gate decided on a run date, and all it takes to know why and of what; JSON values.

    Attributes:
        metrics: the headline figures of both models.
        intervals: measure → difference, low, high, confidence, replicates; empty for a first model.
        checks: everything the gate looked at, the worst first.
        lineage: of the challenger: parent, data manifest, workflow, configuration and code, by version or digest.
    """

    challenger: str
    champion_before: str | None
    promoted: bool
    champion_after: str | None
    reason: str
    metrics: Mapping[str, Any] = field(default_factory=dict)
    intervals: Mapping[str, Any] = field(default_factory=dict)
    checks: Sequence[Mapping[str, Any]] = ()
    lineage: Mapping[str, Any] = field(default_factory=dict)


def model_version(config: Config, dataset_digest: str, parent: str | None) -> str:
    """16 hex digits: equal for equal configuration, data, code and parent, whatever the number of ranks."""
    train = config.train.model_dump(mode="json", exclude=_NOT_IN_VERSION)
    return digest_of([config.model.model_dump(mode="json"), train, dataset_digest, code_version(), parent])


def code_version() -> str:
    """Digest of the source files of the packages that decide what a model becomes; needs no git."""
    root: Any = files("training")  # a Path, or a zipfile.Path where the packages were shipped as a zip
    sources = [each for name in _CODE for each in _sources(root.parent / name, name)]
    return sha256("\n".join(f"{name} {digest}" for name, digest in sorted(sources)).encode()).hexdigest()[:16]


def _sources(folder: Traversable, name: str) -> Iterator[tuple[str, str]]:
    for each in folder.iterdir():
        if each.is_dir():
            yield from _sources(each, f"{name}/{each.name}")
        elif each.name.endswith(".py"):
            yield f"{name}/{each.name}", sha256(each.read_bytes()).hexdigest()


def model_path(lake: Lake, name: str, version: str) -> str:
    return f"{lake.models(name)}/{version}"


def record_run(lake: Lake, name: str, run_date: str, version: str) -> None:
    """Says which version train_model made for a run date."""
    values = format_versions.TRAINED_VERSION.stamp({"version": version})
    file_io.replace_json(dated(lake, name, RUNS, run_date), values)


def challenger_of(lake: Lake, name: str, run_date: str) -> str:
    """The version train_model made for a run date.

    Raises:
        DataError: train_model has not run for that date.
    """
    path = dated(lake, name, RUNS, run_date)
    try:
        return str(format_versions.TRAINED_VERSION.check(file_io.read_json(path), path)["version"])
    except FileNotFoundError as error:
        raise DataError(
            f"no model was trained for {run_date} ({path} does not exist)", "run train_model first"
        ) from error


def champion_as_of(lake: Lake, name: str, run_date: str, *, before: bool = False) -> str | None:
    """The champion after a night; with `before`, the one the night begins with. None if there is none."""
    return standing_as_of(lake, name, run_date, before=before).champion


def barred(lake: Lake, name: str, version: str, standing: Standing) -> str | None:
    """Why people have decided that a version must not be promoted; None if they have not."""
    if standing.pinned is not None and standing.pinned.champion != version:
        return f"champion {standing.pinned.champion} is pinned ({standing.pinned})"
    for each in _line_of(lake, name, version):
        if each in standing.withdrawn:
            what = f"{version} was" if each == version else f"{version} was trained from {each}, which was"
            return f"{what} withdrawn ({standing.withdrawn[each]})"
    return None


def _line_of(lake: Lake, name: str, version: str) -> Iterator[str]:
    """A version and those it was warm-started from, newest first."""
    current: str | None = version
    while current is not None:
        yield current
        path = model_path(lake, name, current)
        current = read_description(path).get("parent") if is_described(path) else None


def record_decision(lake: Lake, name: str, run_date: str, decision: Decision) -> None:
    """Writes the gate's decision of a run date, and mirrors the newest champion to the tracking server."""
    values = format_versions.PROMOTION.stamp({"run_date": run_date, **asdict(decision)})
    file_io.replace_json(dated(lake, name, PROMOTIONS, run_date), values)
    newest = dates_of(lake, name, PROMOTIONS)[-1]
    set_aliases(lake, name, decision.challenger if newest == run_date else None)


def set_aliases(lake: Lake, name: str, challenger: str | None = None) -> None:
    """Points the tracking server's aliases at the champion after the newest decision, and at a challenger where one is given."""
    newest = max((*dates_of(lake, name, PROMOTIONS), *dates_of(lake, name, INTERVENTIONS)))
    aliases = {"champion": champion_as_of(lake, name, newest), "challenger": challenger}
    mlflow_mirror.set_aliases(lake, name, {alias: version for alias, version in aliases.items() if version})
