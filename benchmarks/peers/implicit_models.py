"""ALS and BPR of the library implicit, in the library's own environment (requirements/benchmark-lists.txt).

    python benchmarks/peers/implicit_models.py FOLDER --seeds N --k K [--models NAME …] [--quick]

benchmarks/lists.py writes the matrices of the task into FOLDER, and this script adds lists.npz. For each model, every setting
of a grid of eight is fitted on the train split and measured on the validation items; the setting with the best NDCG makes
the lists of the test. ALS computes the vector of a user from the choices of the train and validation splits, and its item
vectors are fitted on the train split. BPR cannot compute a vector from choices: its vectors are fitted on the train split.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import numpy as np
from implicit.als import AlternatingLeastSquares
from implicit.bpr import BayesianPersonalizedRanking
from scipy.sparse import csr_matrix, load_npz

from benchmarks.list_measures import Matrix, gains, top
from benchmarks.list_samples import best_samples

GRIDS: dict[str, dict[str, tuple[Any, ...]]] = {
    "als": {"factors": (32, 64), "regularization": (1.0, 10.0), "alpha": (1.0, 10.0)},
    "bpr": {"factors": (32, 64), "regularization": (0.001, 0.01), "iterations": (50, 150)},
}


def fit(name: str, setting: dict[str, Any], train: csr_matrix, seed: int) -> Any:
    """Returns the fitted model. With more than one thread, BPR would not give the same result again."""
    kind = AlternatingLeastSquares if name == "als" else BayesianPersonalizedRanking
    model = kind(random_state=seed, num_threads=1, **setting)
    model.fit(train, show_progress=False)
    return model


def scores_of(name: str, model: Any, history: csr_matrix) -> Callable[[slice], Matrix]:
    """Returns a function that computes the scores (u, I) of a range of users. ALS computes the users' vectors from `history`."""
    users = np.arange(history.shape[0])
    vectors = model.recalculate_user(users, history) if name == "als" else model.user_factors
    items = model.item_factors
    return lambda chosen: (vectors[chosen] @ items.T).astype(np.float64)


def main() -> int:
    """Runs the peers; returns the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("folder", type=Path, help="the folder that benchmarks/lists.py wrote")
    parser.add_argument("--seeds", type=int, required=True, help="number of seeds")
    parser.add_argument("--k", type=int, required=True, help="items per list")
    parser.add_argument("--models", nargs="+", choices=[*GRIDS], default=[*GRIDS], help="the models to run")
    parser.add_argument("--quick", action="store_true", help="fit only one setting per model")
    options = parser.parse_args()
    train, history, rated, excluded = (
        load_npz(options.folder / f"{name}.npz") for name in ("train", "history", "rated", "excluded")
    )
    validation, lists, facts = np.load(options.folder / "validation.npy"), {}, {}
    with np.load(options.folder / "samples.npz") as stored:
        samples = dict(stored)
    for name in options.models:
        grid = GRIDS[name]
        settings = [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]
        scored = []
        for setting in settings[:1] if options.quick else settings:
            model = fit(name, setting, train, seed=0)
            found = top(scores_of(name, model, train), rated, options.k)
            scored.append((float(gains(found, validation)[:, 1].mean()), setting))
            print(f"lists: {name} {setting}: validation {scored[-1][0]:.4f}", file=sys.stderr, flush=True)
        ndcg, best = max(scored, key=lambda pair: pair[0])
        facts[name] = {"setting": best, "settings_tried": len(scored), "validation_ndcg": ndcg}
        for seed in range(options.seeds):
            model = fit(name, best, train, seed)
            scores = scores_of(name, model, history)
            lists[f"{name}_{seed}"] = top(scores, excluded, options.k)
            for protocol, drawn in samples.items():
                lists[f"{name}_{protocol}_{seed}"] = best_samples(scores, drawn, options.k)
            if name == "als":
                lists[f"als_train_{seed}"] = top(scores_of(name, model, train), excluded, options.k)
    np.savez(options.folder / "lists.npz", **lists)
    print(json.dumps(facts))
    return 0


if __name__ == "__main__":
    sys.exit(main())
