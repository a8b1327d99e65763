"""A proxy before fake-gcs-server, for the requests of delta-rs that the server does not have.

delta-rs uploads by Google's XML API (`PUT /bucket/object`), with the precondition in a header. The server has
only the JSON API for uploads, and it ignores the parameter `start-after` of lists. All other requests are passed on unchanged, and the server alone checks preconditions.
Run it as `python google_proxy.py PORT SERVER_PORT`.
"""

from __future__ import annotations

import re
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, quote, unquote, urlsplit

import urllib3

_PRECONDITION = "x-goog-if-generation-match"
_CONTENTS = re.compile(rb"<Contents><Key>([^<]*)</Key>.*?</Contents>")
_HOP = {"connection", "transfer-encoding", "content-length", "keep-alive", "content-encoding"}


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server_port: int
    _pools = threading.local()

    def do_GET(self) -> None:
        body = self._body()
        method, path, headers = self.command, self.path, dict(self.headers.items())
        address = urlsplit(path)
        if method == "PUT" and not address.path.startswith(("/upload/", "/storage/", "/_internal")):
            bucket, _, name = address.path.lstrip("/").partition("/")
            method = "POST"
            path = f"/upload/storage/v1/b/{bucket}/o?uploadType=media&name={quote(unquote(name), safe='')}"
            if (generation := self.headers.get(_PRECONDITION)) is not None:
                path += f"&ifGenerationMatch={generation}"
        answer = self._pool().urlopen(
            method,
            path,
            body=body,
            headers=headers,
            preload_content=False,
            decode_content=False,
            retries=False,
        )
        data = answer.read(decode_content=False)
        if start := parse_qs(address.query).get("start-after"):
            data = _CONTENTS.sub(lambda entry: entry[0] if entry[1].decode() > start[0] else b"", data)
        self.send_response(answer.status)
        kept = {name: value for name, value in answer.headers.items() if name.lower() not in _HOP}
        if answer.headers.get("Content-Encoding"):
            kept["Content-Encoding"] = answer.headers["Content-Encoding"]
        if method == "POST" and self.command == "PUT":
            kept["ETag"] = '"uploaded"'  # the XML API returns it in a header
        for name, value in kept.items():
            self.send_header(name, value)
        length = answer.headers.get("Content-Length") if self.command == "HEAD" else str(len(data))
        self.send_header("Content-Length", length or "0")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    do_HEAD = do_POST = do_PUT = do_DELETE = do_PATCH = do_GET

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding", "").lower() == "chunked":
            parts = []
            while size := int(self.rfile.readline().split(b";")[0], 16):
                parts.append(self.rfile.read(size))
                self.rfile.readline()
            self.rfile.readline()
            del self.headers["Transfer-Encoding"]
            return b"".join(parts)
        return self.rfile.read(int(self.headers.get("Content-Length") or 0))

    def _pool(self) -> urllib3.HTTPConnectionPool:
        if not hasattr(self._pools, "pool"):
            self._pools.pool = urllib3.HTTPConnectionPool("127.0.0.1", self.server_port)
        pool: urllib3.HTTPConnectionPool = self._pools.pool
        return pool

    def log_message(self, format: str, *arguments: object) -> None:
        """Logs nothing."""


if __name__ == "__main__":
    port, _Handler.server_port = map(int, sys.argv[1:])
    ThreadingHTTPServer(("127.0.0.1", port), _Handler).serve_forever()
