"""Tests of the peers of benchmarks/lists.py that run in environments of their own, and of how their scripts are run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from numpy.typing import NDArray

from benchmarks import list_environments
from benchmarks.list_environments import MODELS, LibraryModel, run_environments, write_task
from benchmarks.list_parts import Parts
from benchmarks.list_task import Task, make_task, popular_lists, popular_samples
from benchmarks.peers.neural_models import EPOCHS, GRIDS, PATIENCE, Fit
from setup.console import cache_folder
from setup.locked_environment import is_installed

ROOT = Path(__file__).parents[2]
NEURAL = next(model for model in MODELS if model.environment == "benchmark-neural")
needs_neural = pytest.mark.skipif(
    not is_installed(NEURAL.environment, NEURAL.lock),
    reason="benchmark-neural is not installed; benchmarks/lists.py installs it",
)

# A script of a peer that only checks its input: the list of user u for a seed starts with item seed, or seed + 3
# if it comes from the train split.
SCRIPT = """
import json, sys
import numpy as np
folder, arguments = sys.argv[1], sys.argv[2:]
seeds, k = (int(arguments[arguments.index(name) + 1]) for name in ("--seeds", "--k"))
(model,) = arguments[arguments.index("--models") + 1 :]
users = len(np.load(f"{folder}/starts.npy")) - 1
lists = {
    f"{name}_{part}{seed}": np.tile(np.arange(k) + seed + (3 if part else 0), (users, 1))
    for name in ("deep", "flat") for part in ("", "train_") for seed in range(seeds)
}
# The samples of a seed are the samples that start at place seed.
with np.load(f"{folder}/samples.npz") as samples:
    for protocol in samples:
        for name in ("deep", "flat"):
            for seed in range(seeds):
                lists[f"{name}_{protocol}_{seed}"] = samples[protocol][:, seed:seed + k]
np.savez(f"{folder}/lists.npz", **lists)
print("a line that is not the result")
facts = {"deep": {"setting": 1}, "flat": {"setting": "--quick" in arguments}, "none": {"reason": "too long"}}
print(json.dumps({model: facts[model]}))
"""


def chains(users: int = 60, items: int = 12, length: int = 8) -> Task:
    """Returns a task in which every user chooses items one after the other in a cycle; the last user has no train row."""
    rows = [
        (f"{user:03}", f"{(user + step) % items:03}", step) for user in range(users) for step in range(length)
    ]
    rows += [("cold", f"{step:03}", step) for step in range(2)]
    frame = pd.DataFrame(rows, columns=["user", "item", "time"]).assign(positive=True)
    return make_task(frame)


@pytest.mark.processes
def test_lists_of_a_script_belong_to_their_model_history_and_seed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    models = (
        LibraryModel(name, "peers", "", str(script), uses_history)
        for name, uses_history in (("deep", True), ("flat", False), ("none", True))
    )
    monkeypatch.setattr(list_environments, "MODELS", tuple(models))
    monkeypatch.setattr(
        list_environments, "locked_environment", lambda *_: Path(sys.executable).parent.parent
    )
    task = chains()
    peers = run_environments(task, 3, 2, "log", Parts(), quick=False)
    popular, cold = popular_lists(task, 3), task.users.get_loc("cold")
    assert list(peers) == ["deep", "flat", "none"]
    assert peers["none"].lists == []
    assert peers["none"].facts == {"reason": "too long"}

    def expected(first: int, *, knows_cold: bool) -> list[list[int]]:
        lists = np.tile(np.arange(3) + first, (len(task.users), 1))
        if not knows_cold:
            lists[cold] = popular[cold]
        return lists.tolist()

    # The cold user has no choice in the train split, and the validation item in the history of the test.
    assert [one.tolist() for one in peers["deep"].lists] == [
        expected(0, knows_cold=True),
        expected(1, knows_cold=True),
    ]
    assert [one.tolist() for one in peers["deep"].train_lists] == [
        expected(3, knows_cold=False),
        expected(4, knows_cold=False),
    ]
    assert [one.tolist() for one in peers["flat"].lists] == [
        expected(0, knows_cold=False),
        expected(1, knows_cold=False),
    ]
    assert peers["flat"].train_lists == []
    for protocol, samples in task.samples.items():
        for name, knows_cold in (("deep", True), ("flat", False)):
            for seed, lists in enumerate(peers[name].samples[protocol]):
                chosen = samples[:, seed : seed + 3].copy()
                if not knows_cold:
                    chosen[cold] = popular_samples(task, 3)[protocol][cold]
                assert lists.tolist() == chosen.tolist()
    assert peers["deep"].facts == {"setting": 1}
    assert peers["flat"].facts == {"setting": False}  # no --quick


def test_a_quick_run_installs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> Path:
        raise AssertionError("a quick run installs an environment")

    monkeypatch.setattr(list_environments, "is_installed", lambda *_: False)
    monkeypatch.setattr(list_environments, "locked_environment", refuse)
    peers = run_environments(chains(), 3, 1, "log", Parts(), quick=True)
    assert set(peers) == {"als", "bpr", "mult_vae", "slim", "sasrec_replay", "bert4rec_replay"}
    for peer in peers.values():
        assert peer.lists == []
        assert "is not installed; a run without --quick installs it" in peer.facts["reason"]


def test_the_torch_of_the_peers_is_ours() -> None:
    *models, name, folder = NEURAL.arguments()
    assert models == ["--models", NEURAL.name]
    assert name == "--torch"
    assert (Path(folder) / "torch/__init__.py").is_file()
    assert folder in [str(Path(entry).resolve()) for entry in sys.path]
    assert MODELS[0].arguments() == ["--models", "als"]


class Planned:
    """A model whose validation NDCG after each epoch is planned. Its state is the number of epochs."""

    def __init__(self, plan: list[float]) -> None:
        self.plan, self.epoch, self.module = plan, 0, self

    def train_epoch(self) -> None:
        self.epoch += 1

    def state_dict(self) -> dict[str, Any]:
        return {"epoch": self.epoch}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.epoch = state["epoch"]


def planned(plan: list[float], epochs: int) -> tuple[Fit, int]:
    """Returns the fit, and the number of epochs that were trained."""
    measured = []

    def ndcg(model: Planned) -> float:
        measured.append(model.epoch)
        return model.plan[model.epoch - 1]

    return Fit(Planned(plan), ndcg, epochs), len(measured)


def test_a_fit_keeps_the_best_epoch_and_stops_when_it_no_longer_improves() -> None:
    fit, trained = planned([0.1, 0.3, 0.2, 0.3, 0.2, 0.1, 0.1, 0.9], epochs=8)
    assert (fit.epochs, fit.validation_ndcg, fit.model.epoch) == (2, 0.3, 2)
    assert trained == 2 + PATIENCE
    fit, trained = planned([0.1, 0.2, 0.15, 0.4], epochs=4)
    assert (fit.epochs, fit.validation_ndcg, fit.model.epoch, trained) == (4, 0.4, 4, 4)
    assert EPOCHS > PATIENCE


def test_no_setting_is_tried_twice() -> None:
    for grid in GRIDS.values():
        assert len({tuple(sorted(setting.items())) for setting in grid}) == len(grid)


@pytest.mark.processes
@needs_neural
def test_the_neural_peers_learn_which_item_follows(tmp_path: Path) -> None:
    """The next item is certain for a model that reads the order, and one of two neighbours for one that does not."""
    task = chains()
    write_task(task, tmp_path)
    program = tmp_path / "messages.py"
    program.write_text(
        "import sys\n"
        f"sys.path.insert(0, {str(ROOT)!r})\n"
        "from benchmarks.peers import neural_models\n"
        "neural_models.GRIDS = {name: grid[:1] for name, grid in neural_models.GRIDS.items()}\n"
        "neural_models.EPOCHS = 25\n"
        "sys.exit(neural_models.main())\n"
    )
    python = cache_folder() / NEURAL.environment / "bin/python"
    torch_folder = NEURAL.arguments()[-2:]
    command = [str(python), str(program), str(tmp_path), "--seeds", "2", "--k", "2", *torch_folder]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": ""}
    subprocess.run(command, check=True, capture_output=True, env=environment)
    with np.load(tmp_path / "lists.npz") as stored:
        lists: dict[str, NDArray[np.int64]] = {name: stored[name] for name in stored}
    warm = task.warm_test >= 0

    def hit_rate(name: str, k: int) -> float:
        return float((lists[name][warm, :k] == task.test[warm][:, None]).any(1).mean())

    for seed in (0, 1):
        assert hit_rate(f"sasrec_replay_{seed}", 1) > 0.9
        # Without the validation item, the item that follows is the validation item, which is excluded.
        assert hit_rate(f"mult_vae_{seed}", 2) > 0.9
        assert hit_rate(f"slim_{seed}", 2) > 0.9
        assert hit_rate(f"bert4rec_replay_{seed}", 1) > 0.7
    assert (lists["sasrec_replay_0"] != lists["sasrec_replay_train_0"]).any()
    assert (lists["mult_vae_0"] != lists["mult_vae_1"]).any() or (
        lists["sasrec_replay_0"] != lists["sasrec_replay_1"]
    ).any()
