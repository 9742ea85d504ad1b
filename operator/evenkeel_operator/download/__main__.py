"""`python3 -m evenkeel_operator.download`: download a model's files into a folder, and report on a port how far it is.

The last line of the log is the reason of a failure: the kubelet keeps it, and condition ModelCached has it.
"""

from __future__ import annotations

import argparse
import sys
import threading
from collections.abc import Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from socket import AF_INET, AF_INET6

import msgspec
from evenkeel_contract.downloads import PROGRESS_PATH
from evenkeel_contract.listening import ALL_IPV4

from evenkeel_operator.download.folder import Folder, remove_others
from evenkeel_operator.download.sources import DownloadError, source_of


def main(arguments: Sequence[str]) -> int:
    """The exit code."""
    given = parser().parse_args(arguments)
    folder = Folder(given.folder)
    try:
        for name in remove_others(given.folder, keep=given.keep):
            _say(f"removed {name}, which no replica uses")
        if folder.is_complete:
            _say(f"{given.source} is complete already")
            return 0
        if given.port:
            serve(folder, given.host, given.port)
        _say(f"downloading {given.source}")
        folder.download(
            source_of(
                given.source,
                endpoint=given.endpoint,
                region=given.region,
                anonymous=given.anonymous,
            )
        )
    except (DownloadError, OSError) as error:
        _say(str(error))
        return 1
    _say(f"downloaded {len(folder.items)} files, {folder.total} bytes")
    return 0


def parser() -> argparse.ArgumentParser:
    """The flags, as `manifests/model.py` renders them."""
    found = argparse.ArgumentParser(prog="evenkeel_operator.download")
    found.add_argument("--source", required=True)
    found.add_argument("--folder", required=True, type=Path)
    found.add_argument("--keep", action="append", default=[], help="folder beside it that stays")
    found.add_argument("--endpoint", default="")
    found.add_argument("--region", default="")
    found.add_argument("--anonymous", action="store_true")
    found.add_argument("--host", default=ALL_IPV4)
    found.add_argument("--port", type=int, default=0, help="0: report no progress")
    return found


def serve(folder: Folder, host: str, port: int) -> ThreadingHTTPServer:
    """Answer requests for the progress until the process ends."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path != PROGRESS_PATH:
                self.send_error(404)
                return
            body = msgspec.json.encode(folder.progress)
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """The log is for the download."""

    class Server(ThreadingHTTPServer):
        address_family = AF_INET6 if ":" in host else AF_INET
        daemon_threads = True

    server = Server((host, port), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server


def _say(line: str) -> None:
    print(line, flush=True)  # noqa: T201 - the log of the pod


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
