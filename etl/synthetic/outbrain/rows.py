"""Converts displays to lines of csv, one line per ad, like the joined tables of the competition."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from conf.types import Generate
from etl.synthetic.clicks.blocks import generators, midnight, part_of_file
from etl.synthetic.clicks.click import auc_of_counts
from etl.synthetic.clicks.columns import GeneratedColumn
from etl.synthetic.clicks.impressions import seconds_of_day
from etl.synthetic.clicks.layout import WHOLE, LogLayout, draw_damage, lines, number_texts, reasons_of
from etl.synthetic.outbrain.displays import (
    COUNTRIES,
    FIRST_DAY,
    MEAN_ADS,
    MOST_ADS,
    NONE,
    Displays,
    DisplayWorld,
    Documents,
    draw_displays,
    draw_world,
)

# The columns of the log with the layout `outbrain`, named as in the tables of the competition.

LABEL = "clicked"

# A list consists of ids separated by blanks; the first id has the highest confidence. Times are milliseconds
# since 1970 UTC.
COLUMNS = (
    GeneratedColumn("", "display_id", "context", "key"),
    GeneratedColumn("", "uuid", "user", "key"),
    GeneratedColumn("", "ad_id", "item", "key"),
    GeneratedColumn("", "timestamp", "context", "key"),
    GeneratedColumn("", "document_id", "context", "category"),
    GeneratedColumn("", "platform", "user", "category"),
    GeneratedColumn("", "geo_location", "user", "category"),
    GeneratedColumn("", "source_id", "context", "category"),
    GeneratedColumn("", "publisher_id", "context", "category"),
    GeneratedColumn("", "publish_time", "context", "integer"),
    GeneratedColumn("", "topic_id_list", "context", "category"),
    GeneratedColumn("", "entity_id_list", "context", "category"),
    GeneratedColumn("", "category_id_list", "context", "category"),
    GeneratedColumn("", "document_id_promo", "item", "category"),
    GeneratedColumn("", "campaign_id", "item", "category"),
    GeneratedColumn("", "advertiser_id", "item", "category"),
    GeneratedColumn("", "source_id_promo", "item", "category"),
    GeneratedColumn("", "publisher_id_promo", "item", "category"),
    GeneratedColumn("", "publish_time_promo", "item", "integer"),
    GeneratedColumn("", "topic_id_list_promo", "item", "category"),
    GeneratedColumn("", "entity_id_list_promo", "item", "category"),
    GeneratedColumn("", "category_id_list_promo", "item", "category"),
)
_NAMES = tuple(column.name for column in COLUMNS)
OUTBRAIN = LogLayout((LABEL, *_NAMES), ",", "csv", True, COLUMNS, _NAMES)


Ints = NDArray[np.int64]
# number of displays that are drawn at once; it limits the memory, and another number would draw other
# displays
_BLOCK_DISPLAYS = 8_192
_MILLISECONDS_A_DAY = 86_400_000


def display_blocks(config: Generate, day: date, file: int) -> Iterator[tuple[bytes, DisplayCounts]]:
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


def column_texts(
    world: DisplayWorld, drawn: Displays, start_ms: int, first_display: int
) -> list[pa.StringArray]:
    """Returns the texts of the label, and of each column in COLUMNS in the same order.

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


def _geo_locations(world: DisplayWorld) -> pa.StringArray:
    """Returns the location of each user, shape (users,), such as the text `US>3>12`.

    The three parts of a location are the country, the state, and the index of the market in the country.
    """
    users = world.users
    parts = zip(users.country.tolist(), users.state.tolist(), users.market.tolist(), strict=True)
    return pa.array(
        [f"{COUNTRIES[country]}>{state}>{10 * state + market}" for country, state, market in parts]
    )


def _lose(rng: np.random.Generator, texts: list[pa.StringArray], share: float) -> list[pa.StringArray]:
    """Empties random fields other than label and keys. The click was drawn before, from the complete row."""
    kept = texts[:1]
    for column, text in zip(COLUMNS, texts[1:], strict=True):
        if column.kind != "key":
            text = pc.if_else(pa.array(rng.random(len(text)) < share), pa.scalar(None, pa.string()), text)
        kept.append(text)
    return kept


# Counts generated displays.
#
# The worker that draws a block also counts the displays of this block. Then the counts of all blocks of a day
# are added.

K = 12  # Number of positions that MAP@12 measures, as in the competition.
STEPS = 4096  # Number of bins of the click probability, for the AUC.

# The reciprocal of each position up to 12 is a multiple of 1 / _UNITS, so that integer sums are exact.
_UNITS = 27_720


@dataclass(frozen=True)
class DisplayCounts:
    """Counts over a set of displays. The sum of two summaries counts the displays of both sets.

    The generator makes some rows malformed on purpose (layout.py); all other rows are valid. Except for
    `rows` and `malformed`, the counts include only valid rows.

    Attributes:
        rows: number of rows.
        malformed: number of malformed rows for each reason to quarantine a row, in the order of
            `layout.reasons_of`.
        missing: number of empty fields in each column.
        outcomes: (2, STEPS). outcomes[l, b] is the number of rows with the label l and a click probability in
            bin b.
        sizes: (MOST_ADS + 1,). sizes[n] is the number of displays that have n valid rows. Only displays whose
            clicked row is valid are included.
        best_units: sum of _UNITS / position over the displays whose clicked row is valid. Here position is
            the position of the clicked ad in a ranking of the display's ads by appeal. The appeal is the
            logit from which the click was drawn.
    """

    rows: int
    malformed: Ints
    missing: Ints
    outcomes: Ints
    sizes: Ints
    best_units: int

    def __add__(self, other: DisplayCounts) -> DisplayCounts:
        return DisplayCounts(
            self.rows + other.rows,
            self.malformed + other.malformed,
            self.missing + other.missing,
            self.outcomes + other.outcomes,
            self.sizes + other.sizes,
            self.best_units + other.best_units,
        )


def summarise(drawn: Displays, texts: list[pa.StringArray], damage: Ints) -> DisplayCounts:
    """Returns the counts over one block of displays."""
    whole = damage == WHOLE
    steps = np.minimum((drawn.chance[whole] * STEPS).astype(np.int64), STEPS - 1)
    outcomes = np.bincount(drawn.clicked[whole] * STEPS + steps, minlength=2 * STEPS)
    empty = [np.count_nonzero(text.is_null().to_numpy(zero_copy_only=False)[whole]) for text in texts]
    size, position = _click_positions(drawn, whole)
    return DisplayCounts(
        len(damage),
        np.bincount(damage[~whole], minlength=len(reasons_of(OUTBRAIN))),
        np.array(empty[1:]),
        outcomes.reshape(2, STEPS),
        np.bincount(size, minlength=MOST_ADS + 1),
        int((_UNITS // position).sum()),
    )


def _click_positions(drawn: Displays, whole: NDArray[np.bool_]) -> tuple[Ints, Ints]:
    """Returns, for each display, the number of its valid rows and the position of the clicked ad.

    The display's valid rows are ranked by descending appeal. Positions begin at 1. Displays whose clicked row
    is malformed are left out.

    Args:
        drawn: the displays of a block.
        whole: (R,) whether each row is valid.
    """
    displays = len(drawn.size)
    display, appeal = drawn.display[whole], drawn.appeal[whole]
    click = (drawn.clicked == 1) & whole
    of_click = np.full(displays, np.inf)
    of_click[drawn.display[click]] = drawn.appeal[click]
    size = np.bincount(display, minlength=displays)
    above = np.bincount(display[appeal > of_click[display]], minlength=displays)
    kept = np.isfinite(of_click)
    return size[kept], above[kept] + 1


def display_facts(config: Generate, day: date, summary: DisplayCounts) -> dict[str, Any]:
    """Returns the facts that a day's manifest contains about the generated displays.

    `best_map_at_12` is the MAP@12 of a ranking of each display's ads by appeal. Except by chance, no score
    has a higher MAP@12. `random_map_at_12` is the mean MAP@12 over random orders: in a display of n ads, the
    mean of 1 / position is H(n) / n, where H(n) is the n-th harmonic number. `best_auc` is the AUC of the
    click probabilities, which are rounded to bins of 1/4096. Only a score that is computed from all ads of a
    display can reach this AUC.
    """
    displays = int(summary.sizes.sum())
    sizes = np.arange(1, MOST_ADS + 1)
    random_map = np.cumsum(1 / sizes) / sizes  # (MOST_ADS,) for displays of 1, 2, … ads
    malformed = dict(zip(reasons_of(OUTBRAIN), summary.malformed.tolist(), strict=True))
    return {
        "rows": summary.rows,
        "malformed_rows": int(summary.malformed.sum()),
        "malformed": {reason: count for reason, count in malformed.items() if count},
        "missing": dict(zip(OUTBRAIN.feature_names, summary.missing.tolist(), strict=True)),
        "positives": int(summary.outcomes[1].sum()),
        "displays": displays,
        "best_auc": auc_of_counts(summary.outcomes),
        "best_map_at_12": summary.best_units / _UNITS / displays if displays else None,
        "random_map_at_12": float((summary.sizes[1:] * random_map).sum() / displays) if displays else None,
    }
