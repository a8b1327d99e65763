"""What the Param `set` of the DAGs may change by default: keys that exist, and none that can name a place."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from airflow_dags.overrides import DEFAULT_KEYS, is_allowed, refusal
from jobs.reference import documented_config
from tests.conftest import ROOT

# Texts without a fixed set of values, which name columns, attributes, architectures or values. Each was
# reviewed. Review a new one, and put it here if it cannot name a file, a host or code.
_HARMLESS = {
    "model.architecture",  # one of those in training/models
    "quality.exempt",
    "score.context.",
    "score.rules.boost.attribute",
    "score.rules.max_per_category.attribute",
    "train.baselines",  # likewise
}


def test_each_key_exists() -> None:
    known = {key for key, _ in _leaves()}
    for name in DEFAULT_KEYS:
        assert name in known or any(key.startswith(name) for key in known if name.endswith(".")), name


def test_the_page_says_which_keys_of_train_are_refused() -> None:
    leaves = {key for key, _ in _leaves() if key.startswith("train.")}
    refused = {key for key in leaves if not is_allowed(key, DEFAULT_KEYS)}
    sections = {key for key in refused if any(other.startswith(f"{key}.") for other in leaves)}
    assert refused - sections == {"train.loss", "train.reading.staging_folder"}
    page = (ROOT / "docs/airflow.md").read_text(encoding="utf-8")
    assert "| `train` | all keys except `loss` and `reading.staging_folder` |" in page


def test_no_allowed_key_is_a_text_that_nobody_has_looked_at() -> None:
    texts = {key for key, schema in _leaves() if is_allowed(key, DEFAULT_KEYS) and _holds_text(schema)}
    assert texts <= _HARMLESS, texts - _HARMLESS


def test_places_are_refused() -> None:
    for key in ("lake", "data", "name", "log.path", "users.path", "deliver.sinks", "watch.textfile_folder"):
        assert refusal([f"{key}=x"], DEFAULT_KEYS), key
    assert refusal(["quality.psi_stop=0.5", "score.k=3"], DEFAULT_KEYS) is None


def test_hostile_values_are_refused_with_a_short_message() -> None:
    for value in ("[" * 3000, "x" * 100_000, "2001-13-01", "[" + "x, " * 3000 + "{a: 1}]"):
        refused = refusal([f"quality.psi_stop={value}"], ("quality.",))
        assert refused is not None, value[:20]
        assert len(refused) < 800


def _leaves() -> Iterator[tuple[str, dict[str, Any]]]:
    """Every key of the configuration with its JSON schema; free keys below a mapping end with a dot."""
    schema = documented_config().model_json_schema()
    yield from _below("", schema, schema["$defs"])


def _below(
    prefix: str, schema: dict[str, Any], known: dict[str, Any]
) -> Iterator[tuple[str, dict[str, Any]]]:
    for member in _choices(schema, known):
        if "properties" in member:
            for name, value in member["properties"].items():
                yield from _below(f"{prefix}.{name}" if prefix else name, value, known)
        elif isinstance(member.get("additionalProperties"), dict):
            for choice in _choices(member["additionalProperties"], known):
                yield f"{prefix}.", choice
        else:
            yield prefix, member


def _choices(schema: dict[str, Any], known: dict[str, Any]) -> list[dict[str, Any]]:
    """A schema as its alternatives, references followed."""
    if "$ref" in schema:
        return _choices(known[schema["$ref"].rpartition("/")[2]], known)
    return [choice for member in schema.get("anyOf", []) for choice in _choices(member, known)] or [schema]


def _holds_text(schema: dict[str, Any]) -> bool:
    items = schema.get("items", schema)
    return items.get("type") == "string" and "enum" not in items and "const" not in items
