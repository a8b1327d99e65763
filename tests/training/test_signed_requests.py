"""Strangers send requests to the ports of a training.

The requests are refused, stored nowhere and never unpickled, and the training completes.
"""

from __future__ import annotations

import base64
import http.client
import ipaddress
import pickle
import socket
import struct
import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest
from horovod.runner.common.util import codec, network, secret
from horovod.runner.elastic.rendezvous import PUT_WORKER_ADDRESSES
from horovod.runner.http import http_client
from horovod.runner.http.http_server import KVStoreServer, RendezvousServer
from horovod.spark.task.task_service import SparkTaskService

from tests.processes import wait_for
from tests.training.drivers import running_driver
from tests.training.test_elastic import LOCAL, plan, variant
from training.launch import ranks
from training.loop.training_plan import TrainPlan

__all__ = ["plan"]  # a fixture

pytestmark = [pytest.mark.timeout(600), pytest.mark.processes]

FORBIDDEN, NOT_FOUND, OK = 403, 404, 200
WRONG_KEY = b"0" * 32
PATH = f"/{PUT_WORKER_ADDRESSES}/stranger:0"


class Payload:
    """Unpickling it creates a file."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self._file,)


def request(
    address: tuple[str, int],
    method: str,
    path: str,
    body: bytes = b"",
    headers: Mapping[str, str] | None = None,
) -> tuple[int, bytes]:
    """Status and body of the answer."""
    connection = http.client.HTTPConnection(*address, timeout=20)
    try:
        connection.request(method, path, body or None, dict(headers or {}))
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def signed(key: bytes, method: str, path: str, body: bytes = b"") -> dict[str, str]:
    from horovod.runner.http import signature

    return dict(signature.request_headers(key, method, path, body))


def attack(address: tuple[str, int], file: Path) -> None:
    """Asserts that unsigned and wrongly signed requests are answered with 403, and that no payload ran."""
    body = base64.b64encode(pickle.dumps(Payload(file)))
    assert request(address, "PUT", PATH, body)[0] == FORBIDDEN
    for method, content in [("PUT", body), ("GET", b""), ("DELETE", b""), ("HEAD", b""), ("POST", body)]:
        assert request(address, method, PATH, content) == (FORBIDDEN, b""), method
        wrong = signed(WRONG_KEY, method, PATH, content)
        assert request(address, method, PATH, content, wrong) == (FORBIDDEN, b""), method
    assert not file.exists()


@pytest.mark.parametrize("min_ranks", [None, 1], ids=["static", "elastic"])
def test_a_training_completes_while_strangers_send_to_its_ports(
    plan: TrainPlan, tmp_path: Path, min_ranks: int | None
) -> None:
    attacked = variant(plan, tmp_path / "lake", 2, min_ranks, epochs=1)
    with running_driver(tmp_path, {"attacked": attacked}, LOCAL) as driver:
        # The server was started before the ranks, which import torch first of all.
        rank = wait_for("rank 0", lambda: driver.ranks().get(0), poll_s=0.05)
        variables, words = rank.environ(), rank.cmdline()
        address = (
            variables["HOROVOD_GLOO_RENDEZVOUS_ADDR"],
            int(variables["HOROVOD_GLOO_RENDEZVOUS_PORT"]),
        )
        attack(address, tmp_path / "the payload ran")

        key = bytes.fromhex(variables["HOROVOD_RENDEZVOUS_KEY"])
        assert request(address, "GET", PATH, headers=signed(key, "GET", PATH))[0] == NOT_FOUND
        assert_not_in(words, key, codec.loads_base64(variables[secret.HOROVOD_SECRET_KEY]))
        listening = listening_below(driver.process.pid)
        assert len(listening) >= 3  # the service of the driver, and those of the tasks
        assert all(ipaddress.ip_address(host).is_loopback for _, host, _ in listening), listening
        services = [service for of_task in codec.loads_base64(words[3]).values() for service in of_task]
        services += [(host, port) for pid, host, port in listening if pid != driver.process.pid]
        with ExitStack() as silent:  # they connect, send nothing, and stay
            for service in services:
                silent.enter_context(socket.create_connection(service))
            ended = driver.ended("attacked")
    assert "error" not in ended, ended
    assert not (tmp_path / "the payload ran").exists()


def assert_not_in(words: list[str], *keys: bytes) -> None:
    """Every user of a host can read the command lines of all processes."""
    for word in words:
        decoded = b""
        with suppress(ValueError):
            decoded = base64.b64decode(word, validate=True)
        for key in keys:
            assert key.hex() not in word
            assert key not in decoded


def listening_below(root: int) -> list[tuple[int, str, int]]:
    """(process id, address, port) of every listening socket in the driver and below it.

    Below it are Spark's workers with the tasks' services, and the ranks.
    """
    listening = []
    for process in [psutil.Process(root), *psutil.Process(root).children(recursive=True)]:
        with suppress(psutil.NoSuchProcess):
            if "java" not in process.name():
                sockets = process.net_connections(kind="tcp")
                listening += [
                    (process.pid, connection.laddr.ip, connection.laddr.port)
                    for connection in sockets
                    if connection.status == psutil.CONN_LISTEN
                ]
    return listening


@dataclass
class Context:
    """As much of a Spark context as the listener of progress asks for."""

    master: str
    settings: dict[str, str]

    def getConf(self) -> dict[str, str]:
        return self.settings


@dataclass
class Session:
    sparkContext: Context


def test_progress_of_local_ranks_comes_over_loopback() -> None:
    """Also where Spark gives the driver another address, as every profile but conf/spark/local.conf does."""
    session: Any = Session(Context("local[2]", {"spark.driver.host": "192.0.2.1"}))  # an address of nobody
    with ranks._listening(session, lambda entry: None) as channel:
        assert channel is not None
        assert channel.host == "127.0.0.1"


@pytest.fixture
def server() -> Iterator[tuple[tuple[str, int], bytes]]:
    """Address and key of a rendezvous server."""
    key = secret.make_secret_key()
    started = RendezvousServer(0, key)
    port = started.start(address="127.0.0.1")
    started.init([])
    try:
        yield ("127.0.0.1", port), key
    finally:
        started.stop()


def test_a_signature_holds_for_one_method_one_path_and_one_body(
    server: tuple[tuple[str, int], bytes],
) -> None:
    address, key = server
    put = signed(key, "PUT", "/scope/key", b"value")
    assert request(address, "PUT", "/scope/key", b"valve", put)[0] == FORBIDDEN
    assert request(address, "PUT", "/scope/key", b"value and more", put)[0] == FORBIDDEN
    assert request(address, "PUT", "/scope/other", b"value", put)[0] == FORBIDDEN
    assert request(address, "DELETE", "/scope/key", b"value", put)[0] == FORBIDDEN
    get = signed(key, "GET", "/scope/key")
    assert request(address, "GET", "/scope/key", headers=get)[0] == NOT_FOUND
    assert request(address, "PUT", "/scope/key", b"value", put)[0] == OK
    assert request(address, "GET", "/scope/key", headers=get) == (OK, b"value")
    delete = signed(key, "DELETE", "/scope/key")
    assert request(address, "DELETE", "/scope/key", headers=delete)[0] == OK
    assert request(address, "GET", "/scope/key", headers=get)[0] == NOT_FOUND


def test_a_stopped_server_has_left_its_port() -> None:
    started = RendezvousServer(0, WRONG_KEY)
    port = started.start(address="127.0.0.1")
    started.stop()
    with pytest.raises(ConnectionRefusedError):
        request(("127.0.0.1", port), "GET", "/scope/key")


def test_the_store_of_functions_is_read_and_written_with_the_key_alone(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """horovod.run sends the function to its ranks by it. A value of a stranger's server is not unpickled."""
    monkeypatch.setenv("HOROVOD_RENDEZVOUS_KEY", secret.make_secret_key().hex())
    store = KVStoreServer(verbose=0)
    port = store.start_server("127.0.0.1")
    file = tmp_path / "the payload ran"
    try:
        http_client.put_data_into_kvstore("127.0.0.1", port, "runfunc", "func", [1, 2])
        assert http_client.read_data_from_kvstore("127.0.0.1", port, "runfunc", "func") == [1, 2]
        attack(("127.0.0.1", port), file)
        http_client.put_data_into_kvstore("127.0.0.1", port, "runfunc", "func", Payload(file))
        store.httpd.key = WRONG_KEY
        monkeypatch.setattr("horovod.runner.http.signature.is_signed", lambda *_: True)
        with pytest.raises(RuntimeError, match="was not signed with the key of this job"):
            http_client.read_data_from_kvstore("127.0.0.1", port, "runfunc", "func")
        assert not file.exists()
    finally:
        store.shutdown_server()


def test_a_rank_without_a_key_says_who_has_to_start_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HOROVOD_RENDEZVOUS_KEY", raising=False)
    with pytest.raises(
        RuntimeError, match=r"HOROVOD_RENDEZVOUS_KEY is not set: start the ranks by horovod.spark"
    ):
        http_client.read_data_from_kvstore("127.0.0.1", 1, "runfunc", "func")


def test_services_verify_before_they_unpickle(tmp_path: Path) -> None:
    """Those of the driver and the tasks: signed by another key, a message is not unpickled."""
    service = network.BasicService("service", secret.make_secret_key(), {"lo"})
    file = tmp_path / "the payload ran"
    try:
        ((address,),) = service.addresses().values()
        assert address[0] == service._server.server_address[0] == "127.0.0.1"
        client = network.BasicClient.__new__(
            network.BasicClient
        )  # without the ping, which would fail already
        client._wire, client._attempts = network.Wire(WRONG_KEY), 1
        with pytest.raises(struct.error):  # the service has closed the connection without an answer
            client._send_one(address, Payload(file))
        assert not file.exists()
    finally:
        service.shutdown()


def test_the_lifetime_of_a_command_counts_from_its_start(tmp_path: Path) -> None:
    """Counted from its end, every training slept for three seconds when it was done."""
    task = SparkTaskService(0, secret.make_secret_key(), {"lo"}, minimum_command_lifetime_s=3)
    may_end = tmp_path / "may end"
    command = f"while [ ! -e '{may_end}' ]; do sleep 0.05; done"
    thread = threading.Thread(target=task._run_command, args=(command, {}, threading.Event()))
    try:
        thread.start()
        wait_for("the command's lifetime", lambda: task._minimum_command_lifetime, seconds=30)
        assert task._command_exit_code is None, "it was counted from the end"
    finally:
        may_end.touch()
        thread.join()
        task.shutdown()
    assert task._command_exit_code == 0
