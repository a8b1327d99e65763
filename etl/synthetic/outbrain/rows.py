"""Converts displays to lines of csv, one line per ad, like the joined tables of the competition."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from conf.types import Generate
from etl.synthetic.clicks.blocks import generators, midnight, part_of_file
from etl.synthetic.clicks.damage import draw_damage, lines
from etl.synthetic.clicks.impressions import seconds_of_day
from etl.synthetic.clicks.layout import number_texts
from etl.synthetic.outbrain.columns import COLUMNS, LABEL, OUTBRAIN
from etl.synthetic.outbrain.displays import MEAN_ADS, Displays, World, draw_displays, draw_world
from etl.synthetic.outbrain.documents import COUNTRIES, FIRST_DAY, NONE, Documents
from etl.synthetic.outbrain.summary import Summary, summarise

Ints = NDArray[np.int64]

_BLOCK_DISPLAYS = 8_192  # displays that are drawn at once. It bounds memory, and the bytes depend on it.
_MILLISECONDS_A_DAY = 86_400_000


def display_blocks(config: Generate, day: date, file: int) -> Iterator[tuple[bytes, Summary]]:
    """Yields the lines and the summary of each block of a file. The first block begins with the header."""
    world = draw_world(config, day)
    displays = max(round(config.rows_per_day / MEAN_ADS), config.files_per_day)
    start, end = part_of_file(config, displays, file)
    for block, first in enumerate(range(start, end, _BLOCK_DISPLAYS)):
        last = min(first + _BLOCK_DISPLAYS, end)
        rows, breaks = generators(config, day, file, block)
        drawn = draw_displays(world, rows, last - first, (first / displays, last / displays))
        texts = column_texts(world, drawn, 1000 * midnight(day), first + displays * day.toordinal())
        texts = _lose(rows, texts, config.missing_share)
        damage = draw_damage(OUTBRAIN, breaks, len(drawn.clicked), config.malformed_share)
        head = OUTBRAIN.header if block == 0 else b""
        yield head + lines(OUTBRAIN, texts, damage), summarise(drawn, texts, damage)


def column_texts(world: World, drawn: Displays, start_ms: int, first_display: int) -> list[pa.StringArray]:
    """Returns the texts of the label and of each column in COLUMNS, in order.

    Args:
        world: documents, ads, users and tastes of the day.
        drawn: the displays of a block.
        start_ms: the start of the day, in milliseconds since 1970 UTC.
        first_display: the display_id of the first display.
    """
    documents, ads, users = world.documents, world.ads, world.users
    promoted = ads.document[drawn.ad]
    of_day = seconds_of_day(drawn.quantile)
    columns = {
        LABEL: drawn.clicked,
        "display_id": first_display + drawn.display,
        "uuid": users.number[drawn.user],
        "ad_id": ads.number[drawn.ad],
        "timestamp": start_ms + 1000 * of_day,
        "document_id": drawn.document,
        "platform": 1 + users.platform[drawn.user],
        "document_id_promo": promoted,
        "campaign_id": ads.campaign[drawn.ad],
        "advertiser_id": ads.advertiser[drawn.ad],
    }
    texts = {name: number_texts(values) for name, values in columns.items()}
    texts["uuid"] = pc.binary_join_element_wise("u", texts["uuid"], "")
    texts["geo_location"] = _geo_locations(world).take(pa.array(drawn.user))
    for suffix, documents_of_rows in (("", drawn.document), ("_promo", promoted)):
        for name, by_document in _document_texts(documents).items():
            texts[f"{name}{suffix}"] = by_document.take(pa.array(documents_of_rows))
    return [texts[name] for name in OUTBRAIN.names]


def _document_texts(documents: Documents) -> dict[str, pa.StringArray]:
    """Returns a mapping from column names to arrays (documents,) with one text per document."""
    first_ms = 1000 * midnight(FIRST_DAY)
    published = first_ms - np.rint(documents.published * _MILLISECONDS_A_DAY).astype(np.int64)
    return {
        "source_id": number_texts(documents.source),
        "publisher_id": number_texts(documents.publisher),
        "publish_time": number_texts(published),
        "topic_id_list": _list_texts(documents.topics),
        "entity_id_list": _list_texts(documents.entities),
        "category_id_list": _list_texts(documents.categories),
    }


def _list_texts(ids: Ints) -> pa.StringArray:
    """Converts the ids of each row, shape (N, most), to one text with the ids separated by blanks."""
    return pa.array(
        [" ".join(str(number) for number in row if number != NONE) for row in ids.tolist()], pa.string()
    )


def _geo_locations(world: World) -> pa.StringArray:
    """Returns the location of each user, shape (users,), such as the text `US>3>12`.

    The three parts of a location are the country, the state, and the index of the market in the country.
    """
    users = world.users
    parts = zip(users.country.tolist(), users.state.tolist(), users.market.tolist(), strict=True)
    return pa.array(
        [f"{COUNTRIES[country]}>{state}>{10 * state + market}" for country, state, market in parts]
    )


def _lose(rng: np.random.Generator, texts: list[pa.StringArray], share: float) -> list[pa.StringArray]:
    """Empties random fields other than label and keys. The click was drawn from the complete row."""
    kept = texts[:1]
    for column, text in zip(COLUMNS, texts[1:], strict=True):
        if column.kind != "key":
            text = pc.if_else(pa.array(rng.random(len(text)) < share), pa.scalar(None, pa.string()), text)
        kept.append(text)
    return kept
