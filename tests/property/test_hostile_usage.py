"""Whatever numbers engines and tenants send, another tenant's account, limits and estimates do not move (R18, P9).

Each history is lived twice by a whole router with two replicas: once as drawn, and once without the requests of the two hostile
tenants. What the third tenant is charged, may still use and is estimated is the same in both.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from typing import Any

import httpx
from evenkeel_contract.names import CLIENT_HEADERS
from evenkeel_contract.routerconfig import (
    LimitsConfig,
    ReplicaConfig,
    TenancyConfig,
    TenantConfig,
    TenantLimits,
)
from evenkeel_router.api.endpoints import ENDPOINTS
from evenkeel_router.app import Router, running
from evenkeel_router.request.usage_claims import most_input_tokens
from evenkeel_router.transport.upstream import BrokenError, Outgoing, UpstreamError
from hypothesis import given
from hypothesis import strategies as st

from tests.support.examples import examples
from tests.support.fakes import FakeProber, FakeReply, FakeUpstream, replicas
from tests.support.routers import MODEL, PATIENCE_S, QUICK, config_for, routable

BURST = 10**9
VICTIM, HOSTILE = "c", ("a", "b")
CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
DONE = b"data: [DONE]\n\n"
MOST_OUTPUT = 512

numbers = st.one_of(
    st.integers(-(10**18), 10**18),
    st.sampled_from([0, 1, 2**31, 2**53, 2**63, 10**15, -1, None, 1e308, "7"]),
)
usages = st.one_of(
    st.none(),
    st.fixed_dictionaries(
        {"prompt_tokens": numbers, "completion_tokens": numbers},
        optional={"prompt_tokens_details": st.fixed_dictionaries({"cached_tokens": numbers})},
    ),
)
parts = st.sampled_from(
    [
        {"type": "text", "text": "word " * 100},
        {"type": "image_url", "image_url": {"url": "https://a.test/1.png"}},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 20_000}},
        {"type": "input_audio", "input_audio": {"data": "A" * 9000, "format": "wav"}},
        {"type": "file", "file": {"file_id": "f"}},
        {"type": "hologram", "hologram": {"depth": [1, 2, 3]}},
    ]
)
contents = st.one_of(st.text(max_size=50), st.lists(parts, min_size=1, max_size=6))
bounds = st.one_of(st.none(), st.integers(1, MOST_OUTPUT))
chats = st.fixed_dictionaries(
    {"messages": st.lists(st.fixed_dictionaries({"role": st.just("user"), "content": contents}), min_size=1, max_size=2)},
    optional={"n": st.integers(1, 128), "max_tokens": bounds},
)  # fmt: skip
texts = st.fixed_dictionaries(
    {"prompt": st.one_of(st.text(max_size=2000), st.lists(st.text(max_size=9), min_size=1, max_size=64),
                         st.lists(st.integers(0, 9), min_size=1, max_size=64))},
    optional={"n": st.integers(1, 128), "max_tokens": bounds, "best_of": st.integers(1, 128)},
)  # fmt: skip


@dataclass(frozen=True)
class Step:
    """One request, and what the engine answers to it."""

    tenant: str
    path: str
    body: dict[str, Any]
    kind: str
    usage: dict[str, Any] | None
    events: int = 0
    text: str = "a"

    def answer(self) -> FakeReply | UpstreamError:
        """The engine's answer."""
        if self.kind == "broken":
            return BrokenError("reset")
        if self.kind in ("400", "500"):
            return FakeReply([b'{"error":{"message":"no"}}'], status=int(self.kind))
        if self.kind == "garbage":
            return FakeReply([b"<html>"])
        if not self.body["stream"]:
            whole = {"choices": [{"text": self.text, "message": {"content": self.text}}]}
            return FakeReply([json.dumps(whole | {"usage": self.usage}).encode()])
        event = {"choices": [{"index": 0, "text": self.text, "delta": {"content": self.text}}]}
        chunk = b"data: %b\n\n" % json.dumps(event).encode()
        last = b"data: %b\n\n" % json.dumps({"choices": [], "usage": self.usage}).encode()
        sent = [chunk] * self.events + ([] if self.usage is None else [last])
        end: list[bytes | UpstreamError] = [BrokenError("reset") if self.kind == "breaks" else DONE]
        return FakeReply([*sent, *end], content_type="text/event-stream")


kinds = st.sampled_from(["ok", "ok", "ok", "breaks", "broken", "400", "500", "garbage"])
hostile = st.builds(
    lambda tenant, request, stream, kind, usage, events, text: Step(
        tenant, request[0], request[1] | {"stream": stream}, kind, usage, events, text
    ),
    st.sampled_from(HOSTILE),
    st.one_of(st.tuples(st.just(CHAT), chats), st.tuples(st.just(COMPLETIONS), texts)),
    st.booleans(),
    kinds,
    usages,
    st.integers(0, 30),
    st.sampled_from(["a", "word " * 50, "", "\U0001f600" * 9]),
)


@st.composite
def honest(draw: st.DrawFn) -> Step:
    """A request of the third tenant: text or an image, whose engine counts right."""
    size, output = draw(st.integers(1, 600)), draw(st.integers(1, 9))
    images, stream = draw(st.integers(0, 1)), draw(st.booleans())
    content = [{"type": "text", "text": "word " * size}]
    content += [{"type": "image_url", "image_url": {"url": "https://a.test/2.png"}}] * images
    counts = {"prompt_tokens": size + 10 + 700 * images, "completion_tokens": output}
    body = {"messages": [{"role": "user", "content": content}], "stream": stream, "max_tokens": 99}
    return Step(VICTIM, CHAT, body, "ok", counts, output)


async def lived(history: list[Step]) -> tuple[dict[str, Any], dict[str, float], dict[str, float]]:
    """The third tenant's books; each tenant's service, and the most that its requests can cost."""
    now: list[Step] = []

    def answer(_: ReplicaConfig, request: Outgoing) -> FakeReply | UpstreamError:
        return now[0].answer()

    limits = TenantLimits(tokens_per_minute=1, burst_tokens=BURST)
    tenants = tuple(
        TenantConfig(namespace="ns", name=name, limits=limits) for name in (*HOSTILE, VICTIM)
    )
    config = config_for(
        *replicas(2),
        tenancy=TenancyConfig(tenants=tenants, trusted_proxies=("127.0.0.1/32",)),
        limits=LimitsConfig(max_output_tokens=MOST_OUTPUT, max_concurrent=10**6),
    )
    most = dict.fromkeys((*HOSTILE, VICTIM), 0.0)
    upstream = FakeUpstream(answer)
    async with (
        running(config, upstream=upstream, prober=FakeProber(), timing=QUICK) as router,
        httpx.AsyncClient(base_url=router.url, timeout=PATIENCE_S) as client,
    ):
        await routable(router, 2)
        for step in history:
            now[:] = [step]
            body = json.dumps(step.body | {"model": MODEL}).encode()
            headers = {CLIENT_HEADERS[0]: f"ns/{step.tenant}/x", "content-type": "application/json"}
            await client.post(step.path, content=body, headers=headers)
            while router.rooms.intake.active_requests:  # noqa: ASYNC110 - there is no event for it
                await asyncio.sleep(0)
            asked = ENDPOINTS[step.path].api.parse(body, router.rooms.intake.limits, "")
            most[step.tenant] += most_input_tokens(asked) + 2 * asked.most_output_tokens
        served = router.rooms.service_ledger.ledger.served
        services = {name: served(f"ns/{name}/x") for name in most}
        return _books(router), services, most


def _books(router: Router) -> dict[str, Any]:
    """What the third tenant is charged, may still use, and is estimated."""
    rooms = router.rooms
    asks = honest_chat(["https://a.test/3.png"]), honest_chat([])
    found = {one.identity: one for one in rooms.totals.clients()}
    totals = found.get(f"ns/{VICTIM}/x")
    parts_of = rooms.intake.limit_parts._limits
    return {
        "service": rooms.service_ledger.ledger.served(f"ns/{VICTIM}/x"),
        "tokens": totals and (totals.input_tokens, totals.cached_tokens, totals.output_tokens),
        "requests": totals and (totals.requests, dict(totals.errors), totals.in_flight),
        "limit": (name := f"tokens ns/{VICTIM}") in parts_of and round(parts_of[name].free(0.0)),
        "estimates": totals
        and [
            totals.estimates.model.of(ENDPOINTS[CHAT].api.parse(one, rooms.intake.limits, ""))
            for one in asks
        ],
        "running": rooms.intake.admission.running,
    }


def honest_chat(images: list[str]) -> bytes:
    content: list[dict[str, Any]] = [{"type": "text", "text": "word " * 8000}]
    content += [{"type": "image_url", "image_url": {"url": url}} for url in images]
    return json.dumps({"model": MODEL, "messages": [{"role": "user", "content": content}]}).encode()


@given(st.lists(st.one_of(hostile, hostile, honest()), min_size=1, max_size=12))
@examples(25)
def test_no_number_of_another_moves_a_tenants_books(history: list[Step]) -> None:
    books, services, most = asyncio.run(lived(history))
    alone, _, _ = asyncio.run(lived([step for step in history if step.tenant == VICTIM]))
    assert books == alone
    for name, service in services.items():
        assert 0 <= service <= most[name]
