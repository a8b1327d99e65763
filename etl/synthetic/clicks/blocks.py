"""The lines of impressions, block by block. They depend only on configuration, date and file number."""

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
    """(configuration, day, file) → (lines, counts) of each block.

    The first block begins with the header, if any.
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
    """(configuration, day, counts) → the facts of the day's manifest."""
    return lambda config, day, summary: facts_of(layout, world_of_day(config, day), summary)


def part_of_file(config: Generate, number: int, file: int) -> tuple[int, int]:
    """(start, end) of a file's part of `number` items of a day."""
    return number * file // config.files_per_day, number * (file + 1) // config.files_per_day


def midnight(day: date) -> int:
    """The start of a day in seconds since 1970 UTC."""
    return int(datetime.combine(day, time(), UTC).timestamp())


def generators(config: Generate, day: date, file: int, block: int) -> list[np.random.Generator]:
    """Independent generators for rows and for damage. More damage does not change the other rows."""
    seeds = np.random.SeedSequence([config.seed, day.toordinal(), file, block]).spawn(2)
    return [np.random.default_rng(seed) for seed in seeds]
