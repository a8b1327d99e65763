"""The kinds of log that can be generated, by `generate.layout`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import date
from typing import Any

from conf.types import Generate
from etl.synthetic.clicks.blocks import impression_blocks, impression_facts
from etl.synthetic.clicks.layout import CRITEO, NAMED, Layout
from etl.synthetic.outbrain.columns import OUTBRAIN
from etl.synthetic.outbrain.rows import display_blocks
from etl.synthetic.outbrain.summary import display_facts


@dataclass(frozen=True)
class Kind:
    """A kind of log.

    Attributes:
        layout: of its files.
        blocks: (configuration, day, file) → lines and counts, block by block. Counts have `rows` and can be
            added.
        facts: (configuration, day, counts of all files) → the day's facts for its manifest, `best_auc` among
            them.
    """

    layout: Layout
    blocks: Callable[[Generate, date, int], Iterator[tuple[bytes, Any]]]
    facts: Callable[[Generate, date, Any], dict[str, Any]]


_KINDS: Mapping[str, Kind] = {
    "criteo": Kind(CRITEO, impression_blocks(CRITEO), impression_facts(CRITEO)),
    "named": Kind(NAMED, impression_blocks(NAMED), impression_facts(NAMED)),
    "outbrain": Kind(OUTBRAIN, display_blocks, display_facts),
}


def kind_of(config: Generate) -> Kind:
    """The kind of log of a configuration."""
    return _KINDS[config.layout]
