"""Trains the model of a recommender in a private folder, with the code of the jobs.

The folder has the format of a lake. After the training, it contains the files from which lists are made.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from conf.load import read_section
from conf.types import SPLITS, Config
from nightrank.estimator import Recipe, Training, operators, python_value
from nightrank.frames import require_packages, shown_progress
from nightrank.interactions import ITEM, LABEL, TIME, USER, iso_time
from nightrank.saved_models import delete_folder
from scoring.requests import EXCLUDED, ITEM_INDEX
from storage.feature_spec import ITEM_KEY, USER_KEY
from storage.manifest import read_manifest
from storage.paths import DATA
from storage.read_parquet import read_table
from storage.run_context import RunContext

if TYPE_CHECKING:
    from storage.dataset import Dataset

POPULAR_FILE = "popular.parquet"
_HISTORY = "history"
_NAME = "recommender"
# The run date if the interactions have no times. It does not change the results.
_NO_DATE = "2000-01-01"
_SHARES = {"train": 0.8, "validation": 0.1}
_PER_POSITIVE = 4
_HISTORY_LENGTH = 50
# The tables of the private lake from which lists are made. The other tables are deleted after the training.
_KEPT = ("datasets", "users", "candidates", "candidate_items", "models", "workflow", DATA)
_KEPT_DATA = ("users", "candidates", "candidate_items")


def make_config(folder: str, tables: Mapping[str, pa.Table], training: Training) -> Config:
    """Returns the configuration for the code of the jobs.

    Args:
        folder: the folder that becomes the lake.
        tables: the tables `interactions` and, if there are any, `users` and `items` (nightrank.interactions).
        training: the settings of the training.

    Raises:
        ConfigError: the architecture does not exist, or a setting is wrong.
    """
    recipe, log = training.recipe, tables["interactions"].schema
    has_times, has_labels = TIME in log.names, LABEL in log.names
    features, scopes = _features(tables, recipe)
    model = training.model_section(has_dense=any(group["kind"] == "dense" for group in features))
    lengths = (model.get("multi_hot") or {}).get("lengths") or {}
    # A click model whose interactions have labels learns from the rows with label 0. In all other cases, the
    # negatives are drawn items.
    draws = not has_labels or recipe.loss != "bce"
    sections = {
        "name": _NAME,
        "lake": folder,
        "data": f"{folder}/raw",
        "log": {
            **_table("interactions", log),
            **({"event_time": {"column": TIME}} if has_times else {}),
            **({"label": {"column": LABEL}} if has_labels else {}),
        },
        **({"users": _table("users", tables["users"].schema)} if "users" in tables else {}),
        **(
            {"items": {**_table("items", tables["items"].schema), "missing": "serve"}}
            if "items" in tables
            else {}
        ),
        "keys": {"user": USER, "item": ITEM},
        "history": {"length": lengths.get(_HISTORY, _HISTORY_LENGTH)} if recipe.history else None,
        # These drawn rows are used only for measuring the model. For training, other negatives are drawn.
        "negatives": {"per_positive": _PER_POSITIVE, "train": False, "seed": python_value(training.seed)}
        if draws
        else None,
        "features": features,
        "scopes": scopes,
        "split": {"by": "fraction", **_SHARES},
        "model": model,
        "train": training.train_section(recipe.drawn if draws else None),
        "quality": {"max_bad_share": 0},
        "candidates": {
            "sources": [{"source": "all_items"}],
            "repeats": "unclicked" if has_labels else "none",
        },
    }
    return read_section(Config, sections, "", "correct these arguments of the Recommender")


def _table(name: str, columns: pa.Schema) -> dict[str, Any]:
    """Returns the location and the columns of a table that `train_in` writes."""
    return {
        "path": f"{{data}}/{name}.parquet",
        "format": "parquet",
        "columns": [_column(field) for field in columns],
    }


def require_jobs() -> None:
    """Raises ConfigError if packages that the code of the jobs needs are not installed."""
    require_packages(("torch", "safetensors", "pyspark", "duckdb"), "recommender", "a Recommender")


def _features(
    tables: Mapping[str, pa.Table], recipe: Recipe
) -> tuple[list[dict[str, Any]], dict[str, list[str]]]:
    """Returns the sections `features` and `scopes` of the configuration for these tables."""
    ids: dict[str, Any] = {"min_count": 1, "share": ITEM}
    groups: list[dict[str, Any]] = [{"columns": [ITEM], "kind": "categorical", "ops": [{"categorify": ids}]}]
    scopes: dict[str, list[str]] = {"user": [], "item": [ITEM]}
    if recipe.user_id:
        groups.append({"columns": [USER], "kind": "categorical", "ops": [{"categorify": {"min_count": 1}}]})
        scopes["user"].append(USER)
    if recipe.history:
        history = {"categorify": {**ids, "counts": False}}
        groups.append({"columns": [_HISTORY], "kind": "multi_hot", "ops": [history]})
        scopes["user"].append(_HISTORY)
    for section, side in (("users", "user"), ("items", "item")):
        for field in tables[section].schema if section in tables else ():
            if field.name not in (USER, ITEM):
                groups.append({"columns": [field.name], **operators(field.type)})
                scopes[side].append(field.name)
    return groups, scopes


def _column(field: pa.Field) -> dict[str, str]:
    """Returns the declaration of a column of a Parquet file."""
    kind = field.type
    if pa.types.is_timestamp(kind):
        name = "timestamp"
    elif pa.types.is_list(kind):
        name = "list<string>"
    elif pa.types.is_integer(kind):
        name = "int"
    else:
        name = "string" if pa.types.is_string(kind) else "float"
    return {"name": field.name, "type": name}


# The functions below train a model with the code of the jobs.


@dataclass(frozen=True)
class Trained:
    """A trained model in a folder.

    Attributes:
        run_date: the date of its tables.
        model: the path of the model below the folder.
        description: the content of the model.json of the model that was measured on validation rows.
    """

    run_date: str
    model: str
    description: Mapping[str, Any]


def train_in(
    folder: str, tables: Mapping[str, pa.Table], training: Training, last_time: int | None
) -> Trained:
    """Creates a lake in an empty folder, trains a model, and builds each user's candidates.

    Args:
        folder, tables, training: as for `make_config`.
        last_time: the latest time of an interaction, in µs since 1970-01-01 UTC; None without times.

    Raises:
        ConfigError: a setting is wrong (see `make_config`), or the architecture does not accept the features.
        DataError: there are too few rows for training.
        InfrastructureError: a file cannot be written.
    """
    from etl.build import build  # this imports pyspark
    from etl.workflow.feature_plan import plan_of
    from spark.workers import LocalWorkers
    from training.loop.run import train_in_process  # this imports torch
    from training.loop.training_plan import make_plan, make_refit_plan

    config = make_config(folder, tables, training)
    Path(folder, "raw").mkdir()
    for name, table in tables.items():
        pq.write_table(table, f"{folder}/raw/{name}.parquet")
    run_date = _NO_DATE if last_time is None else iso_time(last_time)[:10]
    context = RunContext(_NAME, config, run_date, in_process=True)
    workers = LocalWorkers(len(os.sched_getaffinity(0)), lambda: context.spark)
    with warnings.catch_warnings():
        # Hide Petastorm's warnings, which say that it uses column names as patterns.
        warnings.filterwarnings("ignore", module=r"petastorm\.")
        built = build(workers, plan_of(config), context.lake, run_date, None, context.phase)
        plan = make_plan(config, context.lake, built.dataset)
        with shown_progress() as report:
            description = train_in_process(plan, report)
        path = plan.model_path
        if training.refit:
            refit = make_refit_plan(config, context.lake, built.dataset, description["version"])
            with shown_progress() as report:
                train_in_process(refit, report)
            path = refit.model_path
    _build_candidates(context, built.dataset)
    _write_popular(context, built.dataset)
    _delete_others(Path(folder), Path(path))
    return Trained(run_date, os.path.relpath(path, folder), description)


def _build_candidates(context: RunContext, dataset: Dataset) -> None:
    """Publishes the items and each user's excluded items, as build_candidates does."""
    from scoring.candidates.build import publish_candidates, publish_items  # these import pyspark
    from scoring.candidates.candidate_tables import read_candidate_tables
    from scoring.candidates.lists_in_spark import vector_store

    tables = read_candidate_tables(context, dataset.workflow_version)
    items = publish_items(context, dataset, tables)
    publish_candidates(context, dataset, items, tables, vector_store(context, dataset, items, None))


def _write_popular(context: RunContext, dataset: Dataset) -> None:
    """Writes the list for unknown users: all items with their scores, the most popular first."""
    from scoring.candidates.candidate_tables import candidate_rows
    from scoring.candidates.exclusions import Exclusions
    from scoring.candidates.popular import popular_items, popularity

    table = context.lake.candidate_items(dataset.workflow_version).partition(context.run_date)
    items = read_table(table, read_manifest(table), columns=[ITEM_INDEX, ITEM_KEY])
    clicks = popularity(candidate_rows(context, dataset, list(SPLITS)), items)
    nobody = pa.table({USER_KEY: [""], EXCLUDED: pa.array([None], pa.list_(pa.int32()))})
    ranked: pa.Table = popular_items(Exclusions(nobody), clicks, len(items))
    index = ranked.column("candidates").combine_chunks().flatten()
    keys = items.column(ITEM_KEY).take(
        pc.index_in(index, value_set=items.column(ITEM_INDEX).combine_chunks())
    )
    scores = ranked.column("scores").combine_chunks().flatten()
    pq.write_table(pa.table({"item_id": keys, "score": scores}), f"{context.config.lake}/{POPULAR_FILE}")


def _delete_others(folder: Path, model: Path) -> None:
    """Deletes the files of a temporary folder that are not needed for making lists."""
    kept = [folder / name for name in (*_KEPT, POPULAR_FILE)]
    kept += [folder / DATA / name for name in _KEPT_DATA]
    others = [path for path in (*folder.iterdir(), *(folder / DATA).iterdir()) if path not in kept]
    others += [path for path in (folder / "models").glob("*/*") if path.resolve() != model.resolve()]
    for path in others:
        if path.is_dir():
            delete_folder(str(path))
        else:
            path.unlink(missing_ok=True)
