"""What still has data of erased users: raw files, and text files such as logs and reports."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from html import escape

from conf.types import Config
from etl.erasure.plan import Plan
from etl.erasure.table_rules import FEATURES, QUARANTINE, Users
from etl.raw.files import find_raw, raw_path
from storage import file_io
from storage.paths import Lake

# Shorter ids would match numbers of all kinds.
SHORTEST_ID = 6
_TEXT_FOLDERS = ("runs", "reports", "logs")


def raw_files(config: Config, plan: Plan) -> list[str]:
    """Returns the paths of the raw logs of the days on which the users have rows or quarantined lines.

    A path may be a pattern with wildcards. Days whose raw log does not exist any more are left out.
    """
    days = {
        rows.published.partition.dt
        for rows in plan.rows.values()
        if rows.published.kind in (FEATURES, QUARANTINE)
    }
    existing = [day for day in sorted(days) if find_raw(config, config.log, day) is not None]
    return [raw_path(config, config.log, day) for day in existing]


def texts_with_ids(lake: Lake, users: Users) -> list[str]:
    """Returns the run records, reports and logs that contain the id of a user as a whole word.

    Ids of fewer than SHORTEST_ID characters are not searched. Ids are also found as reports (HTML) and run
    records (JSON) write them.
    """
    long_ids = {user for user in users.ids if len(user) >= SHORTEST_ID}
    if not long_ids:
        return []
    texts = {text for user in long_ids for text in (user, escape(user), json.dumps(user)[1:-1])}
    word = re.compile(rf"(?<!\w)(?:{'|'.join(map(re.escape, sorted(texts)))})(?!\w)".encode())
    return [path for path in _texts(lake) if word.search(_bytes(lake, path))]


def models_with_users(models: Iterable[Mapping[str, str]], plan: Plan) -> list[dict[str, object]]:
    """Returns the models that have weights for the ids of the users.

    Args:
        models: `name`, `version` and `workflow_version` of each model.
        plan: the plan of the erasure.
    """
    replaced = {rows.published.version for rows in plan.rows.values() if rows.rule.keeps_rows}
    return [
        {**model, "features": list(plan.workflows[model["workflow_version"]].features)}
        for model in models
        if model["workflow_version"] in replaced
    ]


def _texts(lake: Lake) -> list[str]:
    root = lake.root.rstrip("/")
    entries = [
        info for folder in _TEXT_FOLDERS for info in file_io.list_files(f"{root}/{folder}", recursive=True)
    ]
    return [info.path for info in entries if info.is_file]


def _bytes(lake: Lake, path: str) -> bytes:
    with file_io.filesystem(lake.root)[0].open_input_stream(path, compression=None) as source:
        return bytes(source.read())
