"""Mult-VAE of RecBole and SASRec of RePlay, in an environment of their own (requirements/benchmark-neural.txt).

    python benchmarks/peers/neural_models.py FOLDER --seeds N --k K --torch FOLDER [--quick]

benchmarks/lists.py writes the choices of the task into FOLDER, and this script adds lists.npz. The validation NDCG is measured
after each epoch. A training ends after 50 epochs, or when the NDCG has not risen for 5 epochs; the weights of the best epoch
are kept. The setting with the best NDCG makes the lists of the test. With more than 100,000 choices in the train split, only the
first settings of each grid are tried, because a training takes long. --torch is the folder of the package torch.
"""

from __future__ import annotations

import argparse
import copy
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
if "--torch" in sys.argv[:-1]:
    sys.path.append(sys.argv[sys.argv.index("--torch") + 1])  # last: the other packages are those of this environment

import numpy as np
from scipy.sparse import load_npz

from benchmarks.list_measures import Lists, gains, top

EPOCHS, PATIENCE = 50, 5
LONG, LONG_SETTINGS = 100_000, 2
# In the order in which they are tried.
GRIDS: dict[str, tuple[dict[str, Any], ...]] = {
    "mult_vae": tuple(
        {"latent": latent, "dropout": dropout, "anneal_cap": cap}
        for latent in (64, 200)
        for cap in (0.2, 0.05)
        for dropout in (0.5, 0.7)
    ),
    "sasrec_replay": tuple(
        {"width": 64, "dropout": dropout, "places": places} for places in (50, 200) for dropout in (0.5, 0.2)
    ),
}


class Fit:
    """A model with the weights of its best epoch.

    Attributes:
        validation_ndcg: its NDCG on the validation items.
        epochs: the number of epochs after which it had this NDCG.
    """

    def __init__(self, model: Any, validation_ndcg: Callable[[Any], float], epochs: int) -> None:
        self.model, self.validation_ndcg, self.epochs = model, -1.0, 0
        best: dict[str, Any] = {}
        for epoch in range(1, epochs + 1):
            model.train_epoch()
            ndcg = validation_ndcg(model)
            if ndcg > self.validation_ndcg:
                self.validation_ndcg, self.epochs = ndcg, epoch
                best = copy.deepcopy(model.module.state_dict())
            elif epoch - self.epochs >= PATIENCE:
                break
        model.module.load_state_dict(best)


def main() -> int:
    """Runs the peers; returns the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("folder", type=Path, help="the folder that benchmarks/lists.py wrote")
    parser.add_argument("--seeds", type=int, required=True, help="number of seeds")
    parser.add_argument("--k", type=int, required=True, help="items per list")
    parser.add_argument("--torch", required=True, help="the folder of the package torch")
    parser.add_argument("--quick", action="store_true", help="train one epoch of one setting per model")
    options = parser.parse_args()
    from benchmarks.peers.multvae_recbole import MultVAE
    from benchmarks.peers.sasrec_replay import SASRecPeer

    train, history, rated, excluded = (
        load_npz(options.folder / f"{name}.npz") for name in ("train", "history", "rated", "excluded")
    )
    validation, sequence, starts = (
        np.load(options.folder / f"{name}.npy") for name in ("validation", "sequence", "starts")
    )
    makers: dict[str, Callable[[dict[str, Any], int], Any]] = {
        "mult_vae": lambda setting, seed: MultVAE(train, setting, seed),
        "sasrec_replay": lambda setting, seed: SASRecPeer(sequence, starts, train.shape[1], setting, seed),
    }
    inputs = {"mult_vae": (train, history), "sasrec_replay": (None, validation)}
    lists: dict[str, Lists] = {}
    facts = {}
    for name, make in makers.items():
        before, after = inputs[name]

        def validation_ndcg(model: Any, before: Any = before) -> float:
            model.read(before)
            return float(gains(top(model.scores, rated, options.k), validation)[:, 1].mean())

        settings = GRIDS[name][: LONG_SETTINGS if train.nnz > LONG else None][: 1 if options.quick else None]
        tried = []
        for setting in settings:
            tried.append(Fit(make(setting, 0), validation_ndcg, 1 if options.quick else EPOCHS))
            line = f"lists: {name} {setting}: validation {tried[-1].validation_ndcg:.4f}, {tried[-1].epochs} epochs"
            print(line, file=sys.stderr, flush=True)
        best = max(range(len(tried)), key=lambda number: (tried[number].validation_ndcg, -number))
        for seed in range(options.seeds):
            fit = tried[best]
            if seed:
                fit = Fit(make(settings[best], seed), validation_ndcg, 1 if options.quick else EPOCHS)
            for suffix, read in ((f"{seed}", after), (f"train_{seed}", before)):
                fit.model.read(read)
                lists[f"{name}_{suffix}"] = top(fit.model.scores, excluded, options.k)
        facts[name] = {
            "setting": settings[best],
            "settings_tried": len(settings),
            "epochs": tried[best].epochs,
            "validation_ndcg": tried[best].validation_ndcg,
        }
    np.savez(options.folder / "lists.npz", **lists)
    print(json.dumps(facts))
    return 0


if __name__ == "__main__":
    sys.exit(main())
