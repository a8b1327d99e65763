"""Look-ups in a store that the job filled from a real lake equal the tables of this lake."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

import nightrank
from nightrank.online import open_online
from tests.delivery.valkey import PASSWORD, Server, valkey
from tests.etl.lakes import servers
from tests.nightrank.conftest import RUN_DATE, World
from tests.processes import ROOT

pytestmark = [pytest.mark.processes, pytest.mark.servers]


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    try:
        with valkey() as started:
            yield started
    except servers.Unavailable as error:
        servers.missing(str(error))


def key_first(published: nightrank.Published, key: str) -> pa.Table:
    return published.arrow([key, *(name for name in published.columns if name != key)])


def test_look_ups_equal_the_tables_of_the_lake(
    world: World, server: Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    shutil.copytree(world.root, tmp_path / "lake")  # the lake of other tests has no deliveries
    monkeypatch.setenv("STORE_PASSWORD", PASSWORD)
    sink = {"kind": "redis", "name": "online", "url": server.url, "password": {"env": "STORE_PASSWORD"}}
    sinks = json.dumps([{**sink, "features": ["users", "items"]}])
    command = [sys.executable, str(ROOT / "jobs/deliver_recommendations.py"), "--config", str(world.config)]
    command += [
        "--run-date",
        RUN_DATE,
        "--set",
        f"deliver.sinks={sinks}",
        "--set",
        f"lake={tmp_path / 'lake'}",
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    lists, users, items = world.lake.recommendations(), world.lake.users(), world.lake.items()
    with open_online(server.url, password=PASSWORD) as store:
        rows = lists.arrow().sort_by([("user_id", "ascending"), ("position", "ascending")])
        assert store.recommendations(rows.column("user_id").unique().to_pylist()).equals(rows)
        for look_up, table, key in ((store.users, users, "user_key"), (store.items, items, "item_key")):
            wanted = key_first(table, key)
            assert wanted.num_rows > 10
            assert look_up(wanted.column(key).to_pylist()).equals(wanted)
            assert look_up(["\0", 17]).num_rows == 0  # the marker of a bucket is no key
            with pytest.raises(nightrank.ConfigError, match="keys is the text 'u1', not a list"):
                look_up("u1")
    assert json.loads(done.stdout.splitlines()[-1])["sinks"][0]["rows"] == lists.rows
