"""The newest requests of a router, and why one of them took so long: for the console and `evenkeel why`.

Nothing here runs while a request is served: all of it is read out of the records of requests that are over and of those in flight.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Iterator, Sequence
from typing import Final

import msgspec
from evenkeel_contract import consolestate
from evenkeel_contract.consolestate import Ahead, RequestNow
from evenkeel_fairshare.fleet.contract import NOTHING
from evenkeel_fairshare.ledger import tenant_of

from evenkeel_router.api.errors import Outcome
from evenkeel_router.api.identity import names_of
from evenkeel_router.ledger.totals import RECENT
from evenkeel_router.request.request_log import RequestLogLine
from evenkeel_router.request.request_state import RequestState
from evenkeel_router.telemetry.history import STRIDE, WHOLE_SERVICE
from evenkeel_router.telemetry.rooms import Rooms
from evenkeel_router.telemetry.snapshot import Steps

SHOWN: Final = 1000
"""Most requests of an answer."""
NAMED: Final = 5
"""Clients that are named as ahead of a request."""
LEAST_S: Final = 0.001
"""Shorter times are not worth a sentence."""
OTHERS: Final = "other tenants"
_CLIENT_GONE: Final = Outcome.CLIENT_GONE.value


def requests_answer(
    rooms: Rooms, now_s: float, *, tenant: str, client: str = "", request_id: str = ""
) -> Steps[consolestate.RequestsState]:
    """The answer of `REQUESTS_PATH`: of one `namespace/tenant`, or of all (`WHOLE_SERVICE`)."""
    everything = yield from _all(rooms, now_s)
    own = [
        one
        for one in everything
        if tenant in (WHOLE_SERVICE, tenant_of(one.client))
        and (not client or one.client == client)
        and (not request_id or one.request_id == request_id)
    ]
    yield
    newest = heapq.nlargest(SHOWN, own, key=lambda one: one.begun_unix_s)
    shown = newest
    if tenant != WHOLE_SERVICE:  # which replicas there are is no tenant's business
        shown = [msgspec.structs.replace(one, replica="") for one in newest]
    state = consolestate.RequestsState(
        version=consolestate.CONSOLE_VERSION,
        router=rooms.service_ledger.ledger.router,
        kept=RECENT,
        requests=tuple(shown),
    )
    if request_id and newest:
        ahead = ahead_of(newest[0], everything, tenant)
        state = msgspec.structs.replace(
            state,
            words=tuple(why(shown[0])),
            ahead=tuple(ahead[:NAMED]),
            ahead_more=max(0, len(ahead) - NAMED),
        )
    return state


def _all(rooms: Rooms, now_s: float) -> Steps[list[RequestNow]]:
    found = []
    for distributions in rooms.totals.distributions():
        for n, line in enumerate(tuple(distributions.recent)):
            found.append(of_line(line))
            if n % STRIDE == 0:
                yield
    now_unix_s = time.time()
    for one in list(rooms.intake.active_requests):
        if one.client is not None:
            found.append(of_open(one, now_s, now_unix_s))
    return found


def of_line(line: RequestLogLine) -> RequestNow:
    """A request that is over."""
    begun = line.ttft_s > 0
    rest = line.duration_s - line.held_s - line.gate_s
    return RequestNow(
        request_id=line.request_id,
        client=line.client,
        name="/".join(names_of(line.client)),
        path=line.path,
        state="ended",
        begun_unix_s=line.time - line.duration_s,
        duration_s=line.duration_s,
        ttft_s=line.ttft_s if begun else None,
        held_s=line.held_s,
        gate_s=line.gate_s,
        engine_s=line.engine_s if begun or not line.replica else max(0.0, rest),
        itl_s=_itl_s(line),
        input_tokens=line.input_tokens,
        cached_tokens=line.cached_tokens,
        output_tokens=line.output_tokens,
        replica=line.replica,
        attempts=line.attempts,
        status=line.status,
        outcome=line.outcome,
        streamed=line.stream,
        trace_id=line.trace_id,
    )


def _itl_s(line: RequestLogLine) -> float | None:
    if not line.stream or not line.ttft_s or line.output_tokens < 2:
        return None
    return (line.duration_s - line.ttft_s) / (line.output_tokens - 1)


def of_open(one: RequestState, now_s: float, now_unix_s: float) -> RequestNow:
    """A request in flight, as far as it is known."""
    age_s, first_s, client = now_s - one.started_s, one.first_byte_s, one.client
    usage = one.usage or NOTHING
    assert client is not None
    held_s = one.held_s + (now_s - one.holding_since_s if one.holding_since_s else 0.0)
    gate_s = one.gate_s + (now_s - one.gate_since_s if one.gate_since_s else 0.0)
    until_s = now_s if first_s is None else first_s
    return RequestNow(
        request_id=one.request_id,
        client=client.identity,
        name="/".join(names_of(client.identity)),
        path=one.path,
        state="waiting" if first_s is None else "running",
        begun_unix_s=now_unix_s - age_s,
        duration_s=age_s,
        ttft_s=None if first_s is None else first_s - one.started_s,
        held_s=held_s,
        gate_s=gate_s,
        engine_s=until_s - one.sent_s if one.sent_s else 0.0,
        input_tokens=usage.input_tokens or one.estimate_tokens,
        cached_tokens=usage.cached_tokens,
        output_tokens=usage.output_tokens,
        replica=one.replica,
        attempts=one.attempts,
        streamed=one.stream,
        trace_id="" if one.trace is None else one.trace.log_id(),
    )


def ahead_of(one: RequestNow, everything: Sequence[RequestNow], tenant: str) -> list[Ahead]:
    """Clients whose requests began at its replica while it waited for it, those with the most requests first.

    `tenant`: the reader, who learns only how many requests of others there were.
    """
    if not one.replica:
        return []
    until_s = one.begun_unix_s + one.before_first_s
    since_s = until_s - one.gate_s - one.engine_s
    counts: dict[str, list[int]] = {}
    for other in everything:
        if other.replica != one.replica or other.ttft_s is None or other is one:
            continue
        # The record that is explained may be a copy.
        if other.request_id == one.request_id and other.client == one.client:
            continue
        if since_s <= other.begun_unix_s + other.ttft_s <= until_s:
            shown = tenant in (WHOLE_SERVICE, tenant_of(other.client))
            own = counts.setdefault(other.name if shown else OTHERS, [0, 0])
            own[0] += 1
            own[1] += other.input_tokens - other.cached_tokens + other.output_tokens
    ahead = [Ahead(name=name, requests=own[0], tokens=own[1]) for name, own in counts.items()]
    return sorted(ahead, key=lambda of: (-of.requests, of.name))


def why(one: RequestNow) -> Iterator[str]:
    """Where the time of a request went, in sentences."""
    before_s = one.before_first_s
    if one.ttft_s is not None:
        what = "first token" if one.streamed else "whole answer"
        yield f"The {what} came after {_time(before_s)}."
    elif one.state == "waiting":
        yield f"It has waited for {_time(before_s)}."
    elif one.outcome == _CLIENT_GONE:
        yield f"Its client left after {_time(before_s)}, before an answer began."
    else:
        yield f"It ended after {_time(before_s)} without an answer: {one.outcome or 'no content'}."
    places = (
        (one.held_s, "waited in the router, because no replica took requests"),
        (one.gate_s, "waited for its turn at the router's gate"),
        (one.engine_s, _at_replica(one)),
        (one.other_s, "went to its body, the choice of a replica, and attempts that failed"),
    )
    for time_s, what in sorted(places, reverse=True):
        if time_s >= LEAST_S:
            yield f"{_time(time_s)} {what}."
    if one.attempts > 1:
        yield f"It was sent {one.attempts} times."
    if one.itl_s is not None:
        came = "1 token" if one.output_tokens == 1 else f"{one.output_tokens:,} tokens"
        yield f"Then {came} came, one every {_time(one.itl_s)}."
    if one.ttft_s is not None and one.outcome == _CLIENT_GONE:
        yield f"Its client left after {_time(one.duration_s)}, within the answer."


def _at_replica(one: RequestNow) -> str:
    where = f"replica {one.replica}" if one.replica else "its replica"
    if one.ttft_s is None and (one.outcome or one.state == "ended"):
        return f"at {where}, which gave no answer"
    computed = one.input_tokens - one.cached_tokens
    cached = f", {one.cached_tokens:,} more were cached" if one.cached_tokens else ""
    rest = "" if one.streamed or one.ttft_s is None else ", and all of the answer"
    return f"at {where}: its queue, and {computed:,} input tokens to compute{cached}{rest}"


def _time(seconds: float) -> str:
    return f"{1000 * seconds:,.0f} ms" if seconds < 0.9995 else f"{seconds:,.1f} s"
