"""Every figure that one request changes, for each way in which a request can go."""

from __future__ import annotations

import asyncio
import io
import json
from collections import deque
from collections.abc import Iterator
from typing import Any

import httpx
from evenkeel_contract.qoeconfig import QoeConfig
from evenkeel_contract.queueorder import QueueOwner
from evenkeel_contract.routerconfig import LimitsConfig, ReplicaConfig, SchedulingConfig
from evenkeel_router.app import Router, running
from evenkeel_router.ledger.totals import Histogram
from evenkeel_router.transport.upstream import (
    BrokenError,
    Outgoing,
    SilenceError,
    UnansweredError,
    UpstreamError,
)

from tests.support.decisions import text
from tests.support.fakes import FakeProber, FakeReply, FakeUpstream, headers_of, replicas
from tests.support.routers import KEY, MODEL, QUICK, config_for, routable, until

USAGE = (
    '"usage":{"prompt_tokens":9,"completion_tokens":4,"prompt_tokens_details":{"cached_tokens":5}}'
)
EVENT = b'data: {"choices":[{"delta":{"content":"a"}}]}\n\n'
LAST = f'data: {{"choices":[],{USAGE}}}\n\n'.encode()
DONE = b"data: [DONE]\n\n"
BROKEN, LOST, SILENT = BrokenError("reset"), UnansweredError("gone"), SilenceError("silence")


def events(*parts: bytes | UpstreamError) -> FakeReply:
    return FakeReply(parts, content_type="text/event-stream")


def whole(body: str, status: int = 200) -> FakeReply:
    return FakeReply([body.encode()], status=status)


CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
PLAIN: dict[str, Any] = {"model": MODEL, "prompt": "hello"}
STREAM = PLAIN | {"stream": True}
USED = STREAM | {"stream_options": {"include_usage": True}}
Case = tuple[str, dict[str, Any] | str, list[FakeReply | UpstreamError]]
CASES: dict[str, Case] = {
    "whole": (COMPLETIONS, PLAIN, [whole(f"{{{USAGE}}}")]),
    "whole without usage": (COMPLETIONS, PLAIN, [whole("{}")]),
    "whole garbage": (COMPLETIONS, PLAIN, [whole("?"), whole("?"), whole("?")]),
    "stream": (COMPLETIONS, STREAM, [events(EVENT, EVENT, LAST, DONE)]),
    "stream with usage": (COMPLETIONS, USED, [events(EVENT, EVENT, LAST, DONE)]),
    "stream without usage": (COMPLETIONS, STREAM, [events(EVENT, EVENT, DONE)]),
    "stream of one event": (COMPLETIONS, STREAM, [events(EVENT, DONE)]),
    "stream that fails": (
        COMPLETIONS,
        STREAM,
        [events(b'data: {"error":{"message":"x"}}\n\n', DONE)],
    ),
    "stream that breaks": (COMPLETIONS, STREAM, [events(EVENT, BROKEN)]),
    "stream that is silent": (COMPLETIONS, STREAM, [events(EVENT, SILENT)]),
    "stream that breaks at once": (COMPLETIONS, STREAM, [events(BROKEN), events(EVENT, DONE)]),
    "garbled stream": (COMPLETIONS, STREAM, [events(EVENT, b"data: [DONE]\n\n", EVENT)]),
    "second attempt": (COMPLETIONS, PLAIN, [BROKEN, whole(f"{{{USAGE}}}")]),
    "third attempt": (COMPLETIONS, STREAM, [whole("{}", 500), BROKEN, events(EVENT, DONE)]),
    "all fail": (COMPLETIONS, PLAIN, [whole("{}", 503)] * 3),
    "lost before it began": (COMPLETIONS, PLAIN, [LOST, whole(f"{{{USAGE}}}")]),
    "silence": (COMPLETIONS, PLAIN, [SILENT]),
    "refused by the replica": (COMPLETIONS, PLAIN, [whole('{"message": "too long"}', 400)]),
    "not allowed by the replica": (
        COMPLETIONS,
        PLAIN,
        [whole("{}", 401), whole("{}", 401), whole("{}", 403)],
    ),
    "a fault of ours": (COMPLETIONS, PLAIN, []),
    "another model": (COMPLETIONS, PLAIN | {"model": "other"}, []),
    "no JSON": (COMPLETIONS, "{", []),
    "guarded fields": (COMPLETIONS, PLAIN | {"priority": 1, "rid": "x"}, [whole(f"{{{USAGE}}}")]),
    "no service": ("/tokenize", PLAIN, [whole('{"count": 3}')]),
    "no endpoint": ("/v1/none", PLAIN, []),
}
IDENTITIES = {
    "key": {"authorization": f"Bearer {KEY}"},
    "none": {},
    "wrong": {"authorization": "Bearer no"},
}


def _plain(value: Any) -> Any:
    """What differs from zero, times left out."""
    if isinstance(value, Histogram):
        return sum(value.counts)
    if isinstance(value, deque):
        return None  # the records of requests: the line of the log shows them
    if isinstance(value, dict):
        found = {str(getattr(key, "value", key)): _plain(one) for key, one in value.items()}
        return {key: one for key, one in found.items() if one}
    if isinstance(value, float):
        return "t" if value else 0
    names = getattr(value, "__struct_fields__", None) or getattr(value, "__slots__", None)
    if names and not isinstance(value, str):
        return _plain({name: getattr(value, name) for name in names if not name.startswith("_")})
    return value


def figures(router: Router) -> dict[str, Any]:
    """All totals of a router that a request may change."""
    rooms = router.rooms
    totals, ledger = rooms.totals, rooms.service_ledger
    accounts = ledger.ledger.replica_accounts.values()
    served = {
        name: sum(account.served(name) for account in accounts)
        for name in sorted({one.identity for one in totals.clients()})
    }
    return {
        "clients": {one.identity: _plain(one) for one in totals.clients()},
        "tenants": {one.tenant: _plain(one) for one in totals.distributions()},
        "replicas": _plain(dict(sorted(rooms.replicas.totals.items()))),
        "refused": _plain(totals.refused),
        "faults": totals.faults,
        "stripped": _plain(totals.stripped),
        "within share": _plain(totals.within_share_ttft_s),
        "predictions": _plain(totals.predictions),
        "served": _plain({name: f"{one:g}" for name, one in served.items() if one}),
        "routable": rooms.replicas.fleet.routable.bit_count(),
        "ratios": {
            tenant: one.of("").estimate(1000) for tenant, one in sorted(totals._estimates.items())
        },
    }


async def _line(case: Case, headers: dict[str, str], **config: Any) -> str:
    path, body, replies = case
    left = iter(replies)

    def answer(_: ReplicaConfig, request: Outgoing) -> FakeReply | UpstreamError:
        found = (
            next(left, None) or replies[-1]
        )  # the last one again: every other replica answers alike
        if isinstance(found, FakeReply):
            return FakeReply(found.parts, status=found.status, content_type=found.content_type)
        return found

    upstream, log = FakeUpstream(answer), io.StringIO()
    limits = LimitsConfig(max_attempts=3)
    configured = config_for(*replicas(3), limits=limits, **config)
    async with (
        running(
            configured, upstream=upstream, prober=FakeProber(), timing=QUICK, log_output=log
        ) as router,
        httpx.AsyncClient(base_url=router.url) as http,
    ):
        await routable(router, 3)
        content = body if isinstance(body, str) else json.dumps(body)
        try:
            response = await http.post(path, content=content, headers=headers)
            shown = f"{response.status_code} {len(response.content)} bytes"
        except httpx.HTTPError as error:
            shown = type(error).__name__
        await until(lambda: not router.rooms.intake.active_requests, "its end")
        after = figures(router)
    logged = json.loads(log.getvalue().splitlines()[-1])
    kept = {
        name: one
        for name, one in logged.items()
        if name not in ("time", "request_id", "upstream_id") and not name.endswith("_s")
    }
    kept["times"] = [name for name in logged if name.endswith("_s")]
    keys = ["x-smg-routing-key" in headers_of(one) for _, one in upstream.asked]
    found = {name: one for name, one in after.items() if one}
    return f"{shown} closed {upstream.closed} asked {text([name for name, _ in upstream.asked])} {text(keys)} {found} log {kept}"


def requests() -> Iterator[str]:
    """All cases, of a client with a key, then some of others and of other configurations."""

    async def all_of() -> list[str]:
        lines = []
        for name, case in CASES.items():
            lines.append(f"{name}: {await _line(case, IDENTITIES['key'])}")
        for identity, headers in IDENTITIES.items():
            for name in ("whole", "no JSON"):
                lines.append(f"{identity} {name}: {await _line(CASES[name], headers)}")
        for name in ("stream", "stream that breaks", "second attempt"):
            gated = SchedulingConfig(queue=QueueOwner.ROUTER)
            lines.append(
                f"gated {name}: {await _line(CASES[name], IDENTITIES['key'], scheduling=gated)}"
            )
            measured = await _line(CASES[name], IDENTITIES["key"], qoe=QoeConfig())
            lines.append(f"measured {name}: {measured}")
        return lines

    return iter(asyncio.run(all_of()))


TABLES = {"router-requests": requests}
