"""A recommender that is trained in this process on a frame of interactions, with the code of the jobs."""

from __future__ import annotations

import io
import json
import shutil
import tarfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from os import PathLike, fspath
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from conf.errors import ConfigError, DataError, InfrastructureError
from conf.messages import counted
from conf.names import scheme_of
from conf.types import Score
from nightrank import metrics
from nightrank.estimator import Estimator, Training, python_value
from nightrank.frames import Frame, FrameKind, as_kind, kind_of, listed
from nightrank.interactions import (
    ITEM,
    LABEL,
    USER,
    Interactions,
    iso_time,
    read_attributes,
    read_interactions,
    texts_of,
    typed,
)
from nightrank.metrics import ConfidenceInterval
from nightrank.model import UserLists, require_length
from nightrank.recommender_lake import POPULAR_FILE, require_jobs, train_in
from nightrank.saved_models import delete_folder, delete_with, private_folder, validation_metrics
from nightrank.spark_frames import AnyFrame, is_spark_frame
from scoring.model.model_info import ModelInfo, read_model_info
from scoring.requests import EXCLUDED
from storage.dataset import read_dataset
from storage.feature_spec import ITEM_KEY, USER_KEY
from storage.format_versions import Format
from storage.manifest import read_manifest
from storage.paths import LakePaths, Table
from storage.read_parquet import read_rows_of_keys, read_table

Unknown = Literal["popular", "skip", "raise"]
_POPULAR = "popular"

_FORMAT = Format("recommender")
_FILE = "recommender.json"


@dataclass(frozen=True)
class _State:
    """The values of a fitted recommender that are not in its files.

    Attributes:
        run_date: the date of its tables.
        model: the path of the model below the folder.
        kind: the library of the frames that it returns: pandas, polars or arrow.
        user_type, item_type: Arrow's names of the types of ids.
        last_time: the latest time of an interaction, in µs since 1970-01-01 UTC; None without times.
        device: the device that computes scores.
        metrics: the metrics of the validation rows; see `Recommender.metrics`.
    """

    run_date: str
    model: str
    kind: FrameKind
    user_type: str
    item_type: str
    last_time: int | None
    device: Literal["auto", "cpu", "cuda"]
    metrics: list[dict[str, Any]]


class Recommender(Estimator):
    """A model that is trained on interactions, and recommends items to their users.

        recommender = nightrank.Recommender("sasrec", time="timestamp").fit(interactions)
        recommender.recommend(["u1", "u2"], k=10)

    `fit` runs the code of build_features, train_model, refit_model and build_candidates in a temporary
    folder, and `recommend` runs the code of score_daily. In an environment with the wheel, both need the
    extra `recommender`.

    `fit` divides the interactions by time. It trains the model on the first 80%, and measures it on the next
    10% at the end of each epoch. The step with the best measures determines the number of training steps.
    With `refit`, `fit` then trains a new model for that number of steps on all interactions. No feature of a
    row depends on later rows.

    The same arguments and rows give the same lists on the same machine.

    Args:
        model: the architecture: a sequence model (sasrec, hstu, bert4rec, mult_vae), the retrieval model
            two_tower, the collaborative model neumf, or a click model (dlrm, dcn_v2, deepfm, din,
            wide_and_deep, logistic_regression). docs/models.md describes them.
        user, item: the columns of the interactions with the user and the item: integers or strings.
        time: the column with the time: timestamps, dates, or seconds since 1970. Times without a zone are
            UTC. None: the rows must be ordered by time, the oldest first.
        label: the column with the labels, 0 and 1 or booleans: 1 if the user clicked a shown item, for
            example. None: each row is an item that the user chose, and other items are drawn as negatives.
        epochs: maximum number of passes over the rows.
        batch_size: number of rows in a training step, not counting drawn items.
        learning_rate: learning rate of the dense layers. None: 0.003, or 0.001 for models that rank items
            (sasrec, hstu, bert4rec, mult_vae, two_tower).
        embedding_learning_rate: learning rate of the embeddings. None: 0.15 with row-wise Adagrad, or 0.001
            with lazy Adam for models that rank items.
        refit: whether the lists come from a new model that is trained on all interactions.
        device: auto, cpu or cuda.
        seed: seed of initial weights, order of rows, drawn items and dropout.
        settings: settings of the architecture, such as embedding_dim=64 (docs/models.md). conf/models
            contains the defaults.
    """

    def __init__(
        self,
        model: str = "sasrec",
        *,
        user: str = "user_id",
        item: str = "item_id",
        time: str | None = "time",
        label: str | None = None,
        epochs: int = 10,
        batch_size: int = 256,
        learning_rate: float | None = None,
        embedding_learning_rate: float | None = None,
        refit: bool = True,
        device: Literal["auto", "cpu", "cuda"] = "auto",
        seed: int = 0,
        **settings: Any,
    ) -> None:
        self.model, self.user, self.item, self.time, self.label = model, user, item, time, label
        self.epochs, self.batch_size = epochs, batch_size
        self.learning_rate, self.embedding_learning_rate = learning_rate, embedding_learning_rate
        self.refit, self.device, self.seed, self.settings = refit, device, seed, settings
        self._fitted: _Fitted | None = None

    def fit(
        self,
        interactions: AnyFrame | pa.RecordBatch,
        users: AnyFrame | pa.RecordBatch | None = None,
        items: AnyFrame | pa.RecordBatch | None = None,
    ) -> Recommender:
        """Trains a new model, and returns this recommender.

        Args:
            interactions: a frame of pandas, Polars, Arrow or Spark with the columns `user`, `item`, `time`
                and `label`. Other columns are ignored.
            users: attributes of users: a frame with the column `user`, one row per user. All other columns
                become features. Numbers are used unchanged, with nulls replaced by the median. Each
                distinct string, boolean or date has an embedding. A list of strings gets the mean of the
                embeddings of its strings.
            items: attributes of items: a frame with the column `item`, otherwise like `users`. Items without
                an interaction can also be recommended.

        Raises:
            ConfigError: an argument is wrong, a package is not installed, an argument is not a frame, or the
                architecture does not accept a setting.
            DataError: a column is missing, or has an invalid value; a user or an item is missing; a frame has
                a key twice; or there are too few rows for training.
            InfrastructureError: a temporary file cannot be written.
        """
        require_jobs()
        kind = "arrow" if is_spark_frame(interactions) else kind_of(interactions)
        log = self._read(interactions)
        tables = {"interactions": log.rows}
        for section, frame, key in (("users", users, self.user), ("items", items, self.item)):
            if frame is not None:
                like = log.rows.schema.field(USER if section == "users" else ITEM).type
                tables[section] = read_attributes(section, frame, key, like)
        training = Training(
            self.model,
            self.epochs,
            self.batch_size,
            self.learning_rate,
            self.embedding_learning_rate,
            self.refit,
            self.device,
            self.seed,
            self.settings,
        )
        folder = private_folder()
        try:
            trained = train_in(folder, tables, training, log.last_time)
        except BaseException:
            delete_folder(folder)
            raise
        state = _State(
            trained.run_date,
            trained.model,
            kind,
            log.user_type,
            log.item_type,
            log.last_time,
            self.device,
            validation_metrics(trained.description),
        )
        self._fitted = _Fitted.temporary(folder, state)
        return self

    def recommend(
        self,
        users: Iterable[Any] | None = None,
        k: int = 10,
        *,
        exclude_seen: bool = True,
        unknown: Unknown = "popular",
    ) -> Frame:
        """Returns the k best items of users.

        Args:
            users: ids of users, of the same type as in the interactions; None for all known users,
                ordered by their ids as strings.
            k: maximum number of items of a list. A list is shorter if there are fewer items.
            exclude_seen: whether items that the user chose in the interactions (label 1) are left out.
            unknown: the treatment of users who are not in the interactions and not in the frame `users`.
                `popular`: they get the items with the most positive interactions; the column `reason` is then
                "popular", and `score` is log(1 + number of these interactions). `skip`: they have no rows.
                `raise`: DataError.

        Returns:
            A frame of the library of the interactions (Arrow for Spark), with one row per list entry: the
            user, `position` (from 1), the item, `score` (float32, descending for each user) and `reason`
            ("ranked" or "popular"). The lists are in the order of `users`. A user who occurs twice has one
            list. Ids have the type that they have in the interactions, or int64 if one of them does not fit
            into this type.

        Raises:
            ConfigError: the recommender is not fitted, or an argument is wrong.
            DataError: ids have another type than in the interactions, or a user is unknown (`raise`).
        """
        fitted: _Fitted = self._require(self._fitted, "recommender")
        _require_k(k)
        if unknown not in get_args(Unknown):
            raise ConfigError(
                f"unknown={unknown!r} is not allowed", f"pass {' or '.join(map(repr, get_args(Unknown)))}"
            )
        keys = fitted.users
        if users is not None:
            keys = texts_of("users", listed("users", users), fitted.state.user_type).unique()
        lists = fitted.lists(keys, k, unknown, exclude_seen=exclude_seen)
        return as_kind(fitted.state.kind, fitted.named(lists, self.user, self.item))

    def evaluate(
        self,
        interactions: AnyFrame | pa.RecordBatch,
        k: int = 10,
        *,
        exclude_seen: bool = True,
        replicates: int = 1000,
        confidence: float = 0.95,
        seed: int = 0,
    ) -> dict[str, ConfidenceInterval | float | int]:
        """Compares the lists of users with interactions that are later than those of `fit`.

        Args:
            interactions: later interactions, with the same columns as those of `fit`. Rows with label 0 are
                ignored. With `exclude_seen`, items that the user chose before are ignored too, because lists
                cannot contain them.
            k: length of the lists.
            exclude_seen: as for `recommend`.
            replicates, confidence, seed: as for `metrics.interval`, a bootstrap over users.

        Returns:
            A mapping: `users` (number of users with a relevant item), `unknown_users` (number of these users
            who are in neither the interactions nor the frame `users` of `fit`), `hit_rate`, `ndcg`, `recall`,
            `precision`, `mean_average_precision` and `mean_reciprocal_rank` (each with its interval, whose
            bounds are NaN for one or two users; see nightrank.metrics), and `coverage`.

        Raises:
            ConfigError: the recommender is not fitted, or an argument is wrong.
            DataError: an interaction is earlier than the last interaction of `fit`; no item is relevant; or a
                column is invalid.
        """
        fitted: _Fitted = self._require(self._fitted, "recommender")
        _require_k(k)
        later, state = self._read(interactions), fitted.state
        # Without a column `time`, the caller is responsible for passing later rows.
        first, last = later.first_time, state.last_time
        if first is not None and last is not None and first < last:
            raise DataError(
                f"column {self.time}: {iso_time(first)} is before {iso_time(last)}, the latest time of the "
                "interactions that were passed to `fit`; the model may be trained on some of these rows",
                "fit on earlier interactions, and pass only later ones",
            )
        rows = later.rows
        if self.label is not None:
            rows = rows.filter(pc.equal(rows.column(LABEL), 1))
        users = texts_of(self.user, rows.column(USER), state.user_type)
        items = texts_of(self.item, rows.column(ITEM), state.item_type)
        keys, relevant = fitted.relevant(users, items, exclude_seen=exclude_seen)
        lists = fitted.lists(keys, k, "popular", exclude_seen=exclude_seen)
        recommended = _grouped(lists.column("user_id"), lists.column("item_id"), keys)
        measures: tuple[Callable[..., float], ...] = (
            metrics.hit_rate,
            metrics.ndcg,
            metrics.recall,
            metrics.precision,
            metrics.mean_average_precision,
            metrics.mean_reciprocal_rank,
        )
        options: dict[str, Any] = {"replicates": replicates, "confidence": confidence, "seed": seed}
        known = pc.is_in(keys, value_set=fitted.users)
        return {
            "users": len(keys),
            "unknown_users": len(keys) - pc.sum(known).as_py(),
            **{
                one.__name__: metrics.interval(one, recommended, relevant, k=k, **options) for one in measures
            },
            "coverage": metrics.coverage(recommended, fitted.items.to_pylist(), k),
        }

    @property
    def metrics(self) -> list[dict[str, Any]]:
        """Returns the metrics of the validation rows at the end of each epoch; see `Model.metrics`.

        These metrics come from the training on the first 80% of the interactions. Without `label`, they
        measure how well the model distinguishes items that users chose from drawn items.
        """
        fitted: _Fitted = self._require(self._fitted, "recommender")
        return [dict(entry) for entry in fitted.state.metrics]

    def save(self, folder: str | PathLike[str]) -> None:
        """Writes the fitted recommender to a new local folder. `load` reads it.

        Raises:
            ConfigError: the recommender is not fitted, the folder is not a local path, or it is not empty; or
                an argument of the constructor is not a number, a string, or a list or mapping of numbers and
                strings.
            InfrastructureError: the folder cannot be written.
        """
        fitted: _Fitted = self._require(self._fitted, "recommender")
        path = _local(folder)
        if path.exists() and (not path.is_dir() or any(path.iterdir())):
            raise ConfigError(f"{path} exists and is not empty", "pass a new folder")
        content = {"parameters": self.get_params(), "state": asdict(fitted.state)}
        text = json.dumps(_FORMAT.stamp(content), default=_plain)
        try:
            shutil.copytree(fitted.folder, path, dirs_exist_ok=True)
            (path / _FILE).write_text(text, encoding="utf-8")
        except (OSError, shutil.Error) as error:
            raise InfrastructureError(
                f"cannot write {path}: {error}", "check the disk and permissions"
            ) from error

    @classmethod
    def load(cls, folder: str | PathLike[str]) -> Recommender:
        """Returns a recommender that `save` wrote. Keep its files as long as the recommender is used.

        Raises:
            ConfigError: the folder is not a local path, or a package is not installed.
            DataError: the folder has no recommender, or a newer release wrote it.
        """
        require_jobs()
        path = _local(folder)
        if not (path / _FILE).is_file():
            raise DataError(f"{path} has no {_FILE}", "pass the folder that was passed to `save`")
        parameters, state = _FORMAT.load(
            str(path / _FILE), lambda content: (dict(content["parameters"]), _State(**content["state"]))
        )
        recommender = cls(**parameters)
        recommender._fitted = _Fitted(str(path.absolute()), state)
        return recommender

    def _read(self, interactions: AnyFrame | pa.RecordBatch) -> Interactions:
        return read_interactions(interactions, self.user, self.item, self.time, self.label)

    def __getstate__(self) -> dict[str, Any]:
        """Returns the content of a pickle: the arguments and, after `fit`, the files of the model."""
        state = dict(self.__dict__)
        if self._fitted is not None:
            packed = io.BytesIO()
            with tarfile.open(fileobj=packed, mode="w") as archive:
                archive.add(self._fitted.folder, ".")
            state["_fitted"] = (packed.getvalue(), self._fitted.state)
        return state

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        """Restores a pickled recommender in a new temporary folder."""
        self.__dict__.update(state)
        if self._fitted is not None:
            packed, of_model = state["_fitted"]
            folder = private_folder()
            with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
                archive.extractall(folder, filter="data")
            self._fitted = _Fitted.temporary(folder, of_model)


# The class below makes the lists of a fitted recommender.


class _Fitted:
    """A fitted recommender.

    Args:
        folder: the folder with its files, in the format of a lake.
        state: the values that are not in the files.
    """

    def __init__(self, folder: str, state: _State) -> None:
        self.folder, self.state, self.lake = folder, state, LakePaths(folder)

    @classmethod
    def temporary(cls, folder: str, state: _State) -> _Fitted:
        """Returns a recommender. When it is freed, its folder is deleted."""
        fitted = cls(folder, state)
        delete_with(fitted, folder)
        return fitted

    @cached_property
    def info(self) -> ModelInfo:
        """Returns the content of the model's model.json."""
        return read_model_info(f"{self.folder}/{self.state.model}")

    @cached_property
    def version(self) -> str:
        """Returns the version of the workflow."""
        return read_dataset(self.lake, self.state.run_date).workflow_version

    @cached_property
    def users(self) -> pa.Array:
        """Returns the keys of all known users, in ascending order."""
        return self._keys(self.lake.candidates(self.version), USER_KEY)

    @cached_property
    def items(self) -> pa.Array:
        """Returns the keys of all items, in the order of their indices."""
        return self._keys(self.lake.candidate_items(self.version), ITEM_KEY)

    def _keys(self, table: Table, column: str) -> pa.Array:
        partition = table.partition(self.state.run_date)
        return read_table(partition, read_manifest(partition), columns=[column]).column(0).combine_chunks()

    def lists(self, keys: pa.Array, k: int, unknown: Unknown, *, exclude_seen: bool) -> pa.Table:
        """Returns the lists of distinct users, in their order, with the columns of RECOMMENDATIONS.

        Raises:
            DataError: a user is unknown, and `unknown` is `raise`.
        """
        is_known = pc.is_in(keys, value_set=self.users)
        known, others = keys.filter(is_known), keys.filter(pc.invert(is_known))
        if len(others) and unknown == "raise":
            raise DataError(
                f"{len(others):,} of {counted(len(keys), 'user')} are not known from `fit`: "
                f"{others.slice(0, 5).to_pylist()}",
                "leave them out, or pass unknown='popular' or unknown='skip'",
            )
        score = Score(device=self.state.device)
        maker = UserLists(self.lake, self.info, self.state.run_date, None, score)
        parts = [maker.make(known.to_pylist(), k, None, "skip", exclude_seen=exclude_seen)]
        if unknown == "popular":
            parts.append(self._popular(others, k, parts[0].schema))
        table = pa.concat_tables(parts)
        place = pc.index_in(table.column("user_id"), value_set=keys)
        order = np.lexsort((table.column("position").to_numpy(), place.to_numpy()))
        return table.take(pa.array(order))

    def _popular(self, users: pa.Array, k: int, schema: pa.Schema) -> pa.Table:
        best = pq.read_table(f"{self.folder}/{POPULAR_FILE}").slice(0, k)
        user = np.repeat(np.arange(len(users)), len(best))
        entry = np.tile(np.arange(len(best)), len(users))
        columns = {
            "user_id": users.take(pa.array(user)),
            "position": pa.array(entry + 1, pa.int32()),
            "item_id": best.column("item_id").take(pa.array(entry)),
            "score": best.column("score").take(pa.array(entry)),
            "reason": pa.array([_POPULAR] * len(entry), pa.string()),
        }
        return pa.table(columns).select(schema.names).cast(schema)

    def named(self, lists: pa.Table, user: str, item: str) -> pa.Table:
        """Returns lists with the column names `user` and `item`, and ids of the types in the interactions."""
        columns = {
            user: typed(lists.column("user_id"), self.state.user_type),
            "position": lists.column("position"),
            item: typed(lists.column("item_id"), self.state.item_type),
            "score": lists.column("score"),
            "reason": lists.column("reason"),
        }
        return pa.table(columns)

    def relevant(
        self, users: pa.Array, items: pa.Array, *, exclude_seen: bool
    ) -> tuple[pa.Array, list[list[str]]]:
        """Returns the distinct users with a relevant item, in ascending order, and their relevant items.

        Args:
            users, items: the pairs of later interactions.
            exclude_seen: whether items that the user chose in the interactions of `fit` are not relevant.

        Raises:
            DataError: no user has a relevant item.
        """
        pairs = pa.table({"user": users, "item": items}).group_by(["user", "item"]).aggregate([])
        if exclude_seen:
            seen = self._seen(pairs.column("user").unique())
            pairs = pairs.join(seen, ["user", "item"], join_type="left anti")
        if not len(pairs):
            raise DataError(
                "no user has a relevant item that the lists can contain",
                "pass positive interactions after those of `fit`, or exclude_seen=False",
            )
        pairs = pairs.sort_by([("user", "ascending"), ("item", "ascending")])
        keys = pairs.column("user").unique()
        return keys, _grouped(pairs.column("user"), pairs.column("item"), keys)

    def _seen(self, users: pa.Array) -> pa.Table:
        """Returns the (user, item) pairs that `exclude_seen` leaves out."""
        partition = self.lake.candidates(self.version).partition(self.state.run_date)
        wanted = users.to_pylist()
        manifest = read_manifest(partition)
        lists = read_rows_of_keys(partition, manifest, USER_KEY, wanted, [USER_KEY, EXCLUDED])
        excluded = lists.column(EXCLUDED).combine_chunks()
        owner = pc.list_parent_indices(excluded)
        return pa.table(
            {
                "user": lists.column(USER_KEY).combine_chunks().take(owner),
                "item": self.items.take(pc.list_flatten(excluded)),
            }
        )


def _grouped(users: pa.Array, items: pa.Array, keys: pa.Array) -> list[list[str]]:
    """Returns the items of each user of `keys`. The rows must be sorted by user."""
    lists: dict[str, list[str]] = {key: [] for key in keys.to_pylist()}
    for user, item in zip(users.to_pylist(), items.to_pylist(), strict=True):
        lists[user].append(item)
    return list(lists.values())


def _require_k(k: int) -> None:
    if k is None:
        raise ConfigError("k is None", "pass a positive integer")
    require_length(k)


def _plain(value: Any) -> Any:
    """Converts a NumPy number to a Python number, for JSON."""
    if isinstance(value, np.generic):
        return python_value(value)
    raise ConfigError(f"the argument {value!r} cannot be saved", "pass numbers, strings, lists and mappings")


def _local(folder: str | PathLike[str]) -> Path:
    path = fspath(folder)
    if scheme_of(path):
        raise ConfigError(
            f"{path} is a URI, but a recommender is saved on a local disk", "pass a local folder"
        )
    return Path(path)
