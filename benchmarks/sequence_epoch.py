"""Measures an epoch of SASRec with a sampled softmax, beside plain torch.

    .venv/bin/python benchmarks/sequence_epoch.py [--quick] [--threads N] [--repeats N] [--device cpu|cuda]

The log has the size of Amazon Toys and Games as recommender papers use it: 19,412 users with at least five choices, 11,924
items and 167,597 choices. It is made up: half of the choices follow the item before, the others come from a power law.
The loss of a choice compares it with 100 drawn items. The configuration is that of benchmarks/lists.yaml,
with one block, 64 numbers per vector and the latest 20 choices.

    ours           a training run of the product (training.loop.run) with train.shuffle=users
    plain_torch    benchmarks/peers/plain_sasrec.py: all places of a sequence at once, padded, as in the paper
    replay         SASRec of the library RePlay, in an environment of its own (benchmarks/peers/replay_epoch.py); items
                   are drawn for each place. --quick does not install the environment

An epoch's seconds are those of a training run of two epochs minus those of a run of one epoch, so reading, catalogues
and the start cancel out. RePlay's are those of its second epoch. Ours and plain torch train once before the first
measurement, because the first training run of a process also starts CUDA and compiles kernels. Contenders take turns,
and figures are medians. A ratio is
the peer's seconds divided by ours; our target is 1.3. Quality is measured by benchmarks/lists.py.
benchmarks/gpu/sequence_epoch.py measures the same on a GPU.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # benchmarks has files named like packages

# As in the jobs (`limit_spinning` of conf/process.py): waiting threads delay the others on a busy machine.
os.environ.setdefault("GOMP_SPINCOUNT", "1000")

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray

from benchmarks.list_environments import MODELS
from benchmarks.peers import plain_sasrec
from benchmarks.peers.plain_movielens import Adam
from benchmarks.report import machine, summary_line, table
from conf.load import load_config
from jobs.build_features import run as build_features
from setup.console import SetupError
from setup.locked_environment import is_installed, locked_environment
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
    parser.add_argument("--repeats", type=int, default=3, help="measurements of each contender (default 3)")
    parser.add_argument(
        "--device", choices=["cpu", "cuda"], default="cpu", help="device of the training runs (default cpu)"
    )
    options = parser.parse_args(arguments)
    share, repeats = (QUICK_SHARE, 1) if options.quick else (1, options.repeats)
    of_machine = machine(options.threads, ("torch",))
    sequences = made_up(USERS // share, ITEMS // share, CHOICES // share)
    with torch_threads(options.threads):
        seconds, reasons = measure(sequences, repeats, options.device, install=not options.quick)
    figures = medians(seconds)
    print_table(seconds)
    ratios = ratios_of(figures, reasons)
    print_ratios(ratios, reasons)
    facts = {"seconds": figures.pop("ours"), "choices": sum(map(len, sequences)), "device": options.device}
    peers: dict[str, dict[str, Any]] = {name: {"seconds": value} for name, value in figures.items()}
    peers |= {name: {"reason": reason} for name, reason in reasons.items()}
    print(summary_line("sequence_epoch", of_machine, facts, peers, ratios, aim=AIM))
    return 0


def measure(
    sequences: Sequence[NDArray[np.int64]], repeats: int, device: str, *, install: bool
) -> tuple[dict[str, list[float]], dict[str, str]]:
    """Measures all contenders in turns. First, each contender in this process trains once without being measured.

    Args:
        sequences: the items of each user.
        repeats: number of measurements of each contender.
        device: `cpu` or `cuda`.
        install: whether RePlay's environment is installed if it is missing.

    Returns:
        The seconds of an epoch of each contender, and the reason why a peer was not measured.
    """
    reasons: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        ours, plain_torch = contender(sequences, folder, device), plain(sequences, device)
        contenders: dict[str, Callable[[], float]] = {
            "ours": lambda: epoch_seconds(ours),
            "plain_torch": lambda: epoch_seconds(plain_torch),
        }
        try:
            contenders["replay"] = replay(sequences, folder, device, install=install)
        except SetupError as error:
            reasons["replay"] = str(error)
        for train in (ours, plain_torch):
            train(1)  # the first training run also starts CUDA and compiles kernels
        seconds: dict[str, list[float]] = {name: [] for name in contenders}
        for _ in range(repeats):
            for contender_name, seconds_of_epoch in contenders.items():
                seconds[contender_name].append(seconds_of_epoch())
    return seconds, reasons


def medians(seconds: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """Returns the median of the seconds of each contender."""
    return {name: round(statistics.median(measured), 3) for name, measured in seconds.items()}


def ratios_of(figures: Mapping[str, float], reasons: Mapping[str, str]) -> dict[str, float | None]:
    """Returns each peer's seconds divided by ours; None for a peer that was not measured."""
    ratios = {name: value / figures["ours"] for name, value in figures.items() if name != "ours"}
    return ratios | dict.fromkeys(reasons)


def print_table(seconds: Mapping[str, Sequence[float]]) -> None:
    """Prints the seconds of an epoch of each contender."""
    rows = [
        [name, f"{value:.2f}", str([round(x, 2) for x in seconds[name]])]
        for name, value in medians(seconds).items()
    ]
    print(table(["an epoch", "seconds", "all"], rows))


def print_ratios(ratios: Mapping[str, float | None], reasons: Mapping[str, str]) -> None:
    """Prints each ratio, and why a peer was not measured."""
    for name, ratio in ratios.items():
        if ratio is None:
            print(f"{name}: not measured, {reasons[name]}")
        else:
            print(f"{name}: {ratio:.2f}, {'met' if ratio >= AIM else 'MISSED'}")


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
    """Returns the seconds of an epoch, from training runs of one and of two epochs."""
    taken = []
    for epochs in (1, 2):
        began = time.perf_counter()
        train(epochs)
        taken.append(time.perf_counter() - began)
    return taken[1] - taken[0]


def contender(sequences: Sequence[NDArray[np.int64]], folder: Path, device: str) -> Callable[[int], None]:
    """Builds the features of the log, and returns a function that trains the product's model on a device."""
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
    settings += ["train.global_batch_size=512", "train.keep=last", f"train.device={device}"]
    config = load_config(str(CONFIG), settings)
    build_features(RunContext("build_features", config, RUN_DATE))
    number = 0

    def train(epochs: int) -> None:
        nonlocal number
        number += 1  # another model version, so that no finished run is found
        changed = [*settings, f"train.epochs={epochs}", f"train.seed={number}"]
        of_epochs = load_config(str(CONFIG), changed)
        train_in_process(make_plan(of_epochs, lake, read_dataset(lake, RUN_DATE)))

    return train


def trained_choices(sequences: Sequence[NDArray[np.int64]]) -> list[NDArray[np.int64]]:
    """Returns the choices before the last two of each user, if there are at least two."""
    return [own[:-2] for own in sequences if len(own) > 3]


def plain(sequences: Sequence[NDArray[np.int64]], device: str) -> Callable[[int], None]:
    """Returns a function that trains the plain model on the choices before the last two of each user."""
    trained = trained_choices(sequences)
    items = max(int(own.max()) for own in sequences)

    def train(epochs: int) -> None:
        model = plain_sasrec.SASRec(items, PLACES, DIM, 1, DROPOUT).to(device)
        optimizer, random = Adam(model.parameters()), np.random.default_rng(0)
        for _ in range(epochs):
            plain_sasrec.train_epoch(
                model, optimizer, trained, batch=SEQUENCES, drawn=DRAWN, rate=RATE, random=random
            )

    return train


def replay(
    sequences: Sequence[NDArray[np.int64]], folder: Path, device: str, *, install: bool
) -> Callable[[], float]:
    """Returns a function that returns the seconds of RePlay's second epoch on the same choices.

    Raises:
        SetupError: the environment is not installed, or cannot be installed.
    """
    (model,) = (model for model in MODELS if model.name == "sasrec_replay")
    if not install and not is_installed(model.environment, model.lock):
        raise SetupError(f"{model.lock.name} is not installed; a run without --quick installs it")
    python = locked_environment(model.environment, model.lock, model.check) / "bin/python"
    trained = trained_choices(sequences)
    setting = {
        "items": max(int(own.max()) for own in sequences),
        "sequences": SEQUENCES,
        "drawn": DRAWN,
        "width": DIM,
        "blocks": 1,
        "dropout": DROPOUT,
        "places": PLACES,
    }
    file, threads = folder / "replay.npz", str(torch.get_num_threads())
    starts = np.cumsum([0, *(len(own) for own in trained)])
    items_from_0 = np.concatenate(trained) - 1
    np.savez(file, sequence=items_from_0, starts=starts, setting=np.array(json.dumps(setting)))
    command = [str(python), str(Path(__file__).parent / "peers/replay_epoch.py"), str(file)]
    command += ["--device", device, "--threads", threads, "--epochs", "2", *model.arguments()[2:]]
    environment = {**os.environ, "OMP_NUM_THREADS": threads, "PYTHONPATH": ""}

    def seconds() -> float:
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=environment)
        return float(json.loads(done.stdout.splitlines()[-1])[1])

    return seconds


if __name__ == "__main__":
    sys.exit(main())
