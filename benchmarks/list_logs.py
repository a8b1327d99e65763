"""Logs of choices for benchmarks/lists.py: reads their files, and writes them in the layout of lists.yaml.

The rows of a log are a frame with the columns user, item (keys as text), time (seconds) and positive (whether the user
chose the item), in the order of the row numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pandas as pd

from benchmarks.shop_log import make_log

ROOT = Path(__file__).resolve().parent.parent
MOVIELENS_POSITIVE = 4.0


@dataclass(frozen=True)
class Log:
    """A log of choices.

    Attributes:
        name: its name in the table and in the JSON line.
        rows: see the module.
        config: the configuration with which the product reads it.
        run_date: the date of the product's run.
        overrides: further keys of the configuration, such as the folder of the files.
    """

    name: str
    rows: pd.DataFrame
    config: Path
    run_date: str
    overrides: tuple[str, ...] = ()


def find_movielens(folder: Path) -> Log | None:
    """Returns MovieLens 100k from the folder or its subfolders, or None if it is not there."""
    files = sorted(folder.rglob("ml-100k.inter"))
    if not files:
        return None
    raw = _atomic(files[0])
    rating = raw["rating"].astype(float)
    rows = pd.DataFrame(
        {
            "user": raw["user_id"],
            "item": raw["item_id"],
            "time": _seconds(raw["timestamp"]),
            "positive": rating >= MOVIELENS_POSITIVE,
        }
    )
    data = (f"data={files[0].parent.resolve()}",)
    return Log("movielens", rows, ROOT / "conf/datasets/movielens.yaml", "1998-04-23", data)


def find_beauty(folder: Path) -> Path | None:
    """Returns the file beauty.txt in the folder or its subfolders, or None if it is not there."""
    return next(iter(sorted(folder.rglob("beauty.txt"))), None)


def read_choices(path: Path, core: int) -> Log:
    """Reads a file of choices: every row is positive.

    Args:
        path: lines `user item` in the order of time, lines `user item time`, or a file `.inter` of RecBole
            with user_id, item_id and timestamp. Only the first choice of an item by a user counts.
        core: the rows are reduced until each user and each item has at least this number of rows.
    """
    if path.suffix == ".inter":
        rows = _atomic(path)[["user_id", "item_id", "timestamp"]]
    else:
        rows = pd.read_csv(path, sep=r"\s+", header=None, dtype=str)
    if rows.shape[1] == 2:
        rows = rows.assign(time=np.arange(len(rows)))
    rows.columns = pd.Index(["user", "item", "time"])
    rows = rows.assign(time=_seconds(rows["time"]), positive=True)
    rows = rows.sort_values("time", kind="stable").drop_duplicates(["user", "item"])
    rows = core_of(rows, core).reset_index(drop=True)
    return Log(path.stem, rows, ROOT / "benchmarks/lists.yaml", "2000-01-01")


def shop_choices(cache: Path) -> Log:
    """Returns the first event of each user with each item in the generated web shop, as choices.

    Args:
        cache: the folder of generated logs.
    """
    cache.mkdir(parents=True, exist_ok=True)
    log = make_log(cache, 1)
    days = [
        pd.read_csv(log.folder / f"clicks/{date}.csv", on_bad_lines="skip", dtype=str) for date in log.dates
    ]
    rows = pd.concat(days, ignore_index=True)[["user", "item", "ts"]].dropna()
    rows = rows[rows["item"].str.startswith("sku-")].set_axis(["user", "item", "time"], axis=1)
    rows = rows.assign(time=_seconds(rows["time"]), positive=True)
    rows = rows.sort_values("time", kind="stable").drop_duplicates(["user", "item"])
    return Log("shop", core_of(rows, 5).reset_index(drop=True), ROOT / "benchmarks/lists.yaml", "2000-01-01")


def core_of(rows: pd.DataFrame, core: int) -> pd.DataFrame:
    """Returns the largest part of the rows in which each user and each item has at least `core` rows."""
    while True:
        sizes = [rows.groupby(key)[key].transform("size") for key in ("user", "item")]
        kept = (sizes[0] >= core) & (sizes[1] >= core)
        if kept.all():
            return rows
        rows = rows[kept]


def write_choices(log: Log, folder: Path) -> Log:
    """Writes the rows for lists.yaml below the folder, and returns the log with the override that names it."""
    folder.mkdir(parents=True)
    columns = ["user", "item", "time", "positive"]
    rows = log.rows[columns].astype({"positive": int})
    rows.to_csv(folder / "choices.tsv", sep="\t", index=False, header=False)
    return replace(log, overrides=(*log.overrides, f"data={folder}"))


def split_rows(rows: pd.DataFrame) -> pd.Series:
    """Returns train, validation or test for each row (leave-last-out), in the order of `rows`.

    A user's rows are ordered by (time, row number). The last positive row and the rows after it are test rows.
    The second last positive row and the rows between the two are validation rows. All earlier rows are train
    rows, and so are all rows of a user without a positive row.
    """
    numbered = rows.reset_index(drop=True)
    ordered = numbered.sort_values(["user", "time"], kind="stable")
    positives = ordered["positive"].astype(int)
    seen = positives.groupby(ordered["user"]).cumsum()
    total = positives.groupby(ordered["user"]).transform("sum")
    later = (total - seen).to_numpy()  # positive rows after this row
    conditions = [(total == 0).to_numpy(), later == 0, (later == 1) & (total > 1).to_numpy()]
    split = pd.Series(np.select(conditions, ["train", "test", "validation"], "train"), ordered.index)
    return split.sort_index().set_axis(rows.index)


def _atomic(path: Path) -> pd.DataFrame:
    """Reads a file in RecBole's atomic format: tab-separated, with a header of `name:type`."""
    rows = pd.read_csv(path, sep="\t", dtype=str)
    rows.columns = pd.Index([name.split(":")[0] for name in rows.columns])
    return rows


def _seconds(times: pd.Series | Sequence[str]) -> pd.Series:
    return pd.Series(times).astype(float).astype(np.int64)
