"""A bucket at the seam to the network: lists and reads objects as S3 does, and as the XML API of Google Cloud Storage does."""

from __future__ import annotations

import hashlib
import re
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

CHUNK = 64 * 1024


class Objects:
    """The objects of all buckets, and what clients asked for."""

    def __init__(self, contents: Mapping[str, bytes], *, key: str = "", pause_s: float = 0) -> None:
        """`contents`: `bucket/name` → content. `key`: what requests have to be signed with; empty: nothing."""
        self.contents = dict(contents)
        self.key = key
        self.pause_s = pause_s
        self.ranges: list[tuple[str, str]] = []
        """(name, Range header) of each read."""
        self.cut_after: int | None = None
        """Bytes after which the next reads break off."""

    def listing(self, bucket: str, prefix: str) -> str:
        names = sorted(one for one in self.contents if one.startswith(f"{bucket}/{prefix}"))
        entries = "".join(
            f"<Contents><Key>{escape(one.partition('/')[2])}</Key><Size>{len(self.contents[one])}</Size>"
            f'<ETag>"{etag(self.contents[one])}"</ETag><LastModified>2026-01-01T00:00:00.000Z</LastModified></Contents>'
            for one in names
        )
        return f"<ListBucketResult><Name>{bucket}</Name><IsTruncated>false</IsTruncated>{entries}</ListBucketResult>"


def etag(content: bytes) -> str:
    return hashlib.md5(content).hexdigest()


class Handler(BaseHTTPRequestHandler):
    objects: Objects
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        objects = self.objects
        url = urlsplit(self.path)
        query = parse_qs(url.query)
        bucket, _, name = unquote(url.path).lstrip("/").partition("/")
        signed = self.headers.get("Authorization", "")
        if objects.key and objects.key not in signed:
            self._send(403, b"<Error><Code>AccessDenied</Code></Error>")
        elif "list-type" in query:
            prefix = query.get("prefix", [""])[0]
            self._send(200, objects.listing(bucket, prefix).encode())
        elif f"{bucket}/{name}" not in objects.contents:
            self._send(404, b"<Error><Code>NoSuchKey</Code></Error>")
        else:
            self._read(name, objects.contents[f"{bucket}/{name}"])

    def _read(self, name: str, content: bytes) -> None:
        objects = self.objects
        wanted = self.headers.get("Range", "")
        objects.ranges.append((name, wanted))
        found = re.fullmatch(r"bytes=(\d+)-(\d*)", wanted)
        start = int(found[1]) if found else 0
        part = content[start:]
        self.send_response(206 if found else 200)
        if found:
            span = f"bytes {start}-{len(content) - 1}/{len(content)}"
            self.send_header("Content-Range", span)
        self.send_header("ETag", f'"{etag(content)}"')
        self.send_header("Last-Modified", "Thu, 01 Jan 2026 00:00:00 GMT")
        self.send_header("Content-Length", str(len(part)))
        self.end_headers()
        cut = len(part) if objects.cut_after is None else objects.cut_after
        for at in range(0, min(cut, len(part)), CHUNK):
            time.sleep(objects.pause_s)
            self.wfile.write(part[at : min(at + CHUNK, cut)])
        if cut < len(part):
            self.close_connection = True

    def _send(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        pass


def handler(objects: Objects) -> type[BaseHTTPRequestHandler]:
    return type("Bound", (Handler,), {"objects": objects})


@contextmanager
def serving(objects: Objects, *, host: str = "127.0.0.1") -> Iterator[str]:
    """The address of the store."""
    server = ThreadingHTTPServer((host, 0), handler(objects))
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://{host}:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
