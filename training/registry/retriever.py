"""The retriever: a model that retrieves candidates, trained like the ranker on the same features.

    models/<name>-retriever/<version>/            its files, as for every model
    models/<name>-retriever/runs/dt=<date>.json   the version trained for a run date

It passes no gate. Its quality is the recall of the candidates, which measure_recommendations reports. The
newest retriever of a workflow version serves. If the ranker is kept with an older workflow version, the
retriever of that version serves.
"""

from __future__ import annotations

from conf.errors import ConfigError, DataError
from conf.types import Config
from storage.paths import Lake
from training.registry.champion_history import dates_of
from training.registry.model_json import is_described, read_description
from training.registry.versions import RUNS, challenger_of, model_path


def retriever_name(config: Config) -> str:
    """The retriever's name in the registry."""
    return f"{config.name}-retriever"


def retriever_config(config: Config) -> Config:
    """The configuration that trains the retriever: with its own name and model, and without baselines.

    Raises:
        ConfigError: no source of `candidates` retrieves.
    """
    source = config.candidates.retrieval
    if source is None:
        raise ConfigError(
            "candidates.sources holds no source retrieval, so there is no retriever to train",
            "add {source: retrieval, n: 200, model: ../models/two_tower_small.yaml} to candidates.sources",
        )
    train = config.train.model_copy(update={"baselines": []})
    return config.model_copy(update={"name": retriever_name(config), "model": source.model, "train": train})


def retriever_as_of(lake: Lake, config: Config, run_date: str, workflow_version: str) -> str:
    """The newest version trained for this run date or an earlier one on features of this workflow version.

    Raises:
        DataError: there is none.
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
