"""Mult-VAE and SLIM of RecBole, SASRec and BERT4Rec of RePlay, in an environment of their own (requirements/benchmark-neural.txt).

    python benchmarks/peers/neural_models.py FOLDER --seeds N --k K --torch FOLDER [--models NAME …] [--quick]

benchmarks/lists.py writes the choices of the task into FOLDER, and this script adds lists.npz. The validation NDCG is measured
after each epoch. Training ends after 50 epochs, or when the NDCG has not risen for 5 epochs; the weights of the best epoch
are kept. The setting with the best NDCG makes the lists of the test. With more than 100,000 choices in the train split, only the
first settings of each grid are tried, because training takes long; the JSON object says why a model was not trained at all.
--torch is the folder of the package torch.
"""

from __future__ import annotations

import argparse
import copy
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
if "--torch" in sys.argv[:-1]:  # at the end: the other packages are those of this environment
    sys.path.append(sys.argv[sys.argv.index("--torch") + 1])

import numpy as np
from scipy.sparse import csr_matrix, load_npz

from benchmarks.list_measures import Lists, gains, top
from benchmarks.list_samples import best_samples

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
    "bert4rec_replay": tuple(
        {"width": 64, "dropout": dropout, "places": 50, "masked": masked}
        for masked in (0.6, 0.2)
        for dropout in (0.2, 0.5)
    ),
    "slim": tuple(
        {"alpha": alpha, "l1_ratio": share} for share in (0.02, 0.005) for alpha in (0.2, 0.1, 0.5, 1.0)
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


@dataclass(frozen=True)
class Kind:
    """A kind of model.

    Attributes:
        make: returns a new model of a setting and a seed.
        before: what the model reads on the validation items: choices of the train split.
        after: what it reads on the test items: choices of the train split, and the validation items.
        epochs: largest number of epochs; None for EPOCHS.
        most_items: the model is not trained if there are more items; None: no limit.
    """

    make: Callable[[dict[str, Any], int], Any]
    before: Any
    after: Any
    epochs: int | None = None
    most_items: int | None = None


def kinds_of(folder: Path, train: csr_matrix) -> dict[str, Kind]:
    """Returns the kinds of models by name. The libraries are imported only here."""
    from benchmarks.peers.bert4rec_replay import BERT4RecPeer
    from benchmarks.peers.multvae_recbole import MultVAE
    from benchmarks.peers.sasrec_replay import SASRecPeer
    from benchmarks.peers.slim_recbole import MOST_ITEMS, SLIM

    validation, sequence, starts = (
        np.load(folder / f"{name}.npy") for name in ("validation", "sequence", "starts")
    )
    history = load_npz(folder / "history.npz")

    def sequences(model: type[Any]) -> Kind:
        return Kind(
            lambda setting, seed: model(sequence, starts, train.shape[1], setting, seed), None, validation
        )

    return {
        "mult_vae": Kind(lambda setting, seed: MultVAE(train, setting, seed), train, history),
        "slim": Kind(
            lambda setting, seed: SLIM(train, setting, seed), train, history, epochs=1, most_items=MOST_ITEMS
        ),
        "sasrec_replay": sequences(SASRecPeer),
        "bert4rec_replay": sequences(BERT4RecPeer),
    }


def run(name: str, kind: Kind, train: csr_matrix, options: Any) -> tuple[dict[str, Lists], dict[str, Any]]:
    """Returns the lists of the test by name of model and seed, and the facts of the tuning."""
    if kind.most_items is not None and train.shape[1] > kind.most_items:
        return {}, {"reason": f"{name} takes too long for more than {kind.most_items} items"}
    rated, excluded = (load_npz(options.folder / f"{matrix}.npz") for matrix in ("rated", "excluded"))
    validation, epochs = (
        np.load(options.folder / "validation.npy"),
        1 if options.quick else kind.epochs or EPOCHS,
    )

    def fit(setting: dict[str, Any], seed: int) -> Fit:
        def validation_ndcg(model: Any) -> float:
            model.read(kind.before)
            return float(gains(top(model.scores, rated, options.k), validation)[:, 1].mean())

        found = Fit(kind.make(setting, seed), validation_ndcg, epochs)
        line = f"lists: {name} {setting}, seed {seed}: validation {found.validation_ndcg:.4f}"
        print(f"{line}, {found.epochs} epochs", file=sys.stderr, flush=True)
        return found

    settings = GRIDS[name][: LONG_SETTINGS if train.nnz > LONG else None][: 1 if options.quick else None]
    best = fit(settings[0], 0)
    setting = settings[0]
    for other in settings[1:]:
        found = fit(other, 0)
        if found.validation_ndcg > best.validation_ndcg:
            best, setting = found, other
    lists = {}
    with np.load(options.folder / "samples.npz") as stored:
        samples = dict(stored)
    for seed in range(options.seeds):
        model = (fit(setting, seed) if seed else best).model
        model.read(kind.before)
        lists[f"{name}_train_{seed}"] = top(model.scores, excluded, options.k)
        model.read(kind.after)
        lists[f"{name}_{seed}"] = top(model.scores, excluded, options.k)
        for protocol, drawn in samples.items():
            lists[f"{name}_{protocol}_{seed}"] = best_samples(model.scores, drawn, options.k)
    facts = {"setting": setting, "settings_tried": len(settings), "epochs": best.epochs}
    return lists, {**facts, "validation_ndcg": best.validation_ndcg}


def main() -> int:
    """Runs the peers; returns the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("folder", type=Path, help="the folder that benchmarks/lists.py wrote")
    parser.add_argument("--seeds", type=int, required=True, help="number of seeds")
    parser.add_argument("--k", type=int, required=True, help="items per list")
    parser.add_argument("--models", nargs="+", choices=[*GRIDS], default=[*GRIDS], help="the models to run")
    parser.add_argument("--torch", required=True, help="the folder of the package torch")
    parser.add_argument("--quick", action="store_true", help="train one epoch of one setting per model")
    options = parser.parse_args()
    train = load_npz(options.folder / "train.npz")
    lists: dict[str, Lists] = {}
    facts = {}
    kinds = kinds_of(options.folder, train)
    for name in options.models:
        found, facts[name] = run(name, kinds[name], train, options)
        lists |= found
    np.savez(options.folder / "lists.npz", **lists)
    print(json.dumps(facts))
    return 0


if __name__ == "__main__":
    sys.exit(main())
