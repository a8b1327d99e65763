"""The generated schemas and reference pages are up to date, and agree with the loader on configurations."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from pydantic import BaseModel

from conf.raw_types import Strict
from jobs.reference import config_schema, generated_files, model_schema
from tests.contract.test_config import SMALL

ROOT = Path(__file__).parents[2]
DATASETS = sorted((ROOT / "conf/datasets").glob("*.yaml"))
MODELS = sorted((ROOT / "conf/models").glob("*.yaml"))
CONFIG_VALIDATOR = jsonschema.Draft7Validator(config_schema())
MODEL_VALIDATOR = jsonschema.Draft7Validator(model_schema())


def messages(validator: jsonschema.Draft7Validator, values: Any) -> list[str]:
    """What the schema refuses in these values."""
    return [error.message for error in validator.iter_errors(values)]


def config_with(**sections: Any) -> dict[str, Any]:
    """A small configuration with some sections replaced."""
    return {**SMALL, **sections}


def features(*ops: Any) -> dict[str, Any]:
    """A configuration with one group of these operators."""
    return config_with(features=[{"columns": ["I1"], "kind": "dense", "ops": list(ops)}])


@pytest.mark.parametrize("name", sorted(generated_files()))
def test_a_generated_file_is_up_to_date(name: str) -> None:
    assert (ROOT / name).read_text(encoding="utf-8") == generated_files()[name], "run `make docs`"


def test_the_schemas_are_schemas() -> None:
    for schema in (config_schema(), model_schema()):
        jsonschema.Draft7Validator.check_schema(schema)


@pytest.mark.parametrize("path", DATASETS, ids=lambda path: path.stem)
def test_a_shipped_configuration_follows_the_schema(path: Path) -> None:
    assert messages(CONFIG_VALIDATOR, yaml.safe_load(path.read_text(encoding="utf-8"))) == []


@pytest.mark.parametrize("path", MODELS, ids=lambda path: path.stem)
def test_a_shipped_model_follows_the_schemas(path: Path) -> None:
    values = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert messages(MODEL_VALIDATOR, values) == []
    assert messages(CONFIG_VALIDATOR, config_with(model=values)) == []


@pytest.mark.parametrize("path", [*DATASETS, *MODELS], ids=lambda path: path.stem)
def test_a_shipped_file_names_its_schema_for_editors(path: Path) -> None:
    first = path.read_text(encoding="utf-8").splitlines()[0]
    assert first.startswith("# yaml-language-server: $schema=")
    schema = path.parent / first.partition("=")[2]
    assert schema.name == ("schema.json" if path in DATASETS else "model_schema.json")
    assert schema.is_file()


@pytest.mark.parametrize(
    "values",
    [
        config_with(),
        config_with(model="models/dlrm.yaml"),
        features("log1p", {"clip": {"min": 0}}, {"normalize": None}, {"fill": {}}),
        features({"categorify": {"values": ["a", 1, 2.5]}}, {"categorify": {"min_count": {"a": 2}}}),
        config_with(prepare=[{"filter": {"keep": "I1 > 0"}}, {"dropna": {"columns": ["I1"]}}]),
        features(
            {"join_external": {"path": "p", "columns": {"a": "date", "b": {"type": "int", "source": "c"}}}}
        ),
        {"extends": "other.yaml"},
        {"extends": "other.yaml", "split": {"train": 0.7}, "model": {"embedding_dim": 8}},
        config_with(candidates={"sources": [{"source": "retrieval", "model": "towers.yaml"}]}),
    ],
)
def test_the_schema_accepts(values: dict[str, Any]) -> None:
    assert messages(CONFIG_VALIDATOR, values) == []


@pytest.mark.parametrize(
    "values",
    [
        {key: value for key, value in SMALL.items() if key != "log"},
        config_with(trian={}),
        config_with(split={"train": 0.7}),
        config_with(split={"by": "week"}),
        config_with(train={"epochs": 0}),
        config_with(model={"embedding_dim": 8}),
        config_with(model={"architecture": "dlrm", "deep": [8]}),
        config_with(model={"architecture": "dlrm", "bottom_mlp": [0]}),
        config_with(candidates={"sources": [{"source": "retrieval", "model": {"output_dim": 8}}]}),
        config_with(candidates={"sources": [{"source": "popular", "m": 3}]}),
        config_with(prepare=["filter"]),
        config_with(prepare=["log1p"]),
        features("log"),
        features("bucketize"),
        features({"rename": {"names": {"a": 3}}}),
        features({"clip": {"min": "a"}}),
        features({"clip": {"min": 0}, "log1p": None}),
        features({"join_external": {"path": "p", "columns": {"a": "list<int>"}}}),
        {"extends": "other.yaml", "trian": {}},
        {"extends": 3},
    ],
)
def test_the_schema_refuses(values: dict[str, Any]) -> None:
    assert messages(CONFIG_VALIDATOR, values)


def subclasses(kind: type[BaseModel]) -> Iterator[type[BaseModel]]:
    """All classes that inherit from this one."""
    for subclass in kind.__subclasses__():
        yield subclass
        yield from subclasses(subclass)


def test_every_key_of_the_configuration_is_described() -> None:
    sections = [kind for kind in subclasses(Strict) if kind.__module__.startswith("conf.")]
    assert len(sections) > 40
    bare = [
        f"{kind.__name__}.{name}"
        for kind in sections
        for name, field in kind.model_fields.items()
        if not field.description
    ]
    assert bare == []
