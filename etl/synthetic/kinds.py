"""The kinds of log that can be generated. `generate.layout` selects one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import date
from typing import Any

from conf.types import Generate
from etl.synthetic.clicks.blocks import impression_blocks, impression_facts
from etl.synthetic.clicks.layout import CRITEO, NAMED, LogLayout
from etl.synthetic.outbrain.rows import OUTBRAIN, display_blocks, display_facts


@dataclass(frozen=True)
class ClickLogKind:
    """The layout and the functions that generate one kind of log.

    Attributes:
        layout: the layout of the files.
        blocks: function that yields the lines and the summary of each block of a file. Its arguments are the
            configuration, the day and the index of the file. Summaries have an attribute `rows`, and can be
            added to each other.
        facts: function that returns the facts for a day's manifest, such as `best_auc`. Its arguments are the
            configuration, the day and the sum of the summaries of all files.
    """

    layout: LogLayout
    blocks: Callable[[Generate, date, int], Iterator[tuple[bytes, Any]]]
    facts: Callable[[Generate, date, Any], dict[str, Any]]


_KINDS: Mapping[str, ClickLogKind] = {
    "criteo": ClickLogKind(CRITEO, impression_blocks(CRITEO), impression_facts(CRITEO)),
    "named": ClickLogKind(NAMED, impression_blocks(NAMED), impression_facts(NAMED)),
    "outbrain": ClickLogKind(OUTBRAIN, display_blocks, display_facts),
}


def kind_of(config: Generate) -> ClickLogKind:
    """Returns the kind of log that `generate.layout` selects."""
    return _KINDS[config.layout]
