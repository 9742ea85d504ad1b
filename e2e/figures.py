"""A fake Prometheus with values set by the test, for scaling decisions that no load on this machine causes.

It answers the operator's own queries by their text, so it also checks that they select the right service. A real
Prometheus is in `scraping.py`.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from evenkeel_contract.validate import parse_service
from evenkeel_operator.core.recommendation import Answers, Sample, queries

from e2e.scraping import host
from tests.support.crd_documents import SCALED


@dataclass(frozen=True, slots=True)
class Question:
    """One received query."""

    query: str
    prefix: str
    """Path prefix: the part of `prometheus.url` after the host."""
    token: str | None
    """The bearer token of the request."""


Says = Callable[[Question], Sequence[Sample]]


def samples_of(
    question: Question, *, namespace: str, service: str, answers: Answers
) -> Sequence[Sample]:
    """The answer to a query about this service; none to any other."""
    sample, _ = parse_service(SCALED)  # with every target, so that every query is possible
    assert sample is not None
    assert sample.spec.autoscaling is not None
    asked = queries(namespace, service, sample.spec.autoscaling)
    names = [name for name, query in asked.items() if query == question.query]
    return [found for name in names for found in answers.get(name, ())]


@contextmanager
def figures(says: Says) -> Iterator[str]:
    """Its address, as pods see it."""

    class Handler(BaseHTTPRequestHandler):
        """`GET …/api/v1/query?query=…`."""

        def do_GET(self) -> None:
            split = urlsplit(self.path)
            (query,) = parse_qs(split.query)["query"]
            prefix = split.path.removesuffix("/api/v1/query")
            token = (self.headers["Authorization"] or "").removeprefix("Bearer ") or None
            body = json.dumps(_vector(says(Question(query, prefix, token)))).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            """No log lines for queries every 15 s."""

    with ThreadingHTTPServer((host(), 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield f"http://{host()}:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def _vector(samples: Sequence[Sample]) -> dict[str, Any]:
    now_s = time.time()
    result = [{"metric": one.labels, "value": [now_s, str(one.value)]} for one in samples]
    return {"status": "success", "data": {"resultType": "vector", "result": result}}
