"""The look-up as text for a terminal."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from conf.errors import ConfigError, DataError
from conf.printable import printable
from etl.workflow.fitted_workflow import load_local
from reporting.inspect.user_list import Found
from reporting.terminal.text_table import text_table
from storage.feature_spec import NULL_ID, OOV_ID, PAD_ID
from storage.paths import Lake

_RESERVED = {PAD_ID: "(none)", NULL_ID: "(null)", OOV_ID: "(unknown or rare)"}
_CLICKED = 10

Names = Mapping[str, Mapping[int, str]]


def decoded_names(lake: Lake, found: Found) -> Names:
    """Feature → id → raw value, of the ids that occur; features without a vocabulary are left out.

    A workflow that is gone from the lake decodes nothing: the list is worth showing all the same.
    """
    try:
        workflow = load_local(lake, str(found.facts["workflow_version"]))
    except DataError:
        return {}
    occurring: dict[str, set[int]] = {}
    for feature in found.spec.features:
        if feature.kind == "dense":
            continue
        try:
            workflow.vocabulary_of(feature.name)
        except ConfigError:  # hashed ids stand for many values
            continue
        rows = (found.user_features, *found.item_features.values())
        occurring[feature.name] = {each for row in rows for each in _ids(row.get(feature.name))}
    return workflow.decode_ids(occurring)


def page(found: Found, names: Names) -> str:
    """Everything about the list, in the order in which it is asked for."""
    facts = found.facts
    parts = [
        f"User {printable(found.user)}, lists of {found.run_date}",
        f"  model {facts['model_version']}, workflow {facts['workflow_version']}, scored {facts['scored_at']}",
        f"\nUser features\n  {described(found.user_features, names) or 'none'}",
        f"\nList ({len(found.entries)} of {facts['k']})\n{_list_table(found)}",
        f"\nItem features\n{_item_lines(found, names)}",
        f"\nClicked in the window\n{_clicked(found)}",
    ]
    return "\n".join(parts)


def described(features: Mapping[str, Any], names: Names) -> str:
    """`name=value, …`: raw values where ids have one, encoded numbers otherwise, as the model takes them."""
    return ", ".join(
        f"{printable(name)}={printable(_value(value, names.get(name)))}" for name, value in features.items()
    )


def _value(value: Any, names: Mapping[int, str] | None) -> str:
    if isinstance(value, list):
        return "[" + ", ".join(_value(each, names) for each in value) + "]"
    if isinstance(value, float):
        return f"{value:.6g}"
    if names is None or value is None:
        return str(value)
    return names.get(value) or _RESERVED.get(value) or f"id {value}"


def _ids(value: Any) -> Iterable[int]:
    return value if isinstance(value, list) else () if value is None else (value,)


def _list_table(found: Found) -> str:
    rows = []
    for entry in found.entries:
        clicks, shown = found.history.items.get(entry["item_id"], (0, 0)) if found.history else (0, 0)
        before = f"{clicks} of {shown}" if shown else "-"
        score = f"{entry['score']:.6f}"
        rows.append([str(entry["position"]), entry["item_id"], score, entry.get("reason", "-"), before])
    return text_table(["#", "item", "score", "reason", "clicked before"], rows, right=(0, 2))


def _item_lines(found: Found, names: Names) -> str:
    lines = []
    for entry in found.entries:
        features = found.item_features.get(entry["item_id"])
        told = "not among the items any more" if features is None else described(features, names) or "none"
        lines.append(f"  {printable(entry['item_id'])}: {told}")
    return "\n".join(lines)


def _clicked(found: Found) -> str:
    if found.history is None:
        return "  the dataset of that date is not there"
    most = found.history.most_clicked(_CLICKED)
    if not most:
        return "  nothing"
    return text_table(
        ["item", "clicks", "shown"], [[item, str(c), str(s)] for item, c, s in most], right=(1, 2)
    )
