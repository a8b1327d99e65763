"""Generates the lines of one file of impressions, in blocks.

The lines depend only on the configuration, the date and the index of the file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime, time
from typing import Any

import numpy as np

from conf.types import Generate
from etl.synthetic.clicks.damage import draw_damage, lines
from etl.synthetic.clicks.impressions import draw_impressions
from etl.synthetic.clicks.layout import ImpressionLayout
from etl.synthetic.clicks.summary import Summary, facts_of, summarise
from etl.synthetic.clicks.world import world_of_day

_BLOCK_ROWS = 32_768  # rows that are drawn at once. It bounds memory, and the bytes depend on it.


def impression_blocks(
    layout: ImpressionLayout,
) -> Callable[[Generate, date, int], Iterator[tuple[bytes, Summary]]]:
    """Returns a function that yields the lines and the summary of each block of a file.

    The function's arguments are the configuration, the day and the index of the file. The first block begins
    with the header, if the layout has one.
    """

    def blocks(config: Generate, day: date, file: int) -> Iterator[tuple[bytes, Summary]]:
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


def impression_facts(layout: ImpressionLayout) -> Callable[[Generate, date, Summary], dict[str, Any]]:
    """Returns a function that computes the facts for a day's manifest, such as `best_auc`.

    The function's arguments are the configuration, the day and the summary of all rows of the day.
    """
    return lambda config, day, summary: facts_of(layout, world_of_day(config, day), summary)


def part_of_file(config: Generate, number: int, file: int) -> tuple[int, int]:
    """Returns (start, end), the range of rows or displays of a day that one file contains.

    A day has `number` rows or displays, which are divided evenly among the files. `file` is the index of the
    file.
    """
    return number * file // config.files_per_day, number * (file + 1) // config.files_per_day


def midnight(day: date) -> int:
    """Returns the start of a day in seconds since 1970 UTC."""
    return int(datetime.combine(day, time(), UTC).timestamp())


def generators(config: Generate, day: date, file: int, block: int) -> list[np.random.Generator]:
    """Returns two independent random generators for a block.

    The first draws the rows, the second selects rows and makes them malformed. So a higher share of malformed
    rows does not change the other rows.
    """
    seeds = np.random.SeedSequence([config.seed, day.toordinal(), file, block]).spawn(2)
    return [np.random.default_rng(seed) for seed in seeds]
