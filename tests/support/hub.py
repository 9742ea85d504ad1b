"""Hugging Face at the seam to the network: the metadata and the files of one repository."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

COMMIT = "c" * 40


class Handler(BaseHTTPRequestHandler):
    repository: str
    files: Mapping[str, bytes]
    token: str

    def do_GET(self) -> None:
        self._answer(with_body=True)

    def do_HEAD(self) -> None:
        self._answer(with_body=False)

    def _answer(self, *, with_body: bool) -> None:
        path = self.path.partition("?")[0]
        root = f"/{self.repository}/resolve/{COMMIT}/"
        if self.token and self.headers.get("Authorization") != f"Bearer {self.token}":
            self._send(401, b"", {"X-Error-Message": "Invalid token"})
        elif path in (
            f"/api/models/{self.repository}",
            f"/api/models/{self.repository}/revision/v1",
        ):
            listed = [{"rfilename": name, "size": len(body)} for name, body in self.files.items()]
            found = {"id": self.repository, "sha": COMMIT, "siblings": listed}
            self._send(200, json.dumps(found).encode())
        elif path.startswith(root) and path.removeprefix(root) in self.files:
            body = self.files[path.removeprefix(root)]
            headers = {"ETag": f'"{hashlib.sha1(body).hexdigest()}"', "X-Repo-Commit": COMMIT}
            self._send(200, body, headers, with_body=with_body)
        else:
            self._send(404, b"", {"X-Error-Code": "RepoNotFound"})

    def _send(
        self, status: int, body: bytes, headers: Mapping[str, str] | None = None, *, with_body: bool = True
    ) -> None:  # fmt: skip
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if with_body:
            self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        pass


@contextmanager
def serving(repository: str, files: Mapping[str, bytes], *, token: str = "") -> Iterator[str]:
    """The address for HF_ENDPOINT."""
    bound = type("Bound", (Handler,), {"repository": repository, "files": files, "token": token})
    server = ThreadingHTTPServer(("127.0.0.1", 0), bound)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
