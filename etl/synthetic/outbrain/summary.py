"""What is known about generated displays: counted where they are drawn, added up over the files of a day."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from conf.types import Generate
from etl.synthetic.clicks.click import auc_of_counts
from etl.synthetic.clicks.damage import WHOLE, reasons_of
from etl.synthetic.outbrain.columns import OUTBRAIN
from etl.synthetic.outbrain.displays import MOST_ADS, Displays

Ints = NDArray[np.int64]

K = 12  # places that count, in the competition and here
STEPS = 4096  # of the chance of a click, for the AUC
# Every reciprocal of a place up to 12 is a whole number of these, so that sums are exact.
_UNITS = 27_720


@dataclass(frozen=True)
class Summary:
    """Counts that can be added. All but `rows` and `malformed` are of the rows that are whole.

    Attributes:
        malformed: rows by reason, in the order of `damage.reasons_of`.
        missing: empty fields by column.
        outcomes: (2, STEPS) rows by label and step of the chance.
        sizes: (MOST_ADS + 1,) displays that kept their click, by how many whole rows they have.
        best_units: sum over these displays of one over the click's place by appeal, in `_UNITS`.
    """

    rows: int
    malformed: Ints
    missing: Ints
    outcomes: Ints
    sizes: Ints
    best_units: int

    def __add__(self, other: Summary) -> Summary:
        return Summary(
            self.rows + other.rows,
            self.malformed + other.malformed,
            self.missing + other.missing,
            self.outcomes + other.outcomes,
            self.sizes + other.sizes,
            self.best_units + other.best_units,
        )


def summarise(drawn: Displays, texts: list[pa.StringArray], damage: Ints) -> Summary:
    """Counts one block of displays."""
    whole = damage == WHOLE
    steps = np.minimum((drawn.chance[whole] * STEPS).astype(np.int64), STEPS - 1)
    outcomes = np.bincount(drawn.clicked[whole] * STEPS + steps, minlength=2 * STEPS)
    empty = [np.count_nonzero(text.is_null().to_numpy(zero_copy_only=False)[whole]) for text in texts]
    size, place = _clicked_places(drawn, whole)
    return Summary(
        len(damage),
        np.bincount(damage[~whole], minlength=len(reasons_of(OUTBRAIN))),
        np.array(empty[1:]),
        outcomes.reshape(2, STEPS),
        np.bincount(size, minlength=MOST_ADS + 1),
        int((_UNITS // place).sum()),
    )


def _clicked_places(drawn: Displays, whole: NDArray[np.bool_]) -> tuple[Ints, Ints]:
    """Of each display that kept its click: how many whole rows it has, and the click's place among them by appeal."""
    displays = len(drawn.size)
    display, appeal = drawn.display[whole], drawn.appeal[whole]
    click = (drawn.clicked == 1) & whole
    of_click = np.full(displays, np.inf)
    of_click[drawn.display[click]] = drawn.appeal[click]
    size = np.bincount(display, minlength=displays)
    above = np.bincount(display[appeal > of_click[display]], minlength=displays)
    kept = np.isfinite(of_click)
    return size[kept], above[kept] + 1


def display_facts(config: Generate, day: date, summary: Summary) -> dict[str, Any]:
    """The facts of a day for its manifest.

    `best_map_at_12` is that of the displays ranked by their ads' appeal: no score of rows has a better one, but for luck.
    `random_map_at_12` is what any order that knows nothing has on average: the mean of one over the place is H(n) / n in a
    display of n ads. `best_auc` is that of the chances, to 1/4096, which only a score of whole displays could reach.
    """
    displays = int(summary.sizes.sum())
    sizes = np.arange(1, MOST_ADS + 1)
    of_chance = np.cumsum(1 / sizes) / sizes  # (MOST_ADS,) for displays of 1, 2, … ads
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
        "random_map_at_12": float((summary.sizes[1:] * of_chance).sum() / displays) if displays else None,
    }
