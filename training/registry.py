"""Which model is which: versions, the run that made them, and the champion of every date. JSON files in the lake.

    models/<name>/<version>/model.json       complete when it is there
    models/<name>/runs/dt=<run date>.json    the version train_model made for a run date: that date's challenger
    models/<name>/promotions/dt=….json       what the gate decided on a run date

Asked for a date, the registry looks at nothing later, so a rerun or a backfill sees what the first run saw.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from hashlib import sha256
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Any

from conf import storage
from conf.errors import DataError
from conf.lake import Lake
from conf.manifest import digest_of
from conf.types import Config
from training import tracking

# Of the train section, what changes how a training runs but not what comes out of it.
_NOT_IN_VERSION = {
    "num_ranks",
    "elastic",
    "log_every_steps",
    "checkpoint_every_steps",
    "device",
    "compile",
    "cuda_graphs",
    "profile",
    "start_timeout_s",
}
_NOT_IN_EMBEDDINGS = {"placement", "replicated_max_bytes", "row_wise_share", "rank_max_bytes"}
_CODE = ("conf", "etl", "training")


@dataclass(frozen=True)
class Decision:
    """What the gate decided on a run date. `metrics` holds what it compared; JSON values."""

    challenger: str
    champion_before: str | None
    promoted: bool
    champion_after: str | None
    reason: str
    metrics: Mapping[str, Any] = field(default_factory=dict)


def model_version(config: Config, dataset_digest: str, parent: str | None) -> str:
    """16 hex digits: equal for equal configuration, data, code and parent, whatever the number of ranks."""
    left_out: dict[str, bool | set[str]] = {
        **dict.fromkeys(_NOT_IN_VERSION, True),
        "embeddings": _NOT_IN_EMBEDDINGS,
    }
    train = config.train.model_dump(mode="json", exclude=left_out)
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
    storage.replace_json(_dated(lake, name, "runs", run_date), {"version": version})


def challenger_of(lake: Lake, name: str, run_date: str) -> str:
    """The version train_model made for a run date.

    Raises:
        DataError: train_model has not run for that date.
    """
    path = _dated(lake, name, "runs", run_date)
    try:
        return str(storage.read_json(path)["version"])
    except FileNotFoundError as error:
        raise DataError(
            f"no model was trained for {run_date} ({path} does not exist)", "run train_model first"
        ) from error


def champion_as_of(lake: Lake, name: str, run_date: str, *, before: bool = False) -> str | None:
    """The champion after the latest promotion up to a run date, that date included unless `before`; None if there is none."""
    dates = [date for date in _decided(lake, name) if date < run_date or (date == run_date and not before)]
    for date in reversed(dates):
        decision = storage.read_json(_dated(lake, name, "promotions", date))
        if decision["promoted"]:
            return str(decision["champion_after"])
    return None


def record_decision(lake: Lake, name: str, run_date: str, decision: Decision) -> None:
    """Writes the gate's decision of a run date, and mirrors the newest champion to the tracking server."""
    storage.replace_json(
        _dated(lake, name, "promotions", run_date), {"run_date": run_date, **asdict(decision)}
    )
    newest = _decided(lake, name)[-1]
    aliases = {"champion": champion_as_of(lake, name, newest)}
    if newest == run_date:
        aliases["challenger"] = decision.challenger
    tracking.set_aliases(lake, name, {alias: version for alias, version in aliases.items() if version})


def _decided(lake: Lake, name: str) -> list[str]:
    """The run dates that have a decision, ascending."""
    found = storage.list_files(f"{lake.models(name)}/promotions")
    return sorted(match[1] for info in found if (match := re.fullmatch(r"dt=(.+)\.json", info.base_name)))


def _dated(lake: Lake, name: str, kind: str, run_date: str) -> str:
    return f"{lake.models(name)}/{kind}/dt={run_date}.json"
