"""A driver process for trainings on ranks: `python -m tests.training.driver_process <folder> <name>…`.

The folder holds `settings.json` (Spark's) and `<name>.plan`, a pickled TrainPlan each. It writes
`<name>.progress`, a JSON line for each entry that rank 0 reported, and `<name>.json`: the model's
description, or the error that ended the training.
"""

from __future__ import annotations

import json
import logging
import pickle
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from conf.errors import NightrankError
from spark.session import build_session
from training.launch import train_on_ranks


def main(folder: Path, names: list[str]) -> None:
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(asctime)s driver %(message)s")
    spark = build_session("ranks", json.loads((folder / "settings.json").read_text()))
    try:
        for name in names:
            plan = pickle.loads((folder / f"{name}.plan").read_bytes())
            with (folder / f"{name}.progress").open("w", buffering=1) as progress:

                def show(entry: Mapping[str, Any], progress: Any = progress) -> None:
                    progress.write(f"{json.dumps(entry)}\n")

                try:
                    ended = train_on_ranks(spark, plan, show)
                except NightrankError as error:
                    ended = {
                        "error": type(error).__name__,
                        "exit_code": error.exit_code,
                        "message": str(error),
                    }
            whole = folder / f"{name}.json.tmp"
            whole.write_text(json.dumps(ended))
            whole.rename(folder / f"{name}.json")
    finally:
        spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
