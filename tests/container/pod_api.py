"""The part of a Kubernetes API that Spark's driver uses, on loopback. Pods of executors run as processes.

Each request needs a right of a Role, as in a cluster. As a kubelet does, the server passes the arguments and variables
of a pod's container to its entry point, and reports how the process ended.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

NAMESPACE = "shop"
DRIVER = "the-driver"
_PATH = re.compile(rf"^/api/v1/namespaces/{NAMESPACE}/(\w+)(?:/([^/]+))?$")
_VERBS = {"POST": "create", "PATCH": "patch", "PUT": "update"}


class PodApi:
    """The server.

    Attributes:
        requests: pairs (resource, verb) of all requests.
        denied: those for which the Role gives no right.
        created: the bodies of all objects that were created, in order.
    """

    def __init__(
        self,
        rules: Sequence[Mapping[str, Any]],
        entry_point: Path,
        variables: Mapping[str, str],
        folder: Path,
    ) -> None:
        self.rights = {
            (resource, verb) for rule in rules for resource in rule["resources"] for verb in rule["verbs"]
        }
        self.requests: set[tuple[str, str]] = set()
        self.denied: set[tuple[str, str]] = set()
        self.created: list[dict[str, Any]] = []
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self._entry_point, self._variables, self._folder = entry_point, variables, folder
        self._objects: dict[tuple[str, str], dict[str, Any]] = {}
        self._events: list[tuple[str, str, dict[str, Any]]] = []
        self._changed = threading.Condition()
        self._version = 0
        self._closed = False
        self._store("pods", "ADDED", _driver_pod())
        handler = type("Handler", (_Handler,), {"api": self})
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def is_allowed(self, resource: str, verb: str) -> bool:
        """Records a request, and returns whether the Role gives the right to it."""
        self.requests.add((resource, verb))
        if (resource, verb) not in self.rights:
            self.denied.add((resource, verb))
        return (resource, verb) in self.rights

    def create(self, resource: str, body: dict[str, Any]) -> dict[str, Any]:
        """Stores an object. A pod starts as a process."""
        self.created.append(json.loads(json.dumps(body)))
        name = body["metadata"]["name"]
        now = datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
        body["metadata"] |= {"namespace": NAMESPACE, "uid": f"uid-{name}", "creationTimestamp": now}
        if resource == "pods":
            body["status"] = _status("Running")
            self._start(name, body["spec"]["containers"][0])
        self._store(resource, "ADDED", body)
        return body

    def find(self, resource: str, query: Mapping[str, str]) -> list[dict[str, Any]]:
        """The objects with the labels and fields of a query."""
        return [
            value
            for (kind, _), value in list(self._objects.items())
            if kind == resource and _is_chosen(value, query)
        ]

    def read(self, resource: str, name: str) -> dict[str, Any] | None:
        return self._objects.get((resource, name))

    def delete(self, resource: str, value: dict[str, Any]) -> None:
        """Deletes an object. Ends the process of a pod."""
        name = value["metadata"]["name"]
        with self._changed:
            self._objects.pop((resource, name), None)
        if name in self.processes:
            _end(self.processes[name])
        self._store(resource, "DELETED", value)

    def kill_a_pod(self) -> str:
        """Ends the process of an executor, as if its node had killed it. Returns the name of the pod."""
        name, process = next((name, run) for name, run in self.processes.items() if run.poll() is None)
        _end(process)
        return name

    def events(self, resource: str, query: Mapping[str, str]) -> Iterator[dict[str, Any]]:
        """Yields the changes of objects from now on."""
        place = len(self._events)
        while not self._closed:
            with self._changed:
                if len(self._events) == place:
                    self._changed.wait(timeout=2)
            new = self._events[place:]
            place += len(new)
            for kind, change, value in new:
                if kind == resource and _is_chosen(value, query):
                    yield {"type": change, "object": value}

    def list_version(self) -> str:
        return str(self._version)

    def close(self) -> None:
        self._closed = True
        self._server.shutdown()
        for process in self.processes.values():
            _end(process)

    def _store(self, resource: str, change: str, value: dict[str, Any]) -> None:
        with self._changed:
            self._version += 1
            value["metadata"]["resourceVersion"] = str(self._version)
            if change != "DELETED":
                self._objects[resource, value["metadata"]["name"]] = value
            self._events.append((resource, change, json.loads(json.dumps(value))))
            self._changed.notify_all()

    def _start(self, name: str, container: Mapping[str, Any]) -> None:
        fields = {"status.podIP": "127.0.0.1", "metadata.name": name}
        variables = {}
        for entry in container.get("env", []):
            source = entry.get("valueFrom", {})
            if "fieldRef" in source:
                variables[entry["name"]] = fields[source["fieldRef"]["fieldPath"]]
            elif "secretKeyRef" in source:
                variables[entry["name"]] = f"of-{source['secretKeyRef']['name']}"
            else:
                variables[entry["name"]] = entry.get("value", "")
        command = [str(self._entry_point), *container["args"]]
        with (self._folder / f"{name}.log").open("wb") as log:
            process = subprocess.Popen(
                command,
                env={**variables, **self._variables},
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.processes[name] = process
        threading.Thread(target=self._report, args=(name, process), daemon=True).start()

    def _report(self, name: str, process: subprocess.Popen[bytes]) -> None:
        code = process.wait()
        pod = self.read("pods", name)
        if pod is not None:
            pod["status"] = _status("Failed" if code else "Succeeded", abs(code))
            self._store("pods", "MODIFIED", pod)


@contextmanager
def pod_api(
    rules: Sequence[Mapping[str, Any]], entry_point: Path, variables: Mapping[str, str], folder: Path
) -> Iterator[PodApi]:
    """A server whose clients have the rights of a Role.

    Args:
        rules: the rules of the Role.
        entry_point: the program that a container of an executor starts.
        variables: variables of all containers, which replace those of their pods.
        folder: where the output of each container is written.
    """
    api = PodApi(rules, entry_point, variables, folder)
    try:
        yield api
    finally:
        api.close()


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _driver_pod() -> dict[str, Any]:
    metadata = {"name": DRIVER, "namespace": NAMESPACE, "uid": "uid-driver", "labels": {}}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {"containers": []}}
    return {**pod, "status": _status("Running")}


def _status(phase: str, exit_code: int = 0) -> dict[str, Any]:
    now = datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
    state: dict[str, Any] = {"running": {"startedAt": now}}
    if phase != "Running":
        state = {"terminated": {"exitCode": exit_code, "startedAt": now, "finishedAt": now}}
    ready = {"type": "Ready", "status": "True" if phase == "Running" else "False"}
    container = {"name": "spark-kubernetes-executor", "state": state, "ready": True, "restartCount": 0}
    return {"phase": phase, "conditions": [ready], "containerStatuses": [container], "podIP": "127.0.0.1"}


def _is_chosen(value: Mapping[str, Any], query: Mapping[str, str]) -> bool:
    labels = value["metadata"].get("labels", {})
    fields = {
        "metadata.name": value["metadata"]["name"],
        "status.phase": value.get("status", {}).get("phase"),
    }
    rules = [(labels, rule) for rule in _rules(query.get("labelSelector", ""))]
    rules += [(fields, rule) for rule in _rules(query.get("fieldSelector", ""))]
    return all(_holds(where, rule) for where, rule in rules)


def _rules(selector: str) -> list[str]:
    return [rule for rule in re.split(r",(?![^(]*\))", selector) if rule]


def _holds(values: Mapping[str, Any], rule: str) -> bool:
    if among := re.fullmatch(r"(\S+) (in|notin) \((.*)\)", rule):
        return (values.get(among[1]) in among[3].split(",")) == (among[2] == "in")
    if "!=" in rule:
        name, value = rule.split("!=")
        return values.get(name) != value
    if rule.startswith("!"):
        return rule[1:] not in values
    name, _, value = rule.replace("==", "=").partition("=")
    return values.get(name) == value if value else name in values


class _Handler(BaseHTTPRequestHandler):
    api: PodApi
    protocol_version = "HTTP/1.1"

    def _answer(self) -> None:
        url = urlsplit(self.path)
        query = {name: values[0] for name, values in parse_qs(url.query).items()}
        length = int(self.headers.get("Content-Length") or 0)
        body = json.loads(self.rfile.read(length)) if length else None
        match = _PATH.match(url.path)
        if match is None:
            return self._fail(404, url.path)
        resource, name = match.groups()
        watches = query.get("watch") == "true"
        verb = _VERBS.get(self.command) or (
            ("get" if name else "watch" if watches else "list")
            if self.command == "GET"
            else ("delete" if name else "deletecollection")
        )
        if not self.api.is_allowed(resource, verb):
            return self._fail(403, f"cannot {verb} {resource}")
        if watches:
            # Spark's client first asks for a web socket. Without one, it reads the answer as a stream.
            return (
                self._fail(503, "no web sockets")
                if "Upgrade" in self.headers
                else self._stream(resource, query)
            )
        if verb == "create":
            return self._send(201, self.api.create(resource, body))
        if name:
            value = self.api.read(resource, name)
            if value is None:
                return self._fail(404, name)
            if verb == "delete":
                self.api.delete(resource, value)
            return self._send(200, value)
        chosen = self.api.find(resource, query)
        if verb == "deletecollection":
            for value in chosen:
                self.api.delete(resource, value)
        kinds = {
            "pods": "PodList",
            "configmaps": "ConfigMapList",
            "persistentvolumeclaims": "PersistentVolumeClaimList",
        }
        metadata = {"resourceVersion": self.api.list_version()}
        return self._send(
            200, {"apiVersion": "v1", "kind": kinds[resource], "metadata": metadata, "items": chosen}
        )

    def _send(self, code: int, value: object) -> None:
        content = json.dumps(value).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def _fail(self, code: int, message: str) -> None:
        status = {"apiVersion": "v1", "kind": "Status", "status": "Failure", "message": message, "code": code}
        self._send(code, status)

    def _stream(self, resource: str, query: Mapping[str, str]) -> None:
        self.close_connection = True
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        self.wfile.flush()
        try:
            for event in self.api.events(resource, query):
                line = json.dumps(event).encode() + b"\n"
                self.wfile.write(f"{len(line):x}\r\n".encode() + line + b"\r\n")
                self.wfile.flush()
        except OSError:  # the client has ended the watch
            return

    do_GET = do_POST = do_DELETE = do_PATCH = do_PUT = _answer

    def log_message(self, *_: object) -> None:
        """Logs nothing."""
