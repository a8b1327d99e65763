"""The plan of a comparison: which experiments a file has, what their configurations are, what is refused."""

from __future__ import annotations

import itertools
import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from conf.errors import ConfigError
from conf.experiments import (
    HEAD,
    Experiment,
    Experiments,
    configuration_files,
    nightly_command,
    plan_experiments,
    plan_space,
    plan_trial,
    read_experiments,
    space_values,
)
from conf.load import load_config
from conf.types import Config
from jobs.checks import check_experiments
from training.settings import complete

ROOT = Path(__file__).parents[2]
GENERATED = str(ROOT / "conf/datasets/generated.yaml")
CONFIG = load_config(GENERATED)


def plan(
    folder: Path, contents: Mapping[str, Any], config: Config = CONFIG, *, checked: bool = True
) -> list[Experiment]:
    path = folder / "experiments.yaml"
    path.write_text(yaml.safe_dump({"name": "trial", **contents}, sort_keys=False))
    experiments = plan_experiments(config, read_experiments(str(path)), str(path))
    if checked:
        check_experiments(str(path), experiments)
    return experiments


# Key -> values that the configuration accepts.
VALUES: dict[str, list[Any]] = {
    "train.learning_rate": [0.001, 0.01, 0.1],
    "train.epochs": [1, 2, 3],
    "train.precision": ["fp32", "bf16"],
    "train.embeddings.optimizer": ["row_wise_adagrad", "sgd"],
    "model.top_mlp": [[8], [16, 8], []],
    "model.embedding_storage": ["fp32", "bf16"],
}


@st.composite
def grids(draw: st.DrawFn) -> dict[str, list[Any]]:
    keys = draw(st.lists(st.sampled_from(sorted(VALUES)), unique=True, min_size=1, max_size=3))
    return {
        key: draw(st.lists(st.sampled_from(VALUES[key]), unique_by=repr, min_size=1, max_size=3))
        for key in keys
    }


def at(config: Config, key: str) -> Any:
    value: Any = config.model_dump(mode="json")
    for part in key.split("."):
        value = value[part]
    return value


@settings(deadline=None, max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(grids(), st.lists(st.integers(0, 9), unique=True, min_size=1, max_size=3))
def test_a_grid_has_every_combination_once(
    tmp_path: Path, grid: dict[str, list[Any]], seeds: list[int]
) -> None:
    combinations = list(itertools.product(*grid.values()))
    contents = {"grid": grid, "repeat_seeds": seeds}
    experiments = plan(tmp_path, contents, checked=False)
    for experiment, combination in zip(experiments, combinations, strict=True):
        assert list(experiment.configs) == seeds
        for seed, config in experiment.configs.items():
            expected = dict(zip(grid, combination, strict=True))
            assert {key: at(config, key) for key in grid} == expected
            assert dict(experiment.changes) == expected
            assert config.train.seed == seed
            assert config.train.baselines == []
            kept = CONFIG.model_dump(mode="json", exclude={"model", "train"})
            assert config.model_dump(mode="json", exclude={"model", "train"}) == kept
            for key in VALUES.keys() - grid.keys() - {"model.embedding_storage"}:
                assert at(config, key) == at(CONFIG, key)
    assert len({experiment.name for experiment in experiments}) == len(experiments)


def test_names_of_a_grid_and_order_of_its_experiments(tmp_path: Path) -> None:
    grid = {"train.learning_rate": [0.001, 0.01], "model.top_mlp": [[8], [16, 8]]}
    assert [experiment.name for experiment in plan(tmp_path, {"grid": grid})] == [
        "learning_rate=0.001, top_mlp=[8]",
        "learning_rate=0.001, top_mlp=[16, 8]",
        "learning_rate=0.01, top_mlp=[8]",
        "learning_rate=0.01, top_mlp=[16, 8]",
    ]


def test_without_seeds_the_seed_is_that_of_the_configuration(tmp_path: Path) -> None:
    config = load_config(GENERATED, ["train.seed=7"])
    (experiment,) = plan(tmp_path, {"runs": [{"name": "base"}]}, config)
    assert list(experiment.configs) == [7]
    assert experiment.configs[7] == config.model_copy(
        update={"train": config.train.model_copy(update={"baselines": []})}
    )


def test_a_model_file_is_relative_to_the_experiments_file_and_replaces_the_model(tmp_path: Path) -> None:
    model = {"architecture": "deepfm", "embedding_dim": 4, "deep": [8]}
    (tmp_path / "fm.yaml").write_text(yaml.safe_dump(model))
    # A key of `model` applies to the model file, whichever of the two is written first.
    run = {"name": "fm", "set": {"model.embedding_dim": 12, "model": "fm.yaml"}}
    (experiment,) = plan(tmp_path, {"runs": [run]})
    config = experiment.configs[CONFIG.train.seed]
    assert config.model.architecture == "deepfm"
    assert config.model.settings == {"embedding_dim": 12, "deep": [8]}
    assert list(experiment.changes) == ["model", "model.embedding_dim"]


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "unknown key": ({"grid": {"train.learning_rat": [0.1]}}, r"unknown key train\.learning_rat=0\.1"),
    "unknown model setting": ({"grid": {"model.dropuot": [0.1]}}, r"unknown key model\.dropuot=0\.1"),
    "unknown section": ({"grid": {"trian.epochs": [1]}}, r"trian\.epochs=1 may not vary.*no section trian"),
    "refused value": ({"grid": {"train.learning_rate": [0.1, -1]}}, r"train\.learning_rate=-1: .*greater"),
    "unknown architecture": (
        {"runs": [{"name": "a", "set": {"model": {"architecture": "dlmr"}}}]},
        "model.architecture='dlmr' does not exist",
    ),
    "refused combination": ({"grid": {"train.num_shards": [5]}}, "must be a multiple of num_shards=5"),
    "below a value": ({"grid": {"train.epochs.x": [1]}}, "epochs is 1, not a section"),
    "features": ({"grid": {"features": [[]]}}, "share one published dataset"),
    "split": ({"grid": {"split.train_days": [3]}}, "share one published dataset"),
    "seed": ({"grid": {"train.seed": [1, 2]}}, "list the seeds in repeat_seeds"),
    "baselines": ({"grid": {"train.baselines": [[]]}}, "train.baselines=.* may not vary"),
    "warm start": ({"grid": {"train.retrain.start": ["fresh"]}}, "starts from random weights"),
    "whole section": ({"grid": {"train": [{}]}}, "does not name a setting"),
    "empty part": ({"grid": {"train..epochs": [1]}}, "does not name a setting"),
    "empty grid": ({"grid": {}}, "grid is empty"),
    "key without values": ({"grid": {"train.epochs": []}}, "no values for train.epochs"),
    "repeated value": (
        {"grid": {"train.learning_rate": [1, 1.0]}},
        "grid: the list of train.learning_rate contains 1.0 twice",
    ),
    "no runs": ({"runs": []}, "runs is empty"),
    "repeated name": (
        {"runs": [{"name": "a"}, {"name": "a"}]},
        "the list of names in runs contains 'a' twice",
    ),
    "repeated seed": ({"runs": [{"name": "a"}], "repeat_seeds": [1, 1]}, "repeat_seeds contains 1 twice"),
    "no seeds": ({"runs": [{"name": "a"}], "repeat_seeds": []}, "repeat_seeds"),
    "both": ({"runs": [{"name": "a"}], "grid": {"train.epochs": [1]}}, "exactly one of the keys"),
    "neither": ({}, "exactly one of the keys"),
    "too many": (
        {"grid": {"train.epochs": list(range(1, 102))}},
        "101 training runs; one file may need at most 100",
    ),
    "test split": ({"runs": [{"name": "a"}], "choose_by": "test.auc"}, "choose_by='test.auc'"),
    "lists": ({"runs": [{"name": "a"}], "choose_by": "ndcg"}, "choose_by='ndcg'"),
    "misspelled": ({"runs": [{"name": "a", "sets": {}}]}, "unknown key runs.0.sets"),
    "search and runs": (
        {"runs": [{"name": "a"}], "search": {"trials": 2, "space": {"train.epochs": {"low": 1, "high": 2}}}},
        "exactly one of the keys `runs`, `grid` and `search`",
    ),
    "search and seeds": (
        {"search": {"trials": 2, "space": {"train.epochs": {"low": 1, "high": 2}}}, "repeat_seeds": [1]},
        r"repeat_seeds=\[1\] cannot repeat the trials",
    ),
    "folder": ({"name": "a/b", "runs": [{"name": "a"}]}, "name of a folder"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_wrong_file_is_refused(tmp_path: Path, case: str) -> None:
    contents, message = REFUSED[case]
    with pytest.raises(ConfigError) as caught:
        plan(tmp_path, contents)
    assert re.search(message, str(caught.value)), caught.value
    assert str(tmp_path / "experiments.yaml") in caught.value.problem
    assert caught.value.remedy


def searched(folder: Path, config: Config = CONFIG, **section: Any) -> dict[str, list[Experiment]]:
    """The experiments by which the space of a search is checked."""
    path = folder / "experiments.yaml"
    path.write_text(yaml.safe_dump({"name": "trial", "search": {"trials": 5, **section}}))
    experiments = plan_space(config, read_experiments(str(path)), str(path))
    for of_key in experiments.values():
        check_experiments(str(path), of_key)
    return experiments


SPACES: dict[str, tuple[Any, str]] = {
    "low above high": (
        {"low": 0.1, "high": 0.01},
        r"low=0\.1 is not less than high=0\.01: write the smaller",
    ),
    "one value": ({"low": 2, "high": 2}, "low=2 is not less than high=2"),
    "log of zero": (
        {"low": 0, "high": 1, "log": True},
        "low=0 has no logarithm, which log=true needs: write a low",
    ),
    "no high": ({"low": 1}, "low=1 and high=None: write both"),
    "text": ({"low": "little", "high": 1}, "low='little': write a number"),
    "boolean": ({"low": False, "high": 1}, "low=False: write a number"),
    "infinity": ({"low": 0.0, "high": float("inf")}, "high=inf: write a number"),
    "unknown key": ({"low": 1, "high": 2, "step": 1}, "unknown key .*step=1"),
    "two forms": ({"low": 1, "choices": [1, 2]}, r"choices=\[1, 2\] cannot be combined with the keys"),
    "one choice": ({"choices": [1]}, r"choices=\[1\] leaves nothing to search"),
    "equal choices": ({"choices": [1, 1.0]}, "the list of choices contains 1.0 twice"),
    "no values": ({}, "low=None and high=None: write both"),
    "neither": (3, "search.space.train.epochs"),
}


@pytest.mark.parametrize("case", SPACES)
def test_wrong_values_of_a_search_are_refused(tmp_path: Path, case: str) -> None:
    values, message = SPACES[case]
    with pytest.raises(ConfigError) as caught:
        searched(tmp_path, space={"train.epochs": values})
    assert re.search(message, caught.value.problem), caught.value
    assert "search.space.train.epochs" in caught.value.problem
    assert str(tmp_path / "experiments.yaml") in caught.value.problem
    assert caught.value.remedy


@pytest.mark.parametrize(
    "section, message",
    [
        ({"space": {}}, "search.space"),
        (
            {"space": {"train.epochs": {"low": 1, "high": 2}}, "trials": 101},
            "trials=101, but one file may need",
        ),
        ({"space": {"train.epochs": {"low": 1, "high": 2}}, "trials": 0}, "search.trials=0"),
        ({"space": {"train.epochs": {"low": 1, "high": 2}}, "timeout": 0}, "search.timeout=0"),
        ({"space": {"train.seed": {"low": 1, "high": 2}}}, "train.seed=1 may not vary"),
        ({"space": {"features": {"choices": [[], [1]]}}}, "share one published dataset"),
        ({"space": {"train.epochs": {"low": 1.0, "high": 2.0}}}, r"train.epochs=1\.38.*valid integer"),
    ],
)
def test_a_wrong_search_is_refused(tmp_path: Path, section: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        searched(tmp_path, **section)
    assert str(tmp_path / "experiments.yaml") in caught.value.problem


def test_a_space_is_checked_at_its_ends_and_choices(tmp_path: Path) -> None:
    (tmp_path / "fm.yaml").write_text("{architecture: deepfm, embedding_dim: 4, deep: [8]}")
    space = {
        "train.learning_rate": {"low": "1e-4", "high": 0.1, "log": True},
        "train.epochs": {"low": 1, "high": 4},
        "model.deep": {"choices": [[8], [16]]},
        "model": {"choices": ["fm.yaml", {"architecture": "deepfm", "embedding_dim": 8}]},
    }
    planned = searched(tmp_path, space=space)
    assert [one.changes for one in planned["train.epochs"]] == [{"train.epochs": 1}, {"train.epochs": 4}]
    rates = [one.changes["train.learning_rate"] for one in planned["train.learning_rate"]]
    assert rates[:2] == [1e-4, 0.1]
    assert 1e-4 < rates[2] < 0.1
    assert all(one.changes["model"] == str(tmp_path / "fm.yaml") for one in planned["model.deep"])
    path = str(tmp_path / "experiments.yaml")
    contents = read_experiments(path)
    assert contents.search is not None
    values = {"train.learning_rate": 0.03, "train.epochs": 2, "model.deep": [16], "model": "fm.yaml"}
    trial = plan_trial(CONFIG, contents, path, 7, values)
    assert trial.name == "trial 7"
    assert trial.changes == {**values, "model": str(tmp_path / "fm.yaml")}
    (config,) = trial.configs.values()
    assert config.model.settings["deep"] == [16]
    assert config.train.seed == CONFIG.train.seed
    assert space_values(contents.search, path)["model"]["choices"][0] == str(tmp_path / "fm.yaml")


def test_measures_of_probabilities_need_probabilities(tmp_path: Path) -> None:
    config = load_config(str(ROOT / "conf/datasets/movielens.yaml"))
    run = {"name": "pairs", "set": {"train.loss": "bpr", "train.negatives": {"per_positive": 3}}}
    with pytest.raises(ConfigError, match="choose_by=log_loss needs probabilities"):
        plan(tmp_path, {"runs": [run]}, config)
    (experiment,) = plan(tmp_path, {"runs": [run], "choose_by": "auc"}, config)
    assert experiment.configs[config.train.seed].train.loss == "bpr"


@pytest.mark.parametrize(
    "file", sorted((ROOT / "conf/experiments").glob("*.yaml")), ids=lambda file: file.stem
)
def test_a_shipped_file_fits_the_configuration_of_its_name(file: Path) -> None:
    config = load_config(str(ROOT / "conf/datasets" / file.name.replace("_search", "")))
    contents = read_experiments(str(file))
    if contents.search:
        for examples in plan_space(config, contents, str(file)).values():
            check_experiments(str(file), examples)
        return
    experiments = plan_experiments(config, contents, str(file))
    check_experiments(str(file), experiments)
    configs = [config for experiment in experiments for config in experiment.configs.values()]
    assert len({config.model.architecture for config in configs}) > 2


CHOSEN: list[dict[str, Any]] = [
    {},
    {"train.learning_rate": 0.25, "train.embeddings.optimizer": "sgd"},
    {"model": {"architecture": "deepfm", "embedding_dim": 4}, "train.precision": "bf16"},
    {"model": "fm.yaml", "model.embedding_dim": 12},
    {"model.top_mlp": [8, 4], "train.stop_at": {"patience": 2}, "train.evaluate_every_steps": 5},
]


@pytest.mark.parametrize("changes", CHOSEN, ids=lambda changes: ",".join(changes) or "none")
def test_the_command_and_the_written_file_give_the_settings_of_the_experiment(
    tmp_path: Path, changes: dict[str, Any]
) -> None:
    (tmp_path / "fm.yaml").write_text("{architecture: deepfm, deep: [8]}")
    (experiment,) = plan(tmp_path, {"runs": [{"name": "best", "set": changes}]})
    expected = experiment.configs[CONFIG.train.seed]
    model = complete(expected.model)

    def require(config: Config) -> None:
        assert complete(config.model) == model
        assert config.train.model_copy(update={"baselines": []}) == expected.train
        assert config.lake == "elsewhere"

    overrides = ["lake=elsewhere"]
    command = nightly_command(GENERATED, overrides, "2026-01-08", experiment.changes)
    words = shlex.split(command)
    assert words[:2] == ["python", "jobs/nightly.py"]
    assert "--retrain" in words
    sets = [words[place + 1] for place, word in enumerate(words) if word == "--set"]
    require(load_config(words[words.index("--config") + 1], sets))

    expected_file = chosen(expected, CONFIG).model_copy(update={"lake": "elsewhere"})
    path = tmp_path / "best.yaml"
    files = configuration_files(str(path), GENERATED, overrides, experiment.changes, expected_file)
    for name, text in files.items():
        assert text.startswith(HEAD)
        Path(name).write_text(text)
    require(load_config(str(path)))
    assert yaml.safe_load(path.read_text())["extends"] == GENERATED
    assert (tmp_path / "best.model.yaml").exists() == any(key.startswith("model") for key in changes)


def chosen(measured: Config, config: Config) -> Config:
    """What the file of an experiment should give: its settings, with the seed and the baselines of `config`."""
    kept = {"baselines": config.train.baselines, "seed": config.train.seed}
    train = measured.train.model_copy(update=kept)
    return measured.model_copy(update={"train": train, "model": complete(measured.model)})


@pytest.mark.parametrize(
    "overrides, changes, extends",
    [
        (["train.epochs=5", "score.k=7", "train.seed=3"], {"train.learning_rate": 0.25}, True),
        (["model=fm.yaml", "train.epochs=5"], {"train.learning_rate": 0.25}, True),
        (["model.embedding_dim=4", "lake=elsewhere"], {}, True),
        (["candidates.sources=[{source: retrieval, model: towers.yaml}]"], {}, True),
        (["generate=null"], {}, True),
        # `extends` would merge these mappings with those of the extended file.
        ([], {"train.unknown_share": {"C2": 0.1}}, False),
        (["score.context={I11: 1}"], {}, False),
        (["train={epochs: 5}"], {"train.learning_rate": 0.25}, False),
        (["train.unknown_share={C2: 0.1}"], {"model.embedding_dim": 4}, False),
    ],
)
def test_the_written_file_has_the_overrides_and_no_key_that_they_replace(
    tmp_path: Path, overrides: list[str], changes: dict[str, Any], extends: bool
) -> None:
    (tmp_path / "fm.yaml").write_text("{architecture: deepfm, deep: [8]}")
    (tmp_path / "towers.yaml").write_text("{architecture: two_tower, output_dim: 8}")
    base = tmp_path / "base.yaml"
    base.write_text(f"extends: {GENERATED}\ntrain: {{unknown_share: {{C1: 0.2}}}}\n")
    config = load_config(str(base), overrides)
    contents = Experiments.model_validate({"name": "x", "runs": [{"name": "best", "set": changes}]})
    (experiment,) = plan_experiments(config, contents, str(tmp_path / "experiments.yaml"))
    (measured,) = experiment.configs.values()
    expected = chosen(measured, config)
    (tmp_path / "elsewhere").mkdir()
    path = tmp_path / "elsewhere/best.yaml"
    files = configuration_files(str(path), str(base), overrides, experiment.changes, expected)
    for name, text in files.items():
        Path(name).write_text(text)
    written = load_config(str(path))
    assert written.model_copy(update={"model": complete(written.model)}) == expected
    assert ("extends" in yaml.safe_load(path.read_text())) == extends
