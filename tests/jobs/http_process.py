"""A process that serves functions without a model: `python http_process.py FOLDER`, with settings.json there.

Prints the port. The routes: /work?s=SECONDS sleeps, /echo returns the body's size, /large returns 16 MiB,
/fails raises an error, /health is public.
"""

from __future__ import annotations

import json
import socket
import sys
import time
from pathlib import Path

from jobs.http_server import HttpAnswer, HttpApplication, HttpLimits, HttpRequest, Route, serve
from jobs.serve_model import tls_context


def work(request: HttpRequest) -> HttpAnswer:
    time.sleep(float(request.query.get("s", "0")))
    return HttpAnswer(b"done")


def echo(request: HttpRequest) -> HttpAnswer:
    return HttpAnswer(json.dumps([len(request.body), request.media_type, request.rest]).encode())


def fails(request: HttpRequest) -> HttpAnswer:
    raise RuntimeError("the secret of this server")


def main(folder: Path) -> None:
    settings = json.loads((folder / "settings.json").read_text())
    app = HttpApplication(
        [
            Route("/health", lambda _: HttpAnswer(b"up"), is_public=True, is_work=False),
            Route("/work", work),
            Route("/echo", echo, method="POST"),
            Route("/large", lambda _: HttpAnswer(bytes(16 * 1024**2))),
            Route("/fails", fails),
        ],
        HttpLimits(**settings["limits"]),
        settings["token"],
    )
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(500)
        print(listener.getsockname()[1], flush=True)
        serve(app, listener, tls_context(settings["certificate"], settings["key"]))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
