"""Counts generated displays.

The worker that draws a block also counts the displays of this block. Then the counts of all blocks of a day
are added.
"""

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

K = 12  # of MAP@12, as in the competition
STEPS = 4096  # number of bins of the click probability, for the AUC
# The reciprocal of each position up to 12 is a multiple of 1 / _UNITS, so that integer sums are exact.
_UNITS = 27_720


@dataclass(frozen=True)
class Summary:
    """Counts over a set of displays. The sum of two summaries counts the displays of both sets.

    The generator makes some rows malformed on purpose (damage.py); all other rows are valid. Except for
    `rows` and `malformed`, the counts include only valid rows.

    Attributes:
        rows: number of rows.
        malformed: number of malformed rows for each reason to quarantine a row, in the order of
            `damage.reasons_of`.
        missing: number of empty fields in each column.
        outcomes: (2, STEPS). outcomes[l, b] is the number of rows with the label l and a click probability in
            bin b.
        sizes: (MOST_ADS + 1,). sizes[n] is the number of displays that have n valid rows. Only displays whose
            clicked row is valid are included.
        best_units: sum of _UNITS / position over the displays whose clicked row is valid. Here position is
            that of the clicked ad in a ranking of the display's ads by appeal, the logit from which the click
            was drawn.
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
    """Returns the counts over one block of displays."""
    whole = damage == WHOLE
    steps = np.minimum((drawn.chance[whole] * STEPS).astype(np.int64), STEPS - 1)
    outcomes = np.bincount(drawn.clicked[whole] * STEPS + steps, minlength=2 * STEPS)
    empty = [np.count_nonzero(text.is_null().to_numpy(zero_copy_only=False)[whole]) for text in texts]
    size, position = _click_positions(drawn, whole)
    return Summary(
        len(damage),
        np.bincount(damage[~whole], minlength=len(reasons_of(OUTBRAIN))),
        np.array(empty[1:]),
        outcomes.reshape(2, STEPS),
        np.bincount(size, minlength=MOST_ADS + 1),
        int((_UNITS // position).sum()),
    )


def _click_positions(drawn: Displays, whole: NDArray[np.bool_]) -> tuple[Ints, Ints]:
    """Returns, for each display, the number of its valid rows and the position of the clicked ad.

    The position is that of the clicked ad in a ranking of the display's valid rows by descending appeal, from
    1. Displays whose clicked row is malformed are left out.

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


def display_facts(config: Generate, day: date, summary: Summary) -> dict[str, Any]:
    """Returns the facts that a day's manifest contains about the generated displays.

    `best_map_at_12` is the MAP@12 of a ranking of each display's ads by appeal. Except by chance, no score
    has a higher MAP@12. `random_map_at_12` is the mean MAP@12 over random orders: in a display of n ads, the
    mean of 1 / position is H(n) / n, where H(n) is the n-th harmonic number. `best_auc` is the AUC of the
    click probabilities, which are rounded to bins of 1/4096. Only a score that is computed from complete
    displays can reach this AUC.
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
