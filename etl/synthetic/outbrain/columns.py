"""The columns of the log with the layout `outbrain`, named as in the tables of the competition."""

from __future__ import annotations

from etl.synthetic.clicks.columns import Column
from etl.synthetic.clicks.layout import Layout

LABEL = "clicked"
# A list consists of ids separated by blanks; the first id has the highest confidence. Times are milliseconds
# since 1970 UTC.
COLUMNS = (
    Column("", "display_id", "context", "key"),
    Column("", "uuid", "user", "key"),
    Column("", "ad_id", "item", "key"),
    Column("", "timestamp", "context", "key"),
    Column("", "document_id", "context", "category"),
    Column("", "platform", "user", "category"),
    Column("", "geo_location", "user", "category"),
    Column("", "source_id", "context", "category"),
    Column("", "publisher_id", "context", "category"),
    Column("", "publish_time", "context", "integer"),
    Column("", "topic_id_list", "context", "category"),
    Column("", "entity_id_list", "context", "category"),
    Column("", "category_id_list", "context", "category"),
    Column("", "document_id_promo", "item", "category"),
    Column("", "campaign_id", "item", "category"),
    Column("", "advertiser_id", "item", "category"),
    Column("", "source_id_promo", "item", "category"),
    Column("", "publisher_id_promo", "item", "category"),
    Column("", "publish_time_promo", "item", "integer"),
    Column("", "topic_id_list_promo", "item", "category"),
    Column("", "entity_id_list_promo", "item", "category"),
    Column("", "category_id_list_promo", "item", "category"),
)

_NAMES = tuple(column.name for column in COLUMNS)
OUTBRAIN = Layout((LABEL, *_NAMES), ",", "csv", True, COLUMNS, _NAMES)
