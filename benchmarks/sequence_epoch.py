"""Measures an epoch of SASRec with a sampled softmax, beside plain torch.

    .venv/bin/python benchmarks/sequence_epoch.py [--quick] [--threads N] [--repeats N]

The log has the size of Amazon Toys and Games as recommender papers use it: 19,412 users with at least five choices, 11,924
items and 167,597 choices. It is made up: half of the choices follow the item before, the others come from a power law.
Each choice of a training is compared with itself and 100 drawn items. The configuration is that of benchmarks/lists.yaml,
with one block, 64 numbers per vector and the latest 20 choices.

    ours           a training of the product (training.loop.run), each choice with its own history
    plain_torch    benchmarks/peers/plain_sasrec.py: all places of a sequence at once, padded, as in the paper

An epoch's seconds are those of a training of two epochs minus those of one epoch, so reading, catalogues and the start
cancel. Contenders take turns; figures are medians. The ratio is plain torch's seconds divided by ours; our target is 1.3.
Quality is measured by benchmarks/lists.py.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # benchmarks has files named like packages

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from benchmarks.peers import plain_sasrec
from benchmarks.peers.plain_movielens import Adam
from benchmarks.report import machine, summary_line, table
from conf.load import load_config
from jobs.stages.build_features import run as build_features
from storage.dataset import read_dataset
from storage.paths import LakePaths
from storage.run_context import RunContext
from training.device import torch_threads
from training.loop.run import train_in_process
from training.loop.training_plan import make_plan

CONFIG = Path(__file__).with_name("lists.yaml")
RUN_DATE = "2026-01-02"
USERS, ITEMS, CHOICES = 19_412, 11_924, 167_597
QUICK_SHARE = 10
FEWEST, DRAWN, DIM, PLACES, DROPOUT, RATE = 5, 100, 64, 20, 0.5, 1e-3
SEQUENCES = 64  # of a step: as many choices as in a step of ours
AIM = 1.3


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument(
        "--quick", action="store_true", help=f"1 / {QUICK_SHARE} of the users, one repetition"
    )
    parser.add_argument("--threads", type=int, default=2, help="threads of torch (default 2)")
    parser.add_argument("--repeats", type=int, default=3, help="trainings of each contender (default 3)")
    options = parser.parse_args(arguments)
    share, repeats = (QUICK_SHARE, 1) if options.quick else (1, options.repeats)
    of_machine = machine(options.threads, ("torch",))
    sequences = made_up(USERS // share, ITEMS // share, CHOICES // share)
    seconds: dict[str, list[float]] = {"ours": [], "plain_torch": []}
    with tempfile.TemporaryDirectory() as folder, torch_threads(options.threads):
        ours = contender(sequences, Path(folder))
        contenders: dict[str, Callable[[int], None]] = {"ours": ours, "plain_torch": plain(sequences)}
        for _ in range(repeats):
            for name, train in contenders.items():
                seconds[name].append(epoch_seconds(train))
    figures = {name: round(statistics.median(measured), 2) for name, measured in seconds.items()}
    ratio = figures["plain_torch"] / figures["ours"]
    rows = [
        [name, f"{value:.2f}", str([round(x, 2) for x in seconds[name]])] for name, value in figures.items()
    ]
    print(table(["an epoch", "seconds", "all"], rows))
    print(f"plain_torch: {ratio:.2f}, {'met' if ratio >= AIM else 'MISSED'}")
    facts = {"seconds": figures["ours"], "choices": sum(map(len, sequences))}
    peers = {"plain_torch": {"seconds": figures["plain_torch"]}}
    print(summary_line("sequence_epoch", of_machine, facts, peers, {"plain_torch": ratio}, aim=AIM))
    return 0


def made_up(users: int, items: int, choices: int) -> list[NDArray[np.int64]]:
    """Returns the items of each user, from 1, in the order of time; about as many as `choices` together."""
    random = np.random.default_rng(7)
    more = choices / users - FEWEST
    lengths = FEWEST + random.geometric(1 / (1 + more), users) - 1
    follows = random.permutation(items)
    sequences = []
    for length in lengths:
        own = np.minimum(random.zipf(1.2, length) - 1, items - 1)
        for place in range(1, length):
            if random.random() < 0.5:
                own[place] = follows[own[place - 1]]
        sequences.append(own + 1)
    return sequences


def epoch_seconds(train: Callable[[int], None]) -> float:
    """Returns the seconds of an epoch, from trainings of one and of two epochs."""
    taken = []
    for epochs in (1, 2):
        began = time.perf_counter()
        train(epochs)
        taken.append(time.perf_counter() - began)
    return taken[1] - taken[0]


def contender(sequences: Sequence[NDArray[np.int64]], folder: Path) -> Callable[[int], None]:
    """Builds the features of the log, and returns a function that trains the product's model."""
    rows = pd.DataFrame(
        {
            "user": np.repeat(np.arange(len(sequences)), [len(own) for own in sequences]),
            "item": np.concatenate(sequences),
            "time": 1_767_225_600 + np.concatenate([np.arange(len(own)) for own in sequences]) * 60,
            "chosen": 1,
        }
    )
    rows.to_csv(folder / "choices.tsv", sep="\t", header=False, index=False)
    lake = LakePaths(f"{folder}/lake")
    # The rows that are added to the log are for measures; a step draws its own negatives.
    settings = [f"data={folder}", f"lake={lake.root}", "negatives.train=false", "train.num_ranks=1"]
    settings += ["train.global_batch_size=512", "train.keep=last"]
    config = load_config(str(CONFIG), settings)
    build_features(RunContext("build_features", config, RUN_DATE))
    number = 0

    def train(epochs: int) -> None:
        nonlocal number
        number += 1  # another model version, so that no finished training is found
        changed = [*settings, f"train.epochs={epochs}", f"train.seed={number}"]
        of_epochs = load_config(str(CONFIG), changed)
        train_in_process(make_plan(of_epochs, lake, read_dataset(lake, RUN_DATE)))

    return train


def plain(sequences: Sequence[NDArray[np.int64]]) -> Callable[[int], None]:
    """Returns a function that trains the plain model on the choices before the last two of each user."""
    trained = [own[:-2] for own in sequences if len(own) > 3]
    items = max(int(own.max()) for own in sequences)

    def train(epochs: int) -> None:
        model = plain_sasrec.SASRec(items, PLACES, DIM, 1, DROPOUT)
        optimizer, random = Adam(model.parameters()), np.random.default_rng(0)
        for _ in range(epochs):
            plain_sasrec.train_epoch(
                model, optimizer, trained, batch=SEQUENCES, drawn=DRAWN, rate=RATE, random=random
            )

    return train


if __name__ == "__main__":
    sys.exit(main())
