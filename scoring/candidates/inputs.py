"""What build_candidates and measure_recommendations read for candidates: rows, exclusions, segments, tables beside the log."""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from conf.errors import ConfigError, DataError
from conf.types import NotAllowed, Popular, RawTable, Split
from etl.raw.files import require_raw
from etl.spark.read_log import read_attributes
from etl.split.negatives import is_drawn
from scoring.candidates.clicks import CLICK_COLUMNS, clicked_items, observed_items
from scoring.candidates.filters import CLICKED, OBSERVED, Exclusions, Rule, exclude
from scoring.candidates.popular import SEGMENT
from scoring.candidates.retrieval import retrieved_items
from scoring.inputs.feature_rows import read_split
from scoring.inputs.requests import RetrievalRequest
from scoring.model.context_features import encoded_context
from scoring.model.model_info import ModelInfo, read_model_info
from storage.dataset import Dataset, read_spec
from storage.feature_spec import EVENT_TIME, ITEM_KEY, ROW_ID, USER_KEY
from storage.manifest import Manifest, data_files, read_manifest
from storage.publish import rows_of
from storage.run_context import RunContext
from training.registry.retriever import retriever_as_of, retriever_name
from training.registry.versions import model_path

USER_ATTRIBUTES = "candidates.user_attributes"


@dataclass(frozen=True)
class Beside:
    """What the section `candidates` names beside the log, read and checked before anything is published.

    Attributes:
        users: the users table of the run date.
        rules: the filters by a user's attribute.
        out_of_stock: (item_key) of items nobody is offered; None where no table names them.
        segments: name → (user_key, segment), for each segment that a source names.
        attributes: user_key and all columns of user_attributes, one row a user.
        retriever: the model of the retrieval source.
    """

    users: Manifest
    rules: list[Rule]
    out_of_stock: DataFrame | None
    segments: dict[str, DataFrame]
    attributes: DataFrame | None
    retriever: ModelInfo | None


def read_beside(context: RunContext, version: str) -> Beside:
    """Raises:
    ConfigError: a segment is no column of users.
    DataError: a table is missing or breaks its rules (names file, column and value), or no retriever was trained.
    """
    config = context.config.candidates
    users = read_manifest(context.lake.users(version).partition(context.run_date))
    attributes = None
    if config.user_attributes is not None:
        table = config.user_attributes
        rows = read_attributes(
            context.spark,
            context.config,
            table,
            table.key,
            USER_ATTRIBUTES,
            context.run_date,
            table.key,
            context.recorder,
        )
        attributes = rows.withColumn(USER_KEY, F.col(table.key).cast("string"))
    rules, out_of_stock = [], None
    for number, each in enumerate(config.filters):
        if isinstance(each, NotAllowed):
            rules.append(_rule(context, number, each))
        else:
            found = read_attributes(
                context.spark,
                context.config,
                each,
                each.item,
                _section(number),
                context.run_date,
                each.item,
                context.recorder,
            )
            out_of_stock = found.select(F.col(each.item).cast("string").alias(ITEM_KEY))
    segments = _segments(context, version, users, attributes)
    return Beside(users, rules, out_of_stock, segments, attributes, _retriever(context, version))


def candidate_rows(context: RunContext, dataset: Dataset, splits: list[Split]) -> DataFrame:
    """user_key, item_key, label, features_dt and, where the log has one, event_time of some splits."""
    columns = [*CLICK_COLUMNS, *([EVENT_TIME] if context.config.log.event_time else [])]
    return read_split(context.spark, context.lake, dataset, splits, columns)


def users_of(
    context: RunContext, version: str, users: Manifest, columns: list[str] | None = None
) -> DataFrame:
    """The users table that a manifest of the run date names: user_key, or the columns named."""
    partition = context.lake.users(version).partition(context.run_date)
    return rows_of(context.spark, partition, users, columns=columns or [USER_KEY])


def exclusions(
    context: RunContext, dataset: Dataset, version: str, items: DataFrame, beside: Beside
) -> Exclusions:
    """What the config excludes for each user: items of past rows, and items not allowed for their attributes.

    Args:
        version: workflow version of the users table.
    """
    known, known_as = _known_items(context, dataset, items)
    users = users_of(context, version, beside.users)
    return exclude(users, items, known, beside.rules, beside.attributes, known_as)


def _known_items(context: RunContext, dataset: Dataset, items: DataFrame) -> tuple[DataFrame | None, str]:
    """(user_key, item_index) of what users are not offered again, None for nothing; and what it is called."""
    splits, repeats = context.config.candidates.exclude_clicked, context.config.repeats
    if not splits or repeats == "all":
        return None, CLICKED
    rows = read_split(context.spark, context.lake, dataset, splits, [*CLICK_COLUMNS, ROW_ID])
    if repeats == "unclicked":
        return clicked_items(rows, items), CLICKED
    if context.config.negatives is not None:  # of a drawn item the user has no row
        rows = rows.where(~is_drawn(context.config.negatives))
    return observed_items(rows, items), OBSERVED


def retrieve(
    context: RunContext, version: str, beside: Beside, numbered: Manifest, excluding: Exclusions
) -> DataFrame | None:
    """(user_key, candidates) of the retrieval source; None where no source retrieves."""
    source, retriever = context.config.candidates.retrieval, beside.retriever
    if source is None or retriever is None:
        return None
    names = [each.name for each in retriever.spec.scoped("user")]
    users = users_of(context, version, beside.users, [USER_KEY, *names]).join(excluding.users, USER_KEY)
    partition = context.lake.candidate_items(version).partition(context.run_date)
    request = RetrievalRequest(
        retriever.request(context.config.score),
        tuple(data_files(partition, numbered)),
        tuple(sorted(encoded_context(context, retriever).items())),
        source.n,
    )
    return retrieved_items(users, names, request)


def table_digests(context: RunContext) -> dict[str, str]:
    """Section → digest of each file beside the log that candidates are made of."""
    config = context.config.candidates
    tables: dict[str, RawTable] = {_section(number): each for number, each in enumerate(config.filters)}
    if config.user_attributes is not None:
        tables[USER_ATTRIBUTES] = config.user_attributes
    return {
        name: require_raw(context.config, table, context.run_date, f"{name}.path", context.recorder).digest
        for name, table in tables.items()
    }


def _segments(
    context: RunContext, version: str, users: Manifest, attributes: DataFrame | None
) -> dict[str, DataFrame]:
    wanted = [each.segment for each in context.config.candidates.sources if isinstance(each, Popular)]
    features = [each.name for each in read_spec(context.lake, version).scoped("user")] if any(wanted) else []
    known = attributes.columns if attributes is not None else []
    found: dict[str, DataFrame] = {}
    for name in filter(None, wanted):
        if attributes is not None and name in known:
            rows = attributes
        elif name in features:
            rows = users_of(context, version, users, [USER_KEY, name])
        else:
            raise ConfigError(
                f"candidates.sources: segment={name!r} is neither a feature of scope user {features} nor a column of "
                f"{USER_ATTRIBUTES} {known}",
                "name one of these",
            )
        found[name] = rows.select(USER_KEY, F.col(name).cast("string").alias(SEGMENT))
    return found


def _retriever(context: RunContext, version: str) -> ModelInfo | None:
    if context.config.candidates.retrieval is None:
        return None
    trained = retriever_as_of(context.lake, context.config, context.run_date, version)
    retriever = read_model_info(
        model_path(context.lake, retriever_name(context.config), trained), context.recorder
    )
    retriever.require_spec(read_spec(context.lake, version))
    return retriever


def _rule(context: RunContext, number: int, table: NotAllowed) -> Rule:
    """A filter with its table."""
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
                f"give every item of the table a number in {table.value}, or leave its row out",
            )
    keys = (F.col(table.item).cast("string").alias(ITEM_KEY), F.col(table.value).alias("value"))
    return Rule(table.name, table.rule, rows.select(*keys), table.attribute)


def _section(number: int) -> str:
    return f"candidates.filters.{number}"
