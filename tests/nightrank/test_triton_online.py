"""The ensemble of a model repository that looks up features in a store, which the job filled from a real lake."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import redis

from benchmarks.triton_server import Unavailable, triton_server
from conf.load import load_config
from jobs.deliver_recommendations import run as deliver_recommendations
from nightrank import ConfigError, DataError
from nightrank.triton_models import LookUpFeatures
from storage.run_context import RunContext
from tests.delivery.valkey import PASSWORD, Server, valkey
from tests.etl.lakes import servers
from tests.nightrank.conftest import RUN_DATE, World
from tests.nightrank.triton_requests import ask, body_of, probabilities

pytestmark = [pytest.mark.processes, pytest.mark.servers]

PREFIX = "served"


@pytest.fixture(scope="module")
def store() -> Iterator[Server]:
    try:
        with valkey() as started:
            yield started
    except servers.Unavailable as error:
        servers.missing(str(error))


@pytest.fixture(scope="module")
def delivered(world: World, store: Server, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository of the champion, whose features the store has."""
    folder = tmp_path_factory.mktemp("online")
    shutil.copytree(world.root, folder / "lake")  # the lake of other tests has no deliveries
    password = folder / "password"
    password.write_text(PASSWORD)
    sink = {"kind": "redis", "name": "online", "url": store.url, "password": {"file": str(password)}}
    sinks = json.dumps([{**sink, "prefix": PREFIX, "features": ["users", "items"]}])
    config = load_config(str(world.config), [f"deliver.sinks={sinks}", f"lake={folder / 'lake'}"])
    deliver_recommendations(RunContext("deliver_recommendations", config, RUN_DATE))
    world.lake.champion().export_triton(folder / "repository", "python", online=True)
    return folder / "repository"


def request_for(world: World, users: list[str], items: list[str]) -> dict[str, Any]:
    """Pairs of users and items in the context of the configuration."""
    context = load_config(str(world.config), []).score.context
    types = world.lake.champion().workflow.raw_columns
    columns: dict[str, tuple[str, list[Any]]] = {"user_key": ("BYTES", users), "item_key": ("BYTES", items)}
    for name, value in context.items():
        is_text = types[name] == "string"
        missing = "" if is_text else np.nan
        columns[name] = ("BYTES" if is_text else "FP64", [missing if value is None else value] * len(users))
    return body_of(columns)


def test_a_delivery_of_another_workflow_during_a_request_is_an_error(
    world: World, store: Server, delivered: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise, features of two workflows would be scored together."""
    environment = {"URL": store.url, "PREFIX": PREFIX, "PASSWORD": PASSWORD}
    for name, value in environment.items():
        monkeypatch.setenv(f"NIGHTRANK_ONLINE_{name}", value)
    model: Any = LookUpFeatures()
    model._load(delivered / "lookup" / "1")
    context = load_config(str(world.config), []).score.context
    inputs = {name: np.array([[value]]) for name, value in context.items()}
    (listed,) = world.lake.recommendations().arrow().slice(0, 1).to_pylist()
    for key, name in (("user_key", "user_id"), ("item_key", "item_id")):
        inputs[key] = np.array([[listed[name].encode()]], dtype=object)
    assert set(model.compute(inputs)) == {"dense", "categorical"}
    look_up, current = model._store.items, model._store.current

    def items_then_delivery(keys: list[str]) -> pa.Table:
        found = look_up(keys)
        other = replace(current(), workflow_version="another")
        monkeypatch.setattr(model._store, "current", lambda: other)
        return found

    monkeypatch.setattr(model._store, "items", items_then_delivery)
    with pytest.raises(DataError, match="the store has features of workflow another"):
        model.compute(inputs)


def test_pairs_are_scored_as_in_published_lists(world: World, store: Server, delivered: Path) -> None:
    """And what the store lacks is an error: keys, features of the workflow, a table."""
    lists: pa.Table = world.lake.recommendations().arrow().slice(0, 200)
    users, items = lists.column("user_id").to_pylist(), lists.column("item_id").to_pylist()
    context = load_config(str(world.config), []).score.context
    wanted = world.lake.champion().recommend(dict.fromkeys(users), k=10, context=context)
    expected = {
        (row["user_id"], row["item_id"]): row["score"]
        for row in wanted.select(["user_id", "item_id", "score"]).to_pylist()
    }
    pairs = [pair for pair in zip(users, items, strict=True) if pair in expected]
    assert len(pairs) > 100
    variables = {
        "NIGHTRANK_ONLINE_URL": store.url,
        "NIGHTRANK_ONLINE_PREFIX": PREFIX,
        "NIGHTRANK_ONLINE_PASSWORD": PASSWORD,
    }
    try:
        with triton_server(delivered, variables) as url:
            body = request_for(world, [user for user, _ in pairs], [item for _, item in pairs])
            answer = probabilities(ask(url, "nightrank_online", body))
            np.testing.assert_allclose(answer, [expected[pair] for pair in pairs], atol=1e-5)
            _refuses_what_the_store_lacks(url, world, store, pairs[0])
    except Unavailable as error:
        servers.missing(str(error))


def _refuses_what_the_store_lacks(url: str, world: World, store: Server, pair: tuple[str, str]) -> None:
    user, item = pair
    answer = ask(url, "nightrank_online", request_for(world, [user, "nobody"], [item, item]))
    assert answer["status"] == 400
    assert "column user_key, row 1: 'nobody' is not in the store" in answer["error"]
    with redis.Redis(port=store.port, password=PASSWORD) as client:
        pointer = json.loads(client.get(f"{PREFIX}:current"))
        client.set(f"{PREFIX}:current", json.dumps({**pointer, "workflow_version": "another"}))
        answer = ask(url, "nightrank_online", request_for(world, [user], [item]))
        assert "the store has features of workflow another, but the model needs" in answer["error"]
        client.delete(*client.scan_iter(f"{PREFIX}:users:*"))
        client.set(f"{PREFIX}:current", json.dumps(pointer))
        answer = ask(url, "nightrank_online", request_for(world, [user], [item]))
        assert answer["status"] == 503
        assert "buckets of the table users are missing" in answer["error"]


def test_a_repository_with_the_look_up_keeps_it(world: World, delivered: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(delivered, tmp_path / "repository"))
    assert sorted(path.name for path in folder.iterdir()) == [
        "lookup", "nightrank", "nightrank_online", "ranker", "workflow",
    ]  # fmt: skip
    with pytest.raises(ConfigError, match=r"the look-up \(yes, new: no\)"):
        world.lake.champion().export_triton(folder, "python")
    assert world.lake.champion().export_triton(folder, "python", online=True)["version"] == 1
