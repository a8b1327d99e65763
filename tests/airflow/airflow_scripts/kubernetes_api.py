"""A small Kubernetes API on loopback. It checks each pod by the client's types, and runs it as a process.

Pods: create, list by labels, read, follow the log, patch labels, delete. As a kubelet does, it replaces
$(NAME) in arguments, starts the container in its working folder, and reports its exit code.
"""

import json
import os
import re
import signal
import subprocess
import threading
import time
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

from kubernetes import client

NAMESPACE = "night"
_PATH = re.compile(r"^/api/v1/namespaces/([^/]+)/(pods|events)(?:/([^/]+))?(/log)?$")


class Answer(Exception):
    """An answer that is not 200: code and reason."""


class Body:
    """What the client's deserializer reads."""

    def __init__(self, value):
        self.data = json.dumps(value)


def check_pod(body):
    """Raises Answer(422) if the client's types do not hold a pod, or if a required value is missing."""
    api = client.ApiClient()
    try:
        pod = api.deserialize(Body(body), "V1Pod")
    except ValueError as error:
        raise Answer(422, str(error)) from error
    kept = api.sanitize_for_serialization(pod)
    if kept != body:
        raise Answer(422, f"unknown fields: {body} instead of {kept}")
    for container in pod.spec.containers:
        if not container.image:
            raise Answer(422, "spec.containers[0].image: Required value")
    return pod


def expanded(text, variables):
    """A text as a kubelet passes it on: $(NAME) is a variable, $$ is $."""
    return re.sub(
        r"\$\$|\$\((\w+)\)",
        lambda match: "$" if match[0] == "$$" else variables.get(match[1], match[0]),
        text,
    )


class Pod:
    """A pod whose one container is a process."""

    def __init__(self, body):
        self.body = body
        self.name = body["metadata"]["name"]
        self.lines, self.code = [], None
        container = body["spec"]["containers"][0]
        fields = {"status.podIP": "10.0.0.7", "metadata.name": self.name}
        variables = {}
        for entry in container.get("env", []):
            source = entry.get("valueFrom")
            known = fields[source["fieldRef"]["fieldPath"]] if source else entry.get("value", "")
            variables[entry["name"]] = known if source else expanded(known, variables)
        words = [*container.get("command", []), *container.get("args", [])]
        self.words = [expanded(word, variables) for word in words]
        self.is_lost = variables.get("END") == "lost"
        self.log_is_cut = "LOG_IS_CUT" in variables
        self.process = subprocess.Popen(
            self.words,
            cwd=container.get("workingDir"),
            env={"PATH": os.environ["PATH"], **variables},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self):
        for line in self.process.stdout:
            self.lines.append(f"{datetime.now(UTC).isoformat().replace('+00:00', 'Z')} {line}")
        code = self.process.wait()
        self.code = 128 - code if code < 0 else code

    def end(self):
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)

    def described(self):
        """The pod as the API describes it now."""
        now = datetime.now(UTC).isoformat()
        running = self.code is None
        state = (
            {"running": {"startedAt": now}}
            if running
            else {
                "terminated": {
                    "exitCode": self.code,
                    "reason": "Error" if self.code else "Completed",
                    "startedAt": now,
                    "finishedAt": now,
                }
            }
        )
        status = {"name": "base", "image": "x", "imageID": "x", "ready": running, "restartCount": 0}
        phase = "Running" if running else "Failed" if self.code else "Succeeded"
        lost = self.is_lost and not running
        statuses = [] if lost else [{**status, "state": state}]
        return {
            **self.body,
            "status": {"phase": phase, "startTime": now, "containerStatuses": statuses, "podIP": "10.0.0.7"},
        }


class KubernetesApi:
    """The server. `created` are the bodies of all pods; `pods` are those that exist."""

    def __init__(self):
        self.created, self.pods, self.deleted = [], {}, []
        handler = type("Handler", (_Handler,), {"api": self})
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def connection(self):
        """The JSON of an Airflow connection to this server."""
        named = {"name": "test"}
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{**named, "cluster": {"server": self.url}}],
            "users": [{**named, "user": {}}],
            "contexts": [{**named, "context": {"cluster": "test", "user": "test"}}],
            "current-context": "test",
        }
        return json.dumps({"conn_type": "kubernetes", "extra": {"kube_config": json.dumps(config)}})

    def create(self, body):
        check_pod(body)
        name = body["metadata"]["name"]
        if name in self.pods:
            raise Answer(409, "AlreadyExists")
        self.created.append(body)
        self.pods[name] = Pod(body)
        return body

    def chosen(self, selector):
        """The pods with these labels."""
        kept = []
        for pod in self.pods.values():
            labels = pod.body["metadata"].get("labels", {})
            if all(_holds(rule, labels) for rule in filter(None, selector.split(","))):
                kept.append(pod.described())
        return {"apiVersion": "v1", "kind": "PodList", "metadata": {}, "items": kept}


def _holds(rule, labels):
    if "!=" in rule:
        name, value = rule.split("!=")
        return labels.get(name) != value
    if rule.startswith("!"):
        return rule[1:] not in labels
    name, value = rule.split("=")
    return labels.get(name) == value


class _Handler(BaseHTTPRequestHandler):
    api: KubernetesApi

    def _answer(self, method):
        url = urlsplit(self.path)
        query = {name: values[0] for name, values in parse_qs(url.query).items()}
        length = int(self.headers.get("Content-Length") or 0)
        body = json.loads(self.rfile.read(length)) if length else None
        try:
            match = _PATH.match(url.path)
            if not match or match[1] != NAMESPACE:
                raise Answer(404, f"{method} {url.path}")
            _, kind, name, log = match.groups()
            if kind == "events":
                return self._send(200, {"apiVersion": "v1", "kind": "EventList", "metadata": {}, "items": []})
            if name is None:
                return self._send(
                    201 if body else 200,
                    self.api.create(body) if body else self.api.chosen(query["labelSelector"]),
                )
            if name not in self.api.pods:
                raise Answer(404, name)
            pod = self.api.pods[name]
            if log:
                return self._log(pod, query)
            if method == "PATCH":
                pod.body["metadata"]["labels"].update(body["metadata"]["labels"])
            if method == "DELETE":
                self.api.pods.pop(name).end()
                self.api.deleted.append(name)
            return self._send(200, pod.described())
        except Answer as answer:
            code, reason = answer.args
            status = {
                "apiVersion": "v1",
                "kind": "Status",
                "status": "Failure",
                "message": reason,
                "code": code,
            }
            return self._send(code, status)

    def _send(self, code, value):
        content = json.dumps(value).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def _log(self, pod, query):
        self.send_response(200)
        self.send_header("Content-Type", "text/plain")
        self.end_headers()
        sent, follows = 0, query.get("follow") == "True"
        if follows and pod.log_is_cut:
            pod.process.wait()
            return
        while True:
            ended = pod.code is not None
            while sent < len(pod.lines):
                line = pod.lines[sent]
                self.wfile.write((line if "timestamps" in query else line.split(" ", 1)[1]).encode())
                self.wfile.flush()
                sent += 1
            if ended or not follows:
                return
            time.sleep(0.02)

    def do_GET(self):
        self._answer("GET")

    def do_POST(self):
        self._answer("POST")

    def do_PATCH(self):
        self._answer("PATCH")

    def do_DELETE(self):
        self._answer("DELETE")

    def log_message(self, *_):
        """Logs nothing."""
