"""Publishes the titles of items and the addresses of their pictures (`items.title`, `items.image`).

Titles are not features: no workflow and no model reads them. They have their own table, so that the tables of
features do not depend on titles. A program that shows lists of recommendations can read this table instead of
the raw table of items.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from conf.lazy_imports import F
from conf.types import Config
from etl.prepare.attributes import plain_array
from etl.raw.files import require_raw
from etl.workflow.feature_plan import FeaturePlan
from spark.rows import Rows
from storage.feature_spec import ITEM_KEY
from storage.manifest import Manifest, current_manifest, digest_of, is_published, read_manifest
from storage.paths import LakePaths
from storage.publish import Rules, publish_rows
from storage.read_parquet import read_rows_of_keys

if TYPE_CHECKING:
    from pyspark.sql import Column

TITLE, IMAGE = "title", "image"
# Maximum numbers of characters. Longer titles are shortened. Longer addresses are left out, because a
# shortened address is not valid.
MOST_TITLE, MOST_ADDRESS = 500, 2000


@dataclass(frozen=True)
class ItemTitle:
    """The title and the picture of an item.

    Attributes:
        title: title of the item; the id of the item if the table of items has no title for it.
        image: address of the picture; None if the item has no picture.
    """

    title: str
    image: str | None = None


def title_columns(config: Config) -> dict[str, str]:
    """Maps `title` and `image` to their columns in the table of items, if these are configured."""
    items = config.items
    named = {TITLE: items.title, IMAGE: items.image} if items and config.keys else {}
    return {name: column for name, column in named.items() if column is not None}


def publish_titles(
    plan: FeaturePlan, lake: LakePaths, run_date: str, read_items: Callable[[], Rows]
) -> Manifest | None:
    """Publishes `item_titles/dt=…`, with one row per item that has a title or a picture, sorted by item_key.

    The columns are item_key and, if they are configured, title and image. A partition that was published from
    the same table of items is not written again.

    Args:
        plan, lake, run_date: the plan, the lake and the date of the run.
        read_items: reads the rows of the table of items, with item_key.

    Returns:
        The manifest; None if neither `items.title` nor `items.image` is set.
    """
    columns, items = title_columns(plan.config), plan.config.items
    if not columns or items is None:
        return None
    raw = require_raw(plan.config, items, run_date, "items.path", lake.recorder)
    inputs = {"attributes": raw.digest, "layout": plan.layout, "columns": digest_of(sorted(columns.items()))}
    partition = lake.item_titles.partition(run_date)
    current = current_manifest(partition, inputs)
    return current or publish_rows(
        _titles(read_items(), columns),
        partition,
        inputs=inputs,
        row_group_rows=plan.config.output.row_group_rows,
        rules=Rules([ITEM_KEY]),
        sort_by=ITEM_KEY,
        grace_hours=plan.config.output.grace_hours,
    )


def _titles(rows: Rows, columns: Mapping[str, str]) -> Rows:
    """Returns the rows with a title or a picture's address: the columns item_key, title and image."""
    if not isinstance(rows, pa.Table):
        named = [_of_frame(name, column).alias(name) for name, column in columns.items()]
        return rows.select(ITEM_KEY, *named).where(F.coalesce(*columns).isNotNull())
    texts = {name: _of_table(name, plain_array(rows[column])) for name, column in columns.items()}
    known = pc.coalesce(*texts.values()).is_valid()
    return pa.table({ITEM_KEY: rows[ITEM_KEY], **texts}).filter(known)


def _of_frame(name: str, column: str) -> Column:
    text = F.col(f"`{column}`")
    return F.substring(text, 1, MOST_TITLE) if name == TITLE else F.when(F.length(text) <= MOST_ADDRESS, text)


def _of_table(name: str, text: pa.Array) -> pa.Array:
    if name == TITLE:
        return pc.utf8_slice_codeunits(text, 0, MOST_TITLE)
    return pc.if_else(pc.less_equal(pc.utf8_length(text), MOST_ADDRESS), text, None)


def titles_of(lake: LakePaths, run_date: str, items: Iterable[str]) -> dict[str, ItemTitle]:
    """Returns the titles and picture addresses of some items on a run date, without a Spark session.

    The result is empty if no titles are published for the run date. Otherwise the result has an entry for
    every item.

    Raises:
        DataError: a file does not exist or is damaged.
    """
    partition = lake.item_titles.partition(run_date)
    if not is_published(partition):
        return {}
    wanted, manifest = sorted(set(items)), read_manifest(partition)
    columns = [name for name, _ in manifest.schema]
    rows = read_rows_of_keys(partition, manifest, ITEM_KEY, wanted, columns)
    known = {row[ITEM_KEY]: row for row in rows.to_pylist()}
    return {
        item: ItemTitle(known.get(item, {}).get(TITLE) or item, known.get(item, {}).get(IMAGE))
        for item in wanted
    }
