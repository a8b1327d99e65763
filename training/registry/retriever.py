"""The retriever: a model that selects candidates. It is trained like the ranker, which scores them.

    models/<name>-retriever/<version>/            its files, as for every model
    models/<name>-retriever/runs/dt=<date>.json   the version trained for a run date

Both models are trained on the same features. The gate, which decides whether a new ranker replaces the
champion, does not check the retriever. The retriever's quality is measured as the recall of the candidates,
which measure_recommendations reports.

The retriever in use is the newest retriever that was trained on features of the ranker's workflow version. If
the ranker keeps an older workflow version, the newest retriever of that workflow version is used.
"""

from __future__ import annotations

from conf.errors import ConfigError, DataError
from conf.types import Config
from storage.paths import LakePaths
from training.registry.champion_history import dates_of
from training.registry.model_json import is_described, read_description
from training.registry.versions import RUNS, challenger_of, model_path


def retriever_name(config: Config) -> str:
    """Returns the retriever's name in the registry."""
    return f"{config.name}-retriever"


def retriever_config(config: Config) -> Config:
    """Returns the configuration for training the retriever: its own name and model, and no baselines.

    Raises:
        ConfigError: `candidates.sources` has no source `retrieval`.
    """
    source = config.candidates.retrieval
    if source is None:
        raise ConfigError(
            "candidates.sources has no source `retrieval`, so there is no retriever to train",
            "add {source: retrieval, n: 200, model: ../models/two_tower_small.yaml} to candidates.sources",
        )
    train = config.train.model_copy(update={"baselines": []})
    return config.model_copy(update={"name": retriever_name(config), "model": source.model, "train": train})


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
        f"run train_retriever for {run_date}, or nightly --retrain",
    )
