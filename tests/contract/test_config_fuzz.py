"""Unexpected values at every key of the shipped configurations are accepted, or refused as a ConfigError."""

from __future__ import annotations

import copy
import random
from collections.abc import Iterator
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from conf.errors import ConfigError
from conf.load import load_config, read_config_file, read_models, read_section
from conf.messages import is_printable
from conf.types import Config
from jobs.checks import check_config, check_lists, check_training
from tests.etl.ops.examples import COLUMNS, EXAMPLES, FRAME_EXAMPLES
from training.settings import known_architectures

pytestmark = pytest.mark.slow

WRONG: tuple[Any, ...] = (
    *(
        None,
        True,
        0,
        -1,
        1,
        7,
        2**31,
        2**63,
        -(2**63) - 1,
        10**30,
        0.5,
        -0.5,
        1e308,
        float("inf"),
        float("nan"),
    ),
    *(
        "",
        "x",
        "../../x",
        "a/b",
        "a\x1b[2Jb",
        "nul\0",
        "é" * 200,
        "\u202e",
        "[",
        "-",
        "*",
        "C1",
        "day",
        "label",
        "row_id",
    ),
    *(
        "{date}",
        "{lake}",
        "{data}",
        "C{1..3}",
        "C{3..1}",
        "C{1..999999999}",
        "http://a/b",
        "s3a://b/k",
        "1e-3",
    ),
    *([], ["x"], [1], [None], [[]], [{}], [{"x": None}], [True], ["C1", "C1"]),
    *({}, {"x": 1}, {1: 2}, {"x": {}}, {"x": []}, {None: None}, {"x": float("nan")}),
    *(date(2026, 1, 1), b"x", {"x", "y"}, (1, 2)),
)
A_FEW, MANY = 40, 600  # wrong values of each file, drawn anew where the file changes, equal in every run


@pytest.fixture(params=[A_FEW, pytest.param(MANY, marks=pytest.mark.extended)])
def most(request: pytest.FixtureRequest) -> int:
    """The number of wrong values that a test tries."""
    return int(request.param)


def places(values: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path of every value but the outermost, of whatever type."""
    inner = (
        values.items() if isinstance(values, dict) else enumerate(values) if isinstance(values, list) else ()
    )
    for key, value in inner:
        yield (*path, key)
        yield from places(value, (*path, key))


def changed(values: Any, path: tuple[Any, ...], to: Any) -> Any:
    copied = copy.deepcopy(values)
    target = copied
    for part in path[:-1]:
        target = target[part]
    target[path[-1]] = to
    return copied


def accepted(values: Any) -> bool:
    """Whether every check that needs no data accepts the configuration. Errors of other types are raised."""
    try:
        config = read_section(Config, values, "fuzzed: ", "correct it")
        check_config(config)
        check_training(config)
        check_lists(config)
    except ConfigError as error:
        if not is_printable(str(error).replace("\n", "")):
            raise AssertionError(f"not printable: {str(error)!a}") from error
        return False
    return True


def shipped(path: Path) -> dict[str, Any]:
    values = read_config_file(path)
    read_models(values, path)
    return values


SHIPPED = sorted(Path("conf/datasets").glob("*.yaml"))


@pytest.mark.parametrize("complete", [False, True], ids=["as_written", "with_defaults"])
@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_a_wrong_value_is_refused_or_accepted_and_nothing_else(path: Path, complete: bool, most: int) -> None:
    values: Any = shipped(path)
    if complete:
        values = Config.model_validate(values).model_dump(mode="json")
    every = [(place, wrong) for place in places(values) for wrong in WRONG]
    drawn = random.Random(20261123).sample(every, min(most, len(every)))
    verdicts = [accepted(changed(values, place, wrong)) for place, wrong in drawn]
    assert not all(verdicts)


SECTIONS: dict[str, Any] = {
    "deliver": {
        "sinks": [
            {
                "kind": "jdbc",
                "name": "shop",
                "url": "jdbc:postgresql://host:5432/db",
                "table": "lists",
                "user": {"env": "U"},
                "password": {"file": "p"},
                "driver_jar": "x.jar",
            },
            {"kind": "json_lines", "name": "files", "path": "out"},
        ]
    },
    "watch": {
        "textfile_folder": "f",
        "push_gateway": "http://h:1",
        "core_hour_price": 0.1,
        "currency": "EUR",
    },
    "score": {
        "rules": {
            "attributes": {"brand": {"path": "b.csv", "format": "csv", "key": "item", "column": "brand"}},
            "boost": {"attribute": "brand", "values": {"a": 1.5}},
            "max_per_category": {"attribute": "brand", "max": 2},
            "exploration": {"share": 0.1, "seed": 1},
        },
        "stop": {"max_churn": 0.5, "max_score_psi": 0.2},
    },
    "candidates": {
        "sources": [
            {"source": "popular", "segment": "land", "window_days": 3},
            {"source": "covisitation"},
            {"source": "item_knn"},
            {"source": "ease"},
            {"source": "als"},
            {"source": "retrieval", "model": {"architecture": "two_tower"}},
        ],
        "max": 500,
        "active_days": 3,
        "user_attributes": {
            "path": "u.csv",
            "format": "csv",
            "key": "user",
            "columns": [{"name": "user", "type": "string"}, {"name": "land", "type": "string"}],
        },
        "filters": [
            {
                "filter": "not_allowed",
                "path": "n.csv",
                "format": "csv",
                "columns": [{"name": "item", "type": "string"}, {"name": "v", "type": "string"}],
                "item": "item",
                "value": "v",
                "attribute": "land",
                "rule": "deny",
            },
            {
                "filter": "out_of_stock",
                "path": "o.csv",
                "format": "csv",
                "columns": [{"name": "item", "type": "string"}],
                "item": "item",
            },
        ],
    },
    "train": {
        "elastic": {},
        "evaluate_every_steps": 5,
        "stop_at": {"value": 0.7, "patience": 2},
        "profile": {},
    },
}


def with_sections(name: str) -> dict[str, Any]:
    """The generated log with one of the sections that no shipped configuration has."""
    values = {**shipped(Path("conf/datasets/generated.yaml")), name: SECTIONS[name]}
    if name == "score":
        values["score"]["context"] = shipped(Path("conf/datasets/generated.yaml"))["score"]["context"]
    return values


@pytest.mark.parametrize("name", SECTIONS)
def test_optional_sections_hold_too(name: str, most: int) -> None:
    values = with_sections(name)
    assert accepted(values)
    every = [((name, *place), wrong) for place in places(values[name]) for wrong in WRONG]
    for place, wrong in random.Random(7).sample(every, min(most, len(every))):
        accepted(changed(values, place, wrong))


@pytest.mark.parametrize("architecture", known_architectures())
def test_settings_of_models_hold_too(architecture: str, most: int) -> None:
    values: Any = shipped(Path("conf/datasets/criteo.yaml"))
    full = {"wide_and_deep": {"wide_ftrl": {"l1": 0.1}, "crosses": [{"left": ["C1"], "right": ["C2"]}]}}
    model = {
        "architecture": architecture,
        "embedding_dim": 8,
        "bottom_mlp": [16, 8],
        "deep": [8],
        "dropout": 0.1,
    }
    model |= {"user_tower": [8], "output_dim": 4, "cross_rank": 4, "multi_hot": {"lengths": {}}}
    values["model"] = {**model, **full.get(architecture, {})}
    every = [(("model", *place), wrong) for place in places(values["model"]) for wrong in WRONG]
    for place, wrong in random.Random(5).sample(every, min(most, len(every))):
        accepted(changed(values, place, wrong))


def of_operators(features: list[Any], prepare: list[Any]) -> dict[str, Any]:
    """The log that the operators' own tests go through."""
    columns = [{"name": name, "type": kind} for name, kind in {"click": "int", **COLUMNS}.items()]
    log = {"path": "{data}/x", "format": "tsv", "columns": columns, "label": {"column": "click"}}
    model = {"architecture": "logistic_regression"}
    return {
        "name": "operators",
        "log": log,
        "prepare": prepare,
        "features": features,
        "split": {"by": "fraction"},
        "model": model,
    }


@pytest.mark.parametrize("name", [*EXAMPLES, *FRAME_EXAMPLES])
def test_operators_hold_too(name: str, most: int) -> None:
    """Every parameter of every operator, from the examples that the operators' own tests go through."""
    if name in EXAMPLES:
        good = [of_operators([example.group()], []) for example in EXAMPLES[name]]
    else:
        dense = {"columns": ["I1"], "kind": "dense", "ops": ["log1p"]}
        good = [of_operators([dense], [example]) for example in FRAME_EXAMPLES[name]]
    every = [
        (values, (section, *place), wrong)
        for values in good
        for section in ("features", "prepare")
        for place in places(values[section])
        for wrong in WRONG
    ]
    for values, place, wrong in random.Random(3).sample(every, min(most, len(every))):
        accepted(changed(values, place, wrong))


def test_a_file_of_random_bytes_or_of_a_damaged_configuration_is_refused_or_accepted(tmp_path: Path) -> None:
    draw = random.Random(11)
    good = Path("conf/datasets/movielens.yaml").read_bytes().replace(b"../models/", b"")
    for name in ("sasrec.yaml", "two_tower_small.yaml"):
        (tmp_path / name).write_bytes(Path(f"conf/models/{name}").read_bytes())
    path = tmp_path / "damaged.yaml"
    refused = 0
    for _ in range(100):
        damaged = bytearray(good)
        for _ in range(draw.choice((1, 3, 10))):
            at = draw.randrange(len(damaged))
            kind = draw.randrange(3)
            if kind == 0:
                damaged[at] = draw.randrange(256)
            elif kind == 1:
                del damaged[at : at + draw.randrange(1, 30)]
            else:
                damaged[at:at] = damaged[:at][-draw.randrange(1, 60) :]
        path.write_bytes(bytes(damaged))
        try:
            check_config(load_config(str(path)))
        except ConfigError:
            refused += 1
    assert 20 < refused < 100
