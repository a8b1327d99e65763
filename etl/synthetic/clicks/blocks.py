"""Generates the lines of one file of impressions, in blocks.

The lines depend only on the configuration, the date and the index of the file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, time
from typing import Any

import numpy as np
from numpy.typing import NDArray

from conf.types import Generate
from etl.synthetic.clicks.click import STEPS, auc_of_counts
from etl.synthetic.clicks.columns import FEATURES, KEYS, MISSING
from etl.synthetic.clicks.impressions import DrawnImpressions, draw_impressions
from etl.synthetic.clicks.layout import WHOLE, ImpressionLayout, LogLayout, draw_damage, lines, reasons_of
from etl.synthetic.clicks.world import ClickWorld, world_of_day

# number of rows drawn at once, which limits the memory; a different number would give different rows
_BLOCK_ROWS = 32_768


def impression_blocks(
    layout: ImpressionLayout,
) -> Callable[[Generate, date, int], Iterator[tuple[bytes, ImpressionCounts]]]:
    """Returns a function that yields the lines and the summary of each block of a file.

    The function's arguments are the configuration, the day and the index of the file. The first block begins
    with the header, if the layout has one.
    """

    def blocks(config: Generate, day: date, file: int) -> Iterator[tuple[bytes, ImpressionCounts]]:
        world, start_of_day = world_of_day(config, day), midnight(day)
        start, end = part_of_file(config, config.rows_per_day, file)
        for block, first in enumerate(range(start, end, _BLOCK_ROWS)):
            last = min(first + _BLOCK_ROWS, end)
            window = (first / config.rows_per_day, last / config.rows_per_day)
            rows, breaks = generators(config, day, file, block)
            impressions = draw_impressions(world, rows, last - first, window, config.missing_share)
            damage = draw_damage(layout, breaks, len(impressions), config.malformed_share)
            text = lines(layout, layout.texts(impressions, start_of_day), damage)
            head = layout.header if block == 0 else b""
            yield head + text, summarise(layout, world, impressions, damage)

    return blocks


def impression_facts(
    layout: ImpressionLayout,
) -> Callable[[Generate, date, ImpressionCounts], dict[str, Any]]:
    """Returns a function that computes the facts for a day's manifest, such as `best_auc`.

    The function's arguments are the configuration, the day and the summary of all rows of the day.
    """
    return lambda config, day, summary: facts_of(layout, world_of_day(config, day), summary)


def part_of_file(config: Generate, number: int, file: int) -> tuple[int, int]:
    """Returns (start, end), the range of rows or displays of a day that one file contains.

    The `number` rows or displays of a day are divided evenly among its files. `file` is the index of the
    file.
    """
    return number * file // config.files_per_day, number * (file + 1) // config.files_per_day


def midnight(day: date) -> int:
    """Returns the start of a day in seconds since 1970 UTC."""
    return int(datetime.combine(day, time(), UTC).timestamp())


def generators(config: Generate, day: date, file: int, block: int) -> list[np.random.Generator]:
    """Returns two independent random generators for a block.

    The first generator draws the rows. The second selects rows and makes them malformed. So the share of
    malformed rows does not change the rows that stay valid.
    """
    seeds = np.random.SeedSequence([config.seed, day.toordinal(), file, block]).spawn(2)
    return [np.random.default_rng(seed) for seed in seeds]


# Counts generated rows.
#
# The worker that draws a block also counts the rows of this block. Then the counts of all blocks of a day are
# added.


@dataclass(frozen=True)
class ImpressionCounts:
    """Counts over a set of generated rows. The sum of two summaries counts the rows of both sets.

    The generator makes some rows malformed on purpose (layout.py); all other rows are valid. `missing`,
    `outcomes` and `seen` include only valid rows.

    Attributes:
        rows: number of rows.
        malformed: number of malformed rows for each reason to quarantine a row, in the order of
            `layout.reasons_of`.
        missing: number of empty fields in each column, in the order of FEATURES.
        outcomes: (2, STEPS). outcomes[l, s] is the number of rows with the label l and the click probability
            with index s.
        seen: maps user_id and item_id to packed bits, one bit per user or item of the day. A bit is 1 if the
            user or item has a valid row.
    """

    rows: int
    malformed: NDArray[np.int64]
    missing: NDArray[np.int64]
    outcomes: NDArray[np.int64]
    seen: dict[str, NDArray[np.uint8]]

    def __add__(self, other: ImpressionCounts) -> ImpressionCounts:
        return ImpressionCounts(
            self.rows + other.rows,
            self.malformed + other.malformed,
            self.missing + other.missing,
            self.outcomes + other.outcomes,
            {key: self.seen[key] | other.seen[key] for key in KEYS},
        )


def summarise(
    layout: LogLayout, world: ClickWorld, impressions: DrawnImpressions, damage: NDArray[np.int64]
) -> ImpressionCounts:
    """Returns the counts over one block of rows."""
    whole = damage == WHOLE
    outcomes = np.bincount(impressions.labels[whole] * STEPS + impressions.steps[whole], minlength=2 * STEPS)
    missing = [np.count_nonzero(impressions.values[column.name][whole] == MISSING) for column in FEATURES]
    seen = {}
    for key, ids in (("user_id", world.users["user_id"]), ("item_id", world.items["item_id"])):
        present = np.zeros(len(ids), dtype=bool)
        present[impressions.values[key][whole] - ids[0]] = True  # the ids of a day are consecutive numbers
        seen[key] = np.packbits(present)
    return ImpressionCounts(
        len(damage),
        np.bincount(damage[~whole], minlength=len(reasons_of(layout))),
        np.array(missing),
        outcomes.reshape(2, STEPS),
        seen,
    )


def facts_of(layout: LogLayout, world: ClickWorld, summary: ImpressionCounts) -> dict[str, Any]:
    """Returns the facts that a day's manifest contains about the generated rows.

    `best_auc` is the AUC of the click probability from which the labels were drawn. No function of the log's
    columns has a higher AUC, except by chance. `cold_users` and `cold_items` are the numbers of users and
    items in the log that are new on the day.
    """
    users, items = (np.unpackbits(summary.seen[key]) for key in ("user_id", "item_id"))
    malformed = dict(zip(reasons_of(layout), summary.malformed.tolist(), strict=True))
    return {
        "rows": summary.rows,
        "malformed_rows": int(summary.malformed.sum()),
        "malformed": {reason: count for reason, count in malformed.items() if count},
        "missing": dict(zip(layout.feature_names, summary.missing.tolist(), strict=True)),
        "positives": int(summary.outcomes[1].sum()),
        "users": int(users.sum()),
        "items": int(items.sum()),
        "cold_users": int(users[world.new_users - int(world.users["user_id"][0]) :].sum()),
        "cold_items": int(items[world.new_items - int(world.items["item_id"][0]) :].sum()),
        "best_auc": auc_of_counts(summary.outcomes),
    }


def total(summaries: Iterable[Any]) -> Any:
    """Returns the sum of one or more summaries of the same kind of log."""
    first, *others = summaries
    return sum(others, start=first)
