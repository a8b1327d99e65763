"""Counts generated rows.

The worker that draws a block also counts the rows of this block. Then the counts of all blocks of a day are
added.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from etl.synthetic.clicks.click import STEPS, auc_of_counts
from etl.synthetic.clicks.columns import FEATURES, KEYS, MISSING
from etl.synthetic.clicks.damage import WHOLE, reasons_of
from etl.synthetic.clicks.impressions import Impressions
from etl.synthetic.clicks.layout import Layout
from etl.synthetic.clicks.world import World


@dataclass(frozen=True)
class Summary:
    """Counts over a set of generated rows. The sum of two summaries counts the rows of both sets.

    The generator makes some rows malformed on purpose (damage.py); all other rows are valid. `missing`,
    `outcomes` and `seen` include only valid rows.

    Attributes:
        rows: number of rows.
        malformed: number of malformed rows for each reason to quarantine a row, in the order of
            `damage.reasons_of`.
        missing: number of empty fields in each column, in the order of FEATURES.
        outcomes: (2, STEPS). outcomes[l, s] is the number of rows with the label l and the click probability
            with index s.
        seen: maps user_id and item_id to packed bits, one bit per user or item of the day. A bit is 1 if the
            user or item has a row.
    """

    rows: int
    malformed: NDArray[np.int64]
    missing: NDArray[np.int64]
    outcomes: NDArray[np.int64]
    seen: dict[str, NDArray[np.uint8]]

    def __add__(self, other: Summary) -> Summary:
        return Summary(
            self.rows + other.rows,
            self.malformed + other.malformed,
            self.missing + other.missing,
            self.outcomes + other.outcomes,
            {key: self.seen[key] | other.seen[key] for key in KEYS},
        )


def summarise(layout: Layout, world: World, impressions: Impressions, damage: NDArray[np.int64]) -> Summary:
    """Returns the counts over one block of rows."""
    whole = damage == WHOLE
    outcomes = np.bincount(impressions.labels[whole] * STEPS + impressions.steps[whole], minlength=2 * STEPS)
    missing = [np.count_nonzero(impressions.values[column.name][whole] == MISSING) for column in FEATURES]
    seen = {}
    for key, ids in (("user_id", world.users["user_id"]), ("item_id", world.items["item_id"])):
        present = np.zeros(len(ids), dtype=bool)
        present[impressions.values[key][whole] - ids[0]] = True  # the ids of a day are consecutive
        seen[key] = np.packbits(present)
    return Summary(
        len(damage),
        np.bincount(damage[~whole], minlength=len(reasons_of(layout))),
        np.array(missing),
        outcomes.reshape(2, STEPS),
        seen,
    )


def facts_of(layout: Layout, world: World, summary: Summary) -> dict[str, Any]:
    """Returns the facts that a day's manifest contains about the generated rows.

    `best_auc` is the AUC of the click probability from which the labels were drawn. Except by chance, no
    function of the columns in the log has a higher AUC. `cold_users` and `cold_items` are the numbers of
    users and items in the log that are new on the day.
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
