"""One retraining run of the demo without Nightrank: a script that uses only pyarrow, numpy and torch.

    python -m benchmarks.peers.plain_run --raw FOLDER --run-date DATE --out FOLDER [--warm]

The script computes what `nightly --retrain` computes with benchmarks/run.yaml. It has no manifests, quarantine,
data report or gate, and after a failure it starts again from the beginning.

1. It reads eight days of the log and drops malformed rows: six train days, a validation day and a test day.
2. It encodes the rows: log(1 + x) with mean 0 and deviation 1, and ids of values that occur at least five times.
3. It trains a DLRM and the baseline logistic regression for one epoch, and computes their AUC.
4. It scores all items for all users in the fixed context, and writes the ten best items of each user as Parquet.
5. It measures HR@10 of these lists on the clicks of the next day.

With --warm, it extends the vocabularies of the run before, continues from the weights and the optimizer state
of that run, and trains the DLRM only on the newest train day. The folder --out has the model of the run before.

The last line of standard output is a JSON object: rows, AUC, HR@10, and seconds by part (`laps`).
"""

from __future__ import annotations

import argparse
import gc
import json
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import date, timedelta
from pathlib import Path

from benchmarks.peers.plain_data import read_days

WINDOW = 8


@dataclass
class Laps:
    """A stopwatch: `seconds` maps each part of the script to its seconds."""

    last: float = field(default_factory=time.perf_counter)
    seconds: dict[str, float] = field(default_factory=dict)

    def end(self, part: str) -> None:
        """Records the end of a part, which began at the end of the part before."""
        now = time.perf_counter()
        self.seconds[part], self.last = round(now - self.last, 3), now


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--raw", type=Path, required=True, help="folder of the log, with folders dt=DATE")
    parser.add_argument("--run-date", type=date.fromisoformat, required=True)
    parser.add_argument("--out", type=Path, required=True, help="folder for model and lists")
    parser.add_argument("--warm", action="store_true", help="continue from the model in the folder --out")
    parser.add_argument("--threads", type=int, default=2, help="number of threads (default 2)")
    options = parser.parse_args(arguments)
    laps = Laps()
    importing = threading.Thread(target=_import_torch)  # while the log is read by other threads
    importing.start()
    days = [(options.run_date - timedelta(back)).isoformat() for back in reversed(range(WINDOW))]
    files = read_days(options.raw, days, options.threads)
    laps.end("read")
    importing.join()
    laps.end("import torch")
    from benchmarks.peers.plain_steps import RetrainingRun  # torch has been imported while the log was read

    steps = RetrainingRun(files, options)
    del files  # large logs need the memory
    laps.end("encode")
    steps.train()
    laps.end("train DLRM")
    steps.save()
    laps.end("save")
    aucs = steps.aucs()
    laps.end("AUC")
    logistic_auc = steps.train_baseline()
    laps.end("logistic regression")
    steps.make_lists()
    laps.end("score and write lists")
    next_day = (options.run_date + timedelta(1)).isoformat()
    hit_rate = steps.hit_rate(read_days(options.raw, [next_day], options.threads)[0])
    laps.end("measure lists")
    facts = {**steps.counts(), **aucs, "auc_logistic": logistic_auc, "hr10": hit_rate}
    print(json.dumps({**facts, "laps": laps.seconds}))


def _import_torch() -> None:
    import benchmarks.peers.plain_steps  # noqa: F401


if __name__ == "__main__":
    gc.disable()  # Python need not look for garbage in a process that ends soon
    main()
