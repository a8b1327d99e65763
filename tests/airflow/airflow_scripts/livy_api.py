"""A small Livy on loopback. It checks requests by its documented fields, and runs each batch as a process.

Its logs have the form of Livy's: the last lines of standard output, then of standard error.
"""

import inspect
import json
import os
import re
import signal
import subprocess
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

from airflow.providers.apache.livy.hooks.livy import LivyHook

_PATH = re.compile(r"^/batches(?:/(\d+))?(/state|/log)?$")
# The fields of POST /batches that the provider can send, by the names of the REST API.
_FIELDS = {
    re.sub(r"_(\w)", lambda match: match[1].upper(), name)
    for name in inspect.signature(LivyHook.build_post_batch_body).parameters
}
_KEPT_LINES = 200
_REFUSED_PROPERTIES = {"spark.master", "spark.submit.deployMode"}


class Batch:
    def __init__(self, number, body, python, environment):
        self.number, self.body, self.lines = number, body, {"out": [], "err": []}
        self.process = subprocess.Popen(
            [python, body["file"], *body.get("args", [])],
            env=environment,
            cwd="/",
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self.readers = [
            threading.Thread(target=self._read, args=[kind, stream], daemon=True)
            for kind, stream in (("out", self.process.stdout), ("err", self.process.stderr))
        ]
        for reader in self.readers:
            reader.start()

    def _read(self, kind, stream):
        self.lines[kind] += [line.rstrip("\n") for line in stream]

    @property
    def state(self):
        code = self.process.poll()
        if code is None or any(reader.is_alive() for reader in self.readers):
            return "running"
        return "success" if code == 0 else "dead"

    def log(self):
        out, err = (self.lines[kind][-_KEPT_LINES:] for kind in ("out", "err"))
        return ["stdout: ", *out, "\nstderr: ", *err, "\nYARN Diagnostics: "]

    def described(self):
        return {
            "id": self.number,
            "name": self.body.get("name"),
            "state": self.state,
            "log": self.log()[-10:],
        }

    def end(self):
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)


class Livy:
    """The server. `posted` are the bodies of all batches; `batches` are those that were not deleted."""

    def __init__(self, python, environment):
        self.posted, self.batches, self.python, self.environment = [], {}, python, environment
        handler = type("Handler", (_Handler,), {"livy": self})
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self.port = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def post(self, body):
        """Starts a batch. Returns what is wrong with the body, or the batch."""
        if unknown := set(body) - _FIELDS:
            return f"Unrecognized fields {unknown}"
        if not all(isinstance(word, str) for word in (body["file"], *body.get("args", []))):
            return "file and args must be strings"
        if refused := set(body.get("conf", {})) & _REFUSED_PROPERTIES:
            return f"Blacklisted configuration values in session config: {refused}"
        if body.get("name") in {batch.body.get("name") for batch in self.batches.values()}:
            return f"Duplicate session name: {body['name']}"
        self.posted.append(body)
        batch = Batch(len(self.posted) - 1, body, self.python, self.environment)
        self.batches[batch.number] = batch
        return batch


class _Handler(BaseHTTPRequestHandler):
    livy: Livy

    def _answer(self, method):
        url = urlsplit(self.path)
        match = _PATH.match(url.path)
        if method == "POST":
            posted = self.livy.post(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            if isinstance(posted, str):
                return self._send(400, {"msg": posted})
            return self._send(201, posted.described())
        batch = self.livy.batches.get(int(match[1])) if match and match[1] else None
        if batch is None:
            return self._send(404, {"msg": f"Session '{match and match[1]}' not found."})
        if method == "DELETE":
            del self.livy.batches[batch.number]
            batch.end()
            return self._send(200, {"msg": "deleted"})
        if match[2] == "/state":
            return self._send(200, {"id": batch.number, "state": batch.state})
        if match[2] == "/log":
            query = {name: int(values[0]) for name, values in parse_qs(url.query).items()}
            log, start = batch.log(), query["from"]
            page = log[start : start + query["size"]]
            return self._send(200, {"id": batch.number, "from": start, "total": len(log), "log": page})
        return self._send(200, batch.described())

    def _send(self, code, value):
        content = json.dumps(value).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def do_GET(self):
        self._answer("GET")

    def do_POST(self):
        self._answer("POST")

    def do_DELETE(self):
        self._answer("DELETE")

    def log_message(self, *_):
        """Logs nothing."""
