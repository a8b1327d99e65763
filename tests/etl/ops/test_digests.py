"""The canonical form of operator entries must never change: workflow versions are digests of it."""

from __future__ import annotations

import json
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from conf.load import config_digest, load_config
from etl.ops import operator_from_config
from tests.etl.ops.examples import EXAMPLES

ROOT = Path(__file__).parents[3]

# Dataset of conf/datasets -> digest of the sections that a workflow version contains. Computed before the
# operators' parameters became pydantic models.
DATASETS: dict[str, str] = {
    "criteo": "d365012b89624c9d",
    "generated": "6c0cea8148fcccd1",
    "generated_named": "68597076c866482a",
    "generated_retrieval": "6c0cea8148fcccd1",
    "movielens": "a2335bcb233764aa",
    "movielens_time": "d75a4bbb102b10b7",
    "outbrain": "79ca25adee8ce8cd",
    "shop": "4a57f9dcbbff130b",
    "shop_parquet": "4a57f9dcbbff130b",
}

# Operator -> digest of the canonical entries of all its examples, as JSON and as Python writes them. An operator
# gets its line when a release contains it: from then on, its parameters and examples stay.
OPERATORS: dict[str, str] = {
    "fill": "a88cb308ddbaeaee",
    "fill_median": "d124b31f2a6e24a4",
    "winsorize": "9bdfb3ad54cd2f00",
    "clip": "c0e31f2d4ca31ce5",
    "log1p": "8705447cdab231ba",
    "normalize": "e9fb38d353a935dc",
    "normalize_min_max": "fe10a7dac7f4174d",
    "bucketize": "072909daa026ef24",
    "categorify": "41b9697809d62152",
    "hash_bucket": "d0a61e67da92c9b2",
    "hashed_cross": "1cfa1a0829e130cc",
    "target_encoding": "8ebe0583aaab537b",
    "join_groupby": "8877502e7c8952e4",
    "join_external": "1a77f41b60b43d89",
    "split_list": "e188021eb4c0132f",
    "list_slice": "8e9014a1b479e80b",
    "list_similarity": "07654862175e5716",
    "expression": "b55599b14597cc37",
    "rename": "829b5de08b1696e4",
    "data_stats": "c5e08078b20447c8",
    "value_count": "db963230946ae35b",
    "drop_low_cardinality": "9e7ae9ea56a968df",
}

# Entries that mean the same in YAML but whose numbers are written differently keep their own canonical forms.
ENTRIES: list[tuple[Any, Any]] = [
    ("fill", "fill"),
    ({"fill": None}, "fill"),
    ({"fill": {"value": 0}}, "fill"),
    ({"fill": {"value": 3}}, {"fill": {"value": 3}}),
    ({"fill": {"value": 3.0}}, {"fill": {"value": 3.0}}),
    ({"fill": {"value": "a", "indicator": True}}, {"fill": {"value": "a", "indicator": True}}),
    ({"clip": {"min": 0, "max": None}}, {"clip": {"min": 0}}),
    ({"clip": {"min": -1, "max": 10.5}}, {"clip": {"min": -1, "max": 10.5}}),
    ({"bucketize": {"boundaries": [0, 1.5]}}, {"bucketize": {"boundaries": (0.0, 1.5)}}),
    ({"categorify": {"min_count": 1}}, "categorify"),
    ({"categorify": {"min_count": {"a": 2}}}, {"categorify": {"min_count": {"a": 2}}}),
    ({"categorify": {"values": ["a", 1, 2.5]}}, {"categorify": {"values": ["a", "1", "2.5"]}}),
    ({"hash_bucket": {"buckets": 9}}, {"hash_bucket": {"buckets": 9}}),
    ({"target_encoding": {"smoothing": 20}}, "target_encoding"),
    ({"target_encoding": {"smoothing": 2, "folds": 3}}, {"target_encoding": {"folds": 3, "smoothing": 2}}),
    ({"join_groupby": {"statistics": ["count"], "of": []}}, "join_groupby"),
    (
        {"join_groupby": {"statistics": ["sum"], "of": ["I1"], "joint": True}},
        {"join_groupby": {"statistics": ("sum",), "of": ("I1",), "joint": True}},
    ),
    (
        {"join_external": {"path": "p", "columns": {"b": "int", "a": "float"}}},
        {"join_external": {"path": "p", "columns": {"b": "int", "a": "float"}}},
    ),
    ({"rename": {"names": {"a": "b"}, "prefix": ""}}, {"rename": {"names": {"a": "b"}}}),
    ({"list_slice": {"length": 2, "start": -1}}, {"list_slice": {"length": 2, "start": -1}}),
]


def _digest(entries: list[Any]) -> str:
    """Of the JSON, which enters a version, and of Python's notation, which an extension compares."""
    return sha256(f"{json.dumps(entries, sort_keys=True)}{entries!r}".encode()).hexdigest()[:16]


def dataset_digest(name: str) -> str:
    config = load_config(str(ROOT / f"conf/datasets/{name}.yaml"))
    groups = [
        group.model_copy(update={"ops": [operator_from_config(entry).config() for entry in group.ops]})
        for group in config.features
    ]
    canonical = config.model_copy(update={"features": groups})
    return config_digest(canonical, "features", "prepare", "scopes", "keys", "negatives", "split")


def operator_digest(name: str) -> str:
    return _digest([operator_from_config(entry).config() for one in EXAMPLES[name] for entry in one.ops])


def test_every_shipped_dataset_is_pinned() -> None:
    assert set(DATASETS) == {path.stem for path in (ROOT / "conf/datasets").glob("*.yaml")}
    assert set(OPERATORS) <= set(EXAMPLES)


@pytest.mark.parametrize("name", sorted(DATASETS))
def test_the_digest_of_a_dataset_stays(name: str) -> None:
    assert dataset_digest(name) == DATASETS[name]


@pytest.mark.parametrize("name", sorted(OPERATORS))
def test_the_digest_of_an_operators_examples_stays(name: str) -> None:
    assert operator_digest(name) == OPERATORS[name]


@pytest.mark.parametrize("entry, canonical", ENTRIES, ids=str)
def test_the_canonical_form_of_an_entry_stays(entry: Any, canonical: Any) -> None:
    assert repr(operator_from_config(entry).config()) == repr(canonical)
