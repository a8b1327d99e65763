"""The inputs of candidate generation: feature rows, users, and the tables of the section `candidates`."""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from conf.errors import ConfigError, DataError
from conf.types import NotAllowed, Popular, RawTable, Split
from etl.raw.files import require_raw
from etl.spark.read_log import read_attributes
from scoring.candidates.clicks import CLICK_COLUMNS
from scoring.candidates.filters import AttributeFilter, Exclusions, exclude, known_items
from scoring.candidates.popular import SEGMENT
from scoring.candidates.retrieval import retrieved_items
from scoring.inputs.feature_rows import read_split
from scoring.inputs.requests import RetrievalRequest
from scoring.model.context_features import encoded_context
from scoring.model.model_info import ModelInfo, read_model_info
from storage.dataset import Dataset, read_spec
from storage.feature_spec import EVENT_TIME, ITEM_KEY, USER_KEY
from storage.manifest import Manifest, data_files, read_manifest
from storage.publish import rows_of
from storage.run_context import RunContext
from training.registry.retriever import retriever_as_of, retriever_name
from training.registry.versions import model_path

USER_ATTRIBUTES = "candidates.user_attributes"


@dataclass(frozen=True)
class CandidateTables:
    """The users table and the tables that the section `candidates` names, checked when they are read.

    Attributes:
        users: the manifest of the users table of the run date.
        filters: the filters by a user attribute.
        out_of_stock: (item_key) of the items that are out of stock; None if no such table is configured.
        segments: maps the name of each segment that a source uses to a frame (user_key, segment).
        attributes: user_key and all columns of user_attributes, one row per user; None without this table.
        retriever: the model that the source `retrieval` uses; None without this source.
    """

    users: Manifest
    filters: list[AttributeFilter]
    out_of_stock: DataFrame | None
    segments: dict[str, DataFrame]
    attributes: DataFrame | None
    retriever: ModelInfo | None


def read_candidate_tables(context: RunContext, version: str) -> CandidateTables:
    """Reads and checks the tables of candidate generation.

    Args:
        context: the context of the run.
        version: workflow version of the users table.

    Raises:
        ConfigError: a segment is neither a feature of scope `user` nor a column of user_attributes.
        DataError: a table is missing, or a value breaks a rule of its table (the message names file, column
            and value), or no retriever was trained.
    """
    config = context.config.candidates
    users = read_manifest(context.lake.users(version).partition(context.run_date))
    attributes = None
    if config.user_attributes is not None:
        users_table = config.user_attributes
        key = users_table.key
        rows = read_attributes(
            context.spark,
            context.config,
            users_table,
            key,
            USER_ATTRIBUTES,
            context.run_date,
            key,
            context.recorder,
        )
        attributes = rows.withColumn(USER_KEY, F.col(key).cast("string"))
    filters, out_of_stock = [], None
    for number, table in enumerate(config.filters):
        if isinstance(table, NotAllowed):
            filters.append(_attribute_filter(context, number, table))
        else:
            rows = read_attributes(
                context.spark,
                context.config,
                table,
                table.item,
                _section(number),
                context.run_date,
                table.item,
                context.recorder,
            )
            out_of_stock = rows.select(F.col(table.item).cast("string").alias(ITEM_KEY))
    segments = _segments(context, version, users, attributes)
    return CandidateTables(users, filters, out_of_stock, segments, attributes, _retriever(context, version))


def candidate_rows(context: RunContext, dataset: Dataset, splits: list[Split]) -> DataFrame:
    """The feature rows of some splits: user_key, item_key, label, features_dt, and event_time if logged."""
    columns = [*CLICK_COLUMNS, *([EVENT_TIME] if context.config.log.event_time else [])]
    return read_split(context.spark, context.lake, dataset, splits, columns)


def users_of(
    context: RunContext, version: str, users: Manifest, columns: list[str] | None = None
) -> DataFrame:
    """The columns `columns` (by default user_key) of the users table whose files the manifest names."""
    partition = context.lake.users(version).partition(context.run_date)
    return rows_of(context.spark, partition, users, columns=columns or [USER_KEY])


def exclusions(
    context: RunContext, dataset: Dataset, version: str, items: DataFrame, tables: CandidateTables
) -> Exclusions:
    """The items excluded for each user: items clicked or seen, and items not allowed for its attributes.

    Args:
        context: the context of the run.
        dataset: the dataset of the run date.
        version: workflow version of the users table.
        items: (item_index, item_key).
        tables: the users and the filters.
    """
    known, known_as = known_items(context, dataset, items)
    users = users_of(context, version, tables.users)
    return exclude(users, items, known, tables.filters, tables.attributes, known_as)


def retrieve(
    context: RunContext,
    version: str,
    tables: CandidateTables,
    numbered: Manifest,
    excluded: Exclusions,
) -> DataFrame | None:
    """(user_key, candidates) from the source `retrieval`; None if this source is not configured.

    Args:
        context: the context of the run.
        version: workflow version of the users table.
        tables: the users and the retriever.
        numbered: the manifest of candidate_items.
        excluded: the items that must not be retrieved for a user.
    """
    source, retriever = context.config.candidates.retrieval, tables.retriever
    if source is None or retriever is None:
        return None
    names = [feature.name for feature in retriever.spec.scoped("user")]
    users = users_of(context, version, tables.users, [USER_KEY, *names]).join(excluded.users, USER_KEY)
    partition = context.lake.candidate_items(version).partition(context.run_date)
    request = RetrievalRequest(
        retriever.request(context.config.score),
        tuple(data_files(partition, numbered)),
        tuple(sorted(encoded_context(context, retriever).items())),
        source.n,
    )
    return retrieved_items(users, names, request)


def table_digests(context: RunContext) -> dict[str, str]:
    """Maps the configuration key of each table that candidates are computed from to the table's digest."""
    config = context.config.candidates
    tables: dict[str, RawTable] = {_section(number): table for number, table in enumerate(config.filters)}
    if config.user_attributes is not None:
        tables[USER_ATTRIBUTES] = config.user_attributes
    return {
        name: require_raw(context.config, table, context.run_date, f"{name}.path", context.recorder).digest
        for name, table in tables.items()
    }


def _segments(
    context: RunContext, version: str, users: Manifest, attributes: DataFrame | None
) -> dict[str, DataFrame]:
    """Maps each segment name of a source to (user_key, segment), read from user_attributes or users."""
    sources = context.config.candidates.sources
    names = [source.segment for source in sources if isinstance(source, Popular) and source.segment]
    spec_features = read_spec(context.lake, version).scoped("user") if names else []
    features = [feature.name for feature in spec_features]
    known = attributes.columns if attributes is not None else []
    segments: dict[str, DataFrame] = {}
    for name in names:
        if attributes is not None and name in known:
            rows = attributes
        elif name in features:
            rows = users_of(context, version, users, [USER_KEY, name])
        else:
            raise ConfigError(
                f"candidates.sources: segment={name!r} is neither a feature of scope user {features} "
                f"nor a column of {USER_ATTRIBUTES} {known}",
                "set `segment` to one of these names",
            )
        segments[name] = rows.select(USER_KEY, F.col(name).cast("string").alias(SEGMENT))
    return segments


def _retriever(context: RunContext, version: str) -> ModelInfo | None:
    """The newest retriever trained with this workflow version; None without the source `retrieval`."""
    if context.config.candidates.retrieval is None:
        return None
    trained = retriever_as_of(context.lake, context.config, context.run_date, version)
    retriever = read_model_info(
        model_path(context.lake, retriever_name(context.config), trained), context.recorder
    )
    retriever.require_spec(read_spec(context.lake, version))
    return retriever


def _attribute_filter(context: RunContext, number: int, table: NotAllowed) -> AttributeFilter:
    """Reads the table of a filter by attribute, and returns the filter."""
    key = [table.item] if table.rule == "at_least" else [table.item, table.value]
    rows = read_attributes(
        context.spark,
        context.config,
        table,
        key,
        _section(number),
        context.run_date,
        table.item,
        context.recorder,
    )
    if table.rule == "at_least":
        missing = rows.where(F.col(table.value).isNull()).orderBy(table.item).first()
        if missing is not None:
            path = require_raw(context.config, table, context.run_date, recorder=context.recorder).paths[0]
            raise DataError(
                f"{path}: {table.value} is null for {table.item}={missing[table.item]!r}",
                f"give every item of the table a number in {table.value}, or remove its row",
            )
    keys = (F.col(table.item).cast("string").alias(ITEM_KEY), F.col(table.value).alias("value"))
    return AttributeFilter(table.name, table.rule, rows.select(*keys), table.attribute)


def _section(number: int) -> str:
    """The configuration key of the filter with this number."""
    return f"candidates.filters.{number}"
