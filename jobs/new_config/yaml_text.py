"""Writes a new configuration as YAML, with a comment above each section."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from textwrap import wrap

import yaml

from jobs.new_config.configuration import NewConfig

_WIDTH = 120
_COMMENTS: Mapping[str, str] = {
    "name": "Name of the model in the registry, and of the tables that belong to this log.",
    "data": "Folder of the raw files; paths below refer to it as {data}.",
    "lake": "Folder of all tables that the jobs write.",
    "log": "The log: its files, its columns, which rows are clicks (label), and the times of the rows.",
    "users": "Attributes of users, one row per user. Users of the log without a row get nulls.",
    "items": "Attributes of items, with one row for each. Items without a row are not recommended; with "
    "`missing: serve` they are.",
    "keys": "The columns that identify a user and an item.",
    "history": "The items that the user of a row chose before (column `history`), the most recent one first.",
    "negatives": "The log has only rows that users chose. For each of them, rows of items that the user "
    "did not choose are added with label 0, to measure the model. train.negatives draws other items for "
    "training.",
    "features": "Groups of columns: the kind of their features, and the operators (docs/operators) in order.",
    "scopes": "Which features depend only on the user, only on the item, or only on the context of a row.",
    "split": "Which rows are for training, for validation and for the test.",
    "model": "docs/models.md has all models and their settings.",
    "candidates": "Which items are scored for a user. The default is all items that the user has not chosen.",
    "score": "k: number of items of a list. context: the values of context columns for which lists are made.",
}
_OF_REFITS = "refit: a promoted model is trained again before it scores, also on validation and test rows."
_OF_MEASURES = (
    "Lists are measured with the clicks of the day after the run date. Each training also measures lists "
    "with the rows of the test split. The report shows both."
)


def yaml_of(config: NewConfig, questions: Iterable[str]) -> str:
    """Returns the text of the file.

    Args:
        config: the configuration.
        questions: the questions that no person answered.
    """
    parts = [
        "# Written by `nightrank init`. docs/configuration.md describes every key.\n",
        *(_comment(f"QUESTION: {question}") for question in questions),
        "\n",
    ]
    for key, value in config.sections.items():
        parts.append(_comment(_COMMENTS[key]) if key in _COMMENTS else "")
        parts.append(_comment(config.notes[key]) if key in config.notes else "")
        if key == "train" and "refit" in value:
            parts.append(_comment(_OF_REFITS))
        parts.append(_section(key, value))
        if key == "candidates" and config.inactive_filter is not None:
            parts.append(_inactive(config.inactive_filter, "  "))
        if key == "features":
            parts += [
                _comment(f"No feature: {section}.{name}, because {why}.", "  ")
                for section, name, why in config.left_out
            ]
        parts.append("\n" if key not in ("name",) else "")
    if config.inactive_filter is not None and "candidates" not in config.sections:
        parts.append(_inactive(config.inactive_filter, ""))
        parts.append("\n")
    if config.has_lists:
        parts.append(_comment(_OF_MEASURES))
        parts.append("measure: {against: next_day}\n")
    return "".join(parts)


def _comment(text: str, indent: str = "") -> str:
    return "".join(f"{indent}# {line}\n" for line in wrap(text, _WIDTH - 2))


def _inactive(of_candidates: tuple[str, dict[str, object]], indent: str) -> str:
    """Returns a filter of candidates as a comment: below the section, or with the section's name."""
    reason, entry = of_candidates
    lines = ["filters:", *_entries([entry])] if indent else ["candidates:", "  filters:", *_entries([entry])]
    return _comment(reason, indent) + "".join(f"# {indent}{line}\n" for line in lines)


def _entries(values: Iterable[object]) -> list[str]:
    return [f"    - {_flow(value)}" for value in values]


def _section(key: str, value: object) -> str:
    """Returns a section: its keys on separate lines, and their values in braces."""
    if isinstance(value, Mapping) and (
        key in ("log", "users", "items", "train") or len(_flow(value)) > _WIDTH - 20
    ):
        lines = [f"{key}:"]
        for name, inner in value.items():
            if name in ("columns", "sources", "filters") and isinstance(inner, list):
                lines += [f"  {name}:", *_entries(inner)]
            else:
                lines.append(f"  {name}: {_flow(inner)}")
        return "\n".join(lines) + "\n"
    if isinstance(value, list):
        return "\n".join([f"{key}:", *(f"  - {_flow(entry)}" for entry in value)]) + "\n"
    return f"{key}: {_flow(value)}\n"


def _flow(value: object) -> str:
    """Returns a value in one line of YAML. Texts that YAML could read as another type are quoted."""
    text = yaml.safe_dump(value, default_flow_style=True, width=10**6, sort_keys=False, allow_unicode=True)
    return text.removesuffix("\n").removesuffix("\n...").rstrip("\n")
