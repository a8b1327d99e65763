"""Formats the list of a user as text for a terminal."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from conf.errors import ConfigError, DataError
from conf.printable import printable
from etl.workflow.local_workflow import load_local
from reporting.inspect.user_list import InspectedList
from reporting.terminal.text_table import text_table
from storage.feature_spec import NULL_ID, OOV_ID, PAD_ID
from storage.paths import Lake

_RESERVED = {PAD_ID: "(none)", NULL_ID: "(null)", OOV_ID: "(unknown or rare)"}
_CLICKED = 10

Names = Mapping[str, Mapping[int, str]]


def decoded_names(lake: Lake, user_list: InspectedList) -> Names:
    """Returns the raw values of the ids that occur in the features of the user and of the listed items.

    The result maps each feature to a mapping from ids to raw values. Features without a vocabulary are left
    out. If the lake no longer has the workflow, the result is empty. Then the page shows ids instead of raw
    values.
    """
    try:
        workflow = load_local(lake, str(user_list.facts["workflow_version"]))
    except DataError:
        return {}
    occurring: dict[str, set[int]] = {}
    for feature in user_list.spec.features:
        if feature.kind == "dense":
            continue
        try:
            workflow.vocabulary_of(feature.name)
        except ConfigError:  # a hashed id can mean any of several values
            continue
        rows = (user_list.user_features, *user_list.item_features.values())
        occurring[feature.name] = {index for row in rows for index in _ids(row.get(feature.name))}
    return workflow.decode_ids(occurring)


def page(user_list: InspectedList, names: Names) -> str:
    """Returns the text of the page.

    It shows model and workflow, the features of the user, the list, the features of the items, and clicks.
    """
    facts = user_list.facts
    refit_of = f" (refit of {facts['refit_of']})" if facts.get("refit_of") else ""
    variant = f"variant {facts['variant']} of {facts['experiment']['name']}, " if facts.get("variant") else ""
    parts = [
        f"User {printable(user_list.user)}, lists of {user_list.run_date}",
        f"  {variant}model {facts['model_version']}{refit_of}, workflow {facts['workflow_version']}, "
        f"scored {facts['scored_at']}",
        f"\nUser features\n  {described(user_list.user_features, names) or 'none'}",
        f"\nList ({len(user_list.entries)} of {facts['k']})\n{_list_table(user_list)}",
        f"\nItem features\n{_item_lines(user_list, names)}",
        f"\nClicked in the window\n{_clicked(user_list)}",
    ]
    return "\n".join(parts)


def described(features: Mapping[str, Any], names: Names) -> str:
    """Formats features as `name=value, …`. An id is shown as its raw value if this value is known."""
    return ", ".join(
        f"{printable(name)}={printable(_value(value, names.get(name)))}" for name, value in features.items()
    )


def _value(value: Any, names: Mapping[int, str] | None) -> str:
    """Formats one value, or a list of ids, as text."""
    if isinstance(value, list):
        return "[" + ", ".join(_value(item, names) for item in value) + "]"
    if isinstance(value, float):
        return f"{value:.6g}"
    if names is None or value is None:
        return str(value)
    return names.get(value) or _RESERVED.get(value) or f"id {value}"


def _ids(value: Any) -> Iterable[int]:
    """Returns the ids in the value of a feature, which is a list of ids, a single id, or None."""
    return value if isinstance(value, list) else () if value is None else (value,)


def _list_table(user_list: InspectedList) -> str:
    """Returns a table of the list, ordered by position, with the earlier clicks on each item."""
    rows = []
    for entry in user_list.entries:
        clicks, shown = user_list.history.items.get(entry["item_id"], (0, 0)) if user_list.history else (0, 0)
        before = f"{clicks} of {shown}" if shown else "-"
        score = f"{entry['score']:.6f}"
        rows.append([str(entry["position"]), entry["item_id"], score, entry.get("reason", "-"), before])
    return text_table(["#", "item", "score", "reason", "clicked before"], rows, right=(0, 2))


def _item_lines(user_list: InspectedList, names: Names) -> str:
    """Returns one line of text per listed item, with the features of the item."""
    lines = []
    for entry in user_list.entries:
        features = user_list.item_features.get(entry["item_id"])
        text = "not among the items any more" if features is None else described(features, names) or "none"
        lines.append(f"  {printable(entry['item_id'])}: {text}")
    return "\n".join(lines)


def _clicked(user_list: InspectedList) -> str:
    """Returns a table of the items that the user clicked most."""
    if user_list.history is None:
        return "  the dataset of that date does not exist any more"
    most = user_list.history.most_clicked(_CLICKED)
    if not most:
        return "  nothing"
    return text_table(
        ["item", "clicks", "shown"], [[item, str(c), str(s)] for item, c, s in most], right=(1, 2)
    )
