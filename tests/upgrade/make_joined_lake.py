"""Makes the archive of a lake that an older release wrote, of a log whose rows need a preparation.

The release is commit fbe1a313, the last one before such logs were prepared without Spark. The second of these
commands makes the environment of the old release:

    git worktree add /tmp/fbe1a313 fbe1a313
    make -C /tmp/fbe1a313 setup
    .venv/bin/python tests/upgrade/make_joined_lake.py /tmp/fbe1a313

The archive lake-fbe1a313.tar.xz holds two folders, for the configuration joined.yaml (histories, negatives,
joins, `target_encoding`, a log stored by day):

    data/   the tables of users and items, and the logs of 2026-01-03 to 2026-01-08; older logs are deleted
    lake/   what nightly left on 2026-01-06 (with a training, by the engine arrow) and 2026-01-07 (without one,
            by the engine sql), and build_features for PLAIN on 2026-01-05; user u21, who is not in the logs
            before 2026-01-04, was erased between the two runs of nightly
"""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import tarfile
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
CONFIG = HERE / "joined.yaml"
ARCHIVE = HERE / "lake-fbe1a313.tar.xz"
DAYS = [f"2026-01-{day:02d}" for day in range(1, 9)]
PLAIN_DATE, FIRST, SECOND, NEXT = DAYS[4:]
DELETED_DAYS = DAYS[:2]
# The overrides of a configuration whose rows need no preparation. The old release counted values only for such.
PLAIN = [
    "name=plain",
    *(f"{section}=null" for section in ("history", "negatives", "users", "items")),
    "prepare=[]",
    "features=[{columns: [user, item, device], kind: categorical, ops: [categorify]}]",
    "scopes={user: [user], item: [item], context: [device]}",
    "score.context={device: mobile}",
]
ERASED = "u21"
USERS = [f"u{number:02d}" for number in range(1, 25)]
ITEMS = [f"i{number:02d}" for number in range(1, 31)]
# Users and items of the log without a row in their table.
WITHOUT_ROW = {"u23", "u24", "i30"}
_MIDNIGHT = 1767225600  # of 2026-01-01 UTC, in seconds
_DAY_S = 86400
# Folders and files that no later run reads, and lock files.
_LEFT_OUT = {"logs", "reports", "spark-events", "mlflow.db", "mlruns", "leases"}


def write_logs(data: Path) -> None:
    """Writes the click log of each day, the table of users, and one table of items per day."""
    draw = random.Random(42)
    for folder in ("clicks", "items"):
        (data / folder).mkdir(parents=True)
    taste = {(user, item): draw.random() for user in USERS for item in ITEMS}
    lines = [
        f"{user},{draw.choice(['de', 'fr', 'it', ''])},{draw.choice(['', 18, 35, 35, 61])}" for user in USERS
    ]
    kept = [line for line, user in zip(lines, USERS, strict=True) if user not in WITHOUT_ROW]
    (data / "users.csv").write_text("\n".join(["user,country,age", *kept]) + "\n")
    catalogue = {
        item: f"{item},{draw.choice(['ab', 'cd', 'ef'])},{draw.uniform(1, 90):.2f},"
        + " ".join(draw.sample(["new", "red", "xl", "eco"], draw.randint(0, 3)))
        for item in ITEMS
    }
    for index, day in enumerate(DAYS):
        # Item i29 is sold from the third day on.
        items = [item for item in ITEMS if index >= 2 or item != "i29"]
        rows = [catalogue[item] for item in items if item not in WITHOUT_ROW]
        (data / "items" / f"{day}.csv").write_text("\n".join(["item,brand,list_price,tags", *rows]) + "\n")
        clicks = ["time,session,user,item,price,device,click"]
        for session in range(34):
            user = draw.choice(USERS)
            time = _MIDNIGHT + index * _DAY_S + draw.randrange(_DAY_S - 400)
            device = draw.choice(["mobile", "mobile", "desktop", ""])
            for _ in range(draw.randint(1, 7)):
                item = draw.choice(items)
                price = "" if draw.random() < 0.03 else f"{draw.uniform(0, 90):.2f}"
                is_click = int(taste[user, item] > 0.45)
                clicks.append(f"{time},{index}-{session},{user},{item},{price},{device},{is_click}")
                time += draw.choice([0, 1, 40])
        clicks.insert(3, f"{_MIDNIGHT + index * _DAY_S},x,u01,i01,free,mobile,1")
        clicks.insert(9, f"{_MIDNIGHT + index * _DAY_S},x,,i01,1.5,mobile,1")
        (data / "clicks" / f"{day}.csv").write_text("\n".join(clicks) + "\n")
    _set_times(data)


def _set_times(data: Path) -> None:
    """Sets the times of raw files, which jobs compare, to a second: an archive has no fractions of it."""
    for path in data.rglob("*.csv"):
        os.utime(path, (_MIDNIGHT, _MIDNIGHT))


class OldRelease:
    """Runs jobs of the old release in a folder with `data` and `lake`."""

    def __init__(self, checkout: Path, folder: Path) -> None:
        self._checkout, self._folder = checkout, folder

    def run(self, job: str, run_date: str, *options: str, overrides: list[str] | None = None) -> None:
        """Runs a job. Its output is that of this process.

        Raises:
            subprocess.CalledProcessError: the job failed.
        """
        folder = self._folder
        sink = f"{{kind: json_lines, name: files, path: {folder}/delivered}}"
        places = [f"data={folder}/data", f"lake={folder}/lake", f"deliver.sinks=[{sink}]"]
        sets = [word for value in [*places, *(overrides or [])] for word in ("--set", value)]
        command = [f"jobs/{job}.py", "--config", str(CONFIG), "--run-date", run_date, *options, *sets]
        subprocess.run(
            ["bash", "-c", '. setup/env.sh && exec python "$@"', "job", *command],
            cwd=self._checkout,
            env={**os.environ, "PYTHONPATH": str(self._checkout)},
            check=True,
        )


def make_lake(checkout: Path, folder: Path) -> None:
    """Writes the folders `data` and `lake` below `folder`."""
    write_logs(folder / "data")
    old = OldRelease(checkout, folder)
    old.run("build_features", PLAIN_DATE, overrides=PLAIN)
    old.run("nightly", FIRST, "--retrain")
    old.run("erase_user", FIRST, "--user", ERASED)
    old.run("nightly", SECOND, overrides=["workflow.engine=sql"])
    for day in DELETED_DAYS:
        (folder / "data" / "clicks" / f"{day}.csv").unlink()


def pack(folder: Path) -> None:
    """Writes the archive, in an order and with owners that do not depend on this machine."""

    def entry(info: tarfile.TarInfo) -> tarfile.TarInfo | None:
        parts = Path(info.name).parts
        if parts[0] == "lake" and len(parts) > 1 and parts[1] in _LEFT_OUT:
            return None
        info.uid = info.gid = 0
        info.uname = info.gname = ""
        return info

    with tarfile.open(ARCHIVE, "w:xz", preset=9) as archive:
        for name in ("data", "lake"):
            archive.add(folder / name, name, filter=entry)


def main() -> None:
    """Makes the archive from a checkout of the old release, which has its environment."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("checkout", type=Path, help="a checkout of fbe1a313, after `make setup`")
    checkout = parser.parse_args().checkout.resolve()
    with tempfile.TemporaryDirectory() as folder:
        make_lake(checkout, Path(folder))
        pack(Path(folder))


if __name__ == "__main__":
    main()
