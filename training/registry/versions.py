"""Model versions, the challenger of a run date and the champion of a date, as JSON files in the lake.

    models/<name>/<version>/model.json       the model is complete when this file exists
    models/<name>/runs/dt=<run date>.json    the challenger: the version that train_model trained
    models/<name>/promotions/dt=….json       the gate's decision of a run date (champion_history.py)
    models/<name>/interventions/dt=….json    overrides that take effect on a run date (champion_history.py)

The retriever of a run date is a version too. The champion and the challenger of a date do not depend on files
of later dates, so a rerun or a backfill gets the same result as the first run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cache
from importlib.resources import files
from typing import Any

from conf.errors import ConfigError, DataError
from conf.plugins import combined_digest, source_digests
from conf.types import Config, ModelConfig, Train
from storage import file_io, format_versions
from storage.format_versions import require_names
from storage.manifest import digest_of
from storage.paths import LakePaths
from training.registry import mlflow_mirror
from training.registry.champion_history import (
    OVERRIDES,
    PROMOTIONS,
    WEIGHTS,
    champion_state_as_of,
    dated_path,
    dates_of,
)
from training.registry.model_json import is_described, read_description, weights_digest
from training.registry.refits import read_refits, refit_name

# Settings of `train` that do not change the trained model. `retrain` only determines the parent, and the
# version is computed from the parent too.
_NOT_IN_VERSION: dict[str, bool | set[str]] = {
    "num_ranks": True,
    "elastic": True,
    "log_every_steps": True,
    "checkpoint_every_steps": True,
    "keep_checkpoints": True,
    "device": True,
    "compile": True,
    "cuda_graphs": True,
    "kernels": True,  # only selects the code that computes sums; `auto` may differ between machines
    "profile": True,
    "start_timeout_s": True,
    "retrain": True,
    "refit": True,  # a refit gets its own version; see training/loop/training_plan.py
    "reading": {"device_mib", "pools", "read_ahead_mib", "staging_folder", "staging_mib", "threads"},
    "embedding_memory": True,
    "embedding_memory_mib": True,
    "embeddings": {"placement", "replicated_max_bytes", "row_wise_share", "rank_max_bytes"},
}
RUNS = "runs"
_CODE = ("conf", "storage", "metrics", "spark", "device", "etl", "training")


@dataclass(frozen=True)
class ChampionDecision:
    """The gate's decision for a run date, with its reasons. All values can be written as JSON.

    Attributes:
        challenger: the version that was evaluated.
        champion_before: the champion when the run began; None if this is the first model.
        promoted: whether the challenger became champion.
        champion_after: the champion when the run ended.
        reason: one sentence that explains the decision.
        metrics: the main metrics of challenger and champion.
        intervals: maps each metric to the confidence interval of the difference between the two models: the
            values `difference`, `low`, `high`, `confidence` and `replicates`. Empty for the first model.
        checks: all checks of the gate, whether they prevented the promotion or not.
        lineage: the challenger's parent, data manifest, workflow, configuration and code, each as a version
            or digest.
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


def model_version(
    config: Config, dataset_digest: str, parent: str | None, extensions: Mapping[str, str] | None = None
) -> str:
    """Returns the version of the model that a configuration trains; see `version_of`."""
    return version_of(config.model, config.train, dataset_digest, parent, extensions)


def version_of(
    model: ModelConfig,
    train: Train,
    dataset_digest: str,
    parent: str | None,
    extensions: Mapping[str, str] | None = None,
) -> str:
    """Returns a version of 16 hex digits: a digest of settings, data, code and parent.

    The version does not depend on the number of ranks.

    Args:
        model, train: the sections `model` and `train` of the configuration.
        dataset_digest: the digest of the data manifest.
        parent: the version of the model with which the training starts; None for random weights.
        extensions: the digests of the packages whose architectures or loss are used. None or empty: the
            version does not depend on other packages.
    """
    settings = train.model_dump(mode="json", exclude=_NOT_IN_VERSION)
    code = [code_version(), *([dict(extensions)] if extensions else [])]
    return digest_of([model.model_dump(mode="json"), settings, dataset_digest, *code, parent])


@cache
def code_version(*more: str) -> str:
    """Returns a digest of the source files of all packages that influence a trained model.

    `more` are the names of further packages. A process reads the files only once, because it keeps the code
    that it has imported.
    """
    package = __name__.rsplit(".", 2)[0]  # `training`, or another name in nightrank's wheel
    root: Any = files(package)  # a Path, or a zipfile.Path if Spark ships the packages as a zip
    names = (*_CODE, *more)
    return combined_digest(source for name in names for source in source_digests(root.parent / name, name))


def model_path(lake: LakePaths, name: str, version: str) -> str:
    """Returns the folder of a model version."""
    return f"{lake.models(name)}/{version}"


def record_run(lake: LakePaths, name: str, run_date: str, version: str) -> None:
    """Records the version that train_model trained for a run date."""
    values = format_versions.TRAINED_VERSION.stamp({"version": version})
    file_io.replace_json(dated_path(lake, name, RUNS, run_date), values)


def challenger_of(lake: LakePaths, name: str, run_date: str) -> str:
    """Returns the version that train_model trained for a run date.

    Raises:
        DataError: train_model has not run for that date.
    """
    path = dated_path(lake, name, RUNS, run_date)
    try:
        return format_versions.TRAINED_VERSION.load(path, _parsed_version)
    except FileNotFoundError as error:
        raise DataError(
            f"no model was trained for {run_date} ({path} does not exist)", "run train_model first"
        ) from error


def _parsed_version(values: Mapping[str, Any]) -> str:
    """Reads the version from the content of a run date's file. Raises KeyError, TypeError or ValueError."""
    version = values["version"]
    require_names(version)
    return str(version)


def champion_as_of(lake: LakePaths, name: str, run_date: str, *, before: bool = False) -> str | None:
    """Returns the champion at the end of a run, or with `before` at its start; None if there is none."""
    return champion_state_as_of(lake, name, run_date, before=before).champion


def record_decision(lake: LakePaths, name: str, run_date: str, decision: ChampionDecision) -> None:
    """Writes the gate's decision for a run date, and updates the aliases in MLflow.

    The record has three digests of weights: those of the champion before the run, of the champion after the
    run, and of the challenger.
    """
    digests = {}
    for version in (decision.challenger, decision.champion_before, decision.champion_after):
        path = model_path(lake, name, version) if version else None
        if path is not None and is_described(path) and (digest := weights_digest(read_description(path))):
            digests[version] = digest
    values = format_versions.PROMOTION.stamp({"run_date": run_date, **asdict(decision), WEIGHTS: digests})
    file_io.replace_json(dated_path(lake, name, PROMOTIONS, run_date), values)
    newest = dates_of(lake, name, PROMOTIONS)[-1]
    set_aliases(lake, name, decision.challenger if newest == run_date else None)


def set_aliases(lake: LakePaths, name: str, challenger: str | None = None) -> None:
    """Sets the alias `champion` in MLflow, and the alias `challenger` if a challenger is passed.

    If the champion has a refit, the refit gets the alias `champion` among the refits.
    """
    newest = max((*dates_of(lake, name, PROMOTIONS), *dates_of(lake, name, OVERRIDES)))
    champion = champion_as_of(lake, name, newest)
    aliases = {"champion": champion, "challenger": challenger}
    mlflow_mirror.set_aliases(lake, name, {alias: version for alias, version in aliases.items() if version})
    refits = [refit.version for refit in read_refits(lake, name, newest) if refit.champion == champion]
    if refits:
        mlflow_mirror.set_aliases(lake, refit_name(name), {"champion": refits[-1]})


# The retriever: a model that selects candidates. It is trained like the ranker, which scores the candidates.
# Without a model of its own, the source `retrieval` uses the ranker, and nothing below applies.
#
#     models/<name>-retriever/<version>/            its files, as for every model
#     models/<name>-retriever/runs/dt=<date>.json   the version trained for a run date
#
# Both models are trained on the same features. The gate, which decides whether a new ranker replaces the
# champion, does not check the retriever. The retriever's quality is measured as the recall of the
# candidates, which measure_recommendations reports.
#
# The retriever in use is the newest retriever that was trained on features of the ranker's workflow
# version. If the ranker keeps an older workflow version, the newest retriever of that workflow version is
# used.


def retriever_name(config: Config) -> str:
    """Returns the retriever's name in the registry."""
    return f"{config.name}-retriever"


def retriever_config(config: Config) -> Config:
    """Returns the configuration for training the retriever: its own name and model, and no baselines.

    Raises:
        ConfigError: `candidates.sources` has no source `retrieval` with a model of its own.
    """
    model = config.candidates.retriever
    if model is None:
        raise ConfigError(
            "candidates.sources has no source `retrieval` with the key `model`, so there is no retriever to "
            "train",
            "add {source: retrieval, n: 200, model: ../models/two_tower_small.yaml} to candidates.sources",
        )
    train = config.train.model_copy(update={"baselines": []})
    return config.model_copy(update={"name": retriever_name(config), "model": model, "train": train})


def retriever_as_of(lake: LakePaths, config: Config, run_date: str, workflow_version: str) -> str:
    """Returns the newest retriever version, up to a run date, that was trained on this workflow version.

    Raises:
        DataError: no retriever was trained on features of this workflow version up to the run date.
    """
    name = retriever_name(config)
    for date in reversed(dates_of(lake, name, RUNS)):
        if date <= run_date:
            version = challenger_of(lake, name, date)
            path = model_path(lake, name, version)
            if is_described(path) and read_description(path)["workflow_version"] == workflow_version:
                return version
    raise DataError(
        f"{lake.models(name)} has no model for features of workflow {workflow_version} up to {run_date}",
        f"run train_retriever for {run_date}, or run nightly with --retrain",
    )
