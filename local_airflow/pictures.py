"""Creates the pictures of docs/airflow.md: headless Chromium takes screenshots of a running `make airflow`.

    ~/.cache/nightrank/airflow/bin/python local_airflow/pictures.py http://127.0.0.1:8080 docs/pictures

Run it with the Python of Airflow's environment, which has a WebSocket client. The program controls Chromium
through the DevTools protocol.
"""

from __future__ import annotations

import base64
import itertools
import json
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from websockets.sync.client import ClientConnection, connect

DAG = "daily_recommendations"
# The grid of runs and the graph of tasks are two views of one page. Keys in the browser's local storage
# select the view, the direction of the graph, and the share of the width that the grid gets.
SETTINGS = {
    f"direction-{DAG}": "DOWN",
    "react-resizable-panels:grid-ltr": {
        "details-panel,main-panel": {"expandToSizes": {}, "layout": [40, 60]}
    },
}
VIEWS = {"airflow-grid": "grid", "airflow-graph": "graph"}
SIZES = {"airflow-grid": (1280, 720), "airflow-graph": (900, 1200)}
_FIT = "Fit View"  # the button that makes the graph as large as its panel
_DETAILS = "Collapse Details Panel"
_PATIENCE_S = 60
_SETTLED_S = 4  # the page draws the graph some time after it has received the data


class Page:
    """A browser tab that is controlled through the DevTools protocol."""

    def __init__(self, socket: ClientConnection) -> None:
        self._socket = socket
        self._numbers = itertools.count(1)

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Calls a method of the DevTools protocol and returns its result."""
        number = next(self._numbers)
        self._socket.send(json.dumps({"id": number, "method": method, "params": parameters}))
        while True:
            answer = json.loads(self._socket.recv(timeout=_PATIENCE_S))
            if answer.get("id") == number:
                return dict(answer["result"])

    def evaluate(self, expression: str) -> Any:
        """Returns the value of a JavaScript expression in the page."""
        return self.call("Runtime.evaluate", expression=expression)["result"].get("value")

    def visit(self, url: str, until: str) -> None:
        """Opens a page and waits until its text contains `until`."""
        self.call("Page.navigate", url=url)
        end = time.monotonic() + _PATIENCE_S
        while until not in (self.evaluate("document.body ? document.body.innerText : ''") or ""):
            if time.monotonic() > end:
                raise TimeoutError(f"{url} does not show {until!r}")
            time.sleep(0.5)
        time.sleep(_SETTLED_S)

    def store(self, key: str, value: Any) -> None:
        """Writes a JSON value into the local storage of the page's address."""
        self.evaluate(f"localStorage.setItem({json.dumps(key)}, {json.dumps(json.dumps(value))})")

    def click(self, label: str) -> None:
        """Clicks the button with this label, and waits until the page has changed.

        Raises:
            LookupError: the page has no such button.
        """
        button = f"document.querySelector('[aria-label={json.dumps(label)}]')"
        if not self.evaluate(f"{button} !== null && ({button}.click(), true)"):
            raise LookupError(f"the page has no button {label!r}")
        time.sleep(_SETTLED_S)

    def resize(self, width: int, height: int) -> None:
        """Makes the page `width` times `height` pixels large."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.call("Emulation.setDeviceMetricsOverride", **size)

    def picture(self, path: Path) -> None:
        """Writes a screenshot as a PNG file."""
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"]))


@contextmanager
def chromium() -> Iterator[Page]:
    """Starts a headless Chromium with a temporary profile, yields its tab, and ends it."""
    program = shutil.which("chromium") or shutil.which("google-chrome")
    if program is None:
        raise SystemExit("there is no chromium on PATH: apt-get install chromium")
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        options = ["--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
        options += ["--remote-debugging-port=0", f"--user-data-dir={profile}", "about:blank"]
        process = subprocess.Popen([program, *options], stderr=subprocess.DEVNULL)
        try:
            port_file = Path(profile) / "DevToolsActivePort"
            end = time.monotonic() + _PATIENCE_S
            while not (port_file.exists() and "\n" in port_file.read_text()):
                if time.monotonic() > end:
                    raise TimeoutError(f"Chromium opened no DevTools port within {_PATIENCE_S} s")
                time.sleep(0.2)
            port = port_file.read_text().splitlines()[0]
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/json/list") as answer:
                tab = next(target for target in json.load(answer) if target["type"] == "page")
            with connect(tab["webSocketDebuggerUrl"], max_size=None) as socket:
                yield Page(socket)
        finally:
            process.terminate()
            process.wait()


def main(url: str, folder: Path) -> None:
    """Writes the pictures of the Airflow at `url` into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    with chromium() as page:
        page.visit(f"{url}/dags/{DAG}", until=DAG)
        for key, value in SETTINGS.items():
            page.store(key, value)
        for name, view in VIEWS.items():
            page.resize(*SIZES[name])
            page.store("default_dag_view", view)
            page.visit(f"{url}/dags/{DAG}", until="build_candidates")
            if view == "graph":
                page.click(_DETAILS)
                page.click(_FIT)
            page.picture(folder / f"{name}.png")


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
