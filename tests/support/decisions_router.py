"""Decisions of the router's pure parts over drawn inputs: windows, parts, limits, queues, bodies and streams."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from random import Random
from typing import Any

import msgspec
from evenkeel_contract.routerconfig import LimitsConfig, TenantConfig, TenantLimits
from evenkeel_fairshare.cost import LinearCost
from evenkeel_fairshare.fleet.contract import NOTHING, Usage
from evenkeel_fairshare.ledger import EqualWeights
from evenkeel_fairshare.replica.deficit import DeficitRules
from evenkeel_fairshare.replica.registry import ReplicaPolicyConfig, make_policy
from evenkeel_router.api.answers import ErrorAnswer, GarbageError, of_reply
from evenkeel_router.api.endpoints import ENDPOINTS, Endpoint, dialect_of
from evenkeel_router.api.errors import Refusal, error_body, rejected_by_replica
from evenkeel_router.api.identity import client_of
from evenkeel_router.api.inference import Limits
from evenkeel_router.api.streams import SCANS
from evenkeel_router.fleet.prediction import Pages
from evenkeel_router.fleet.suspicion import Evidence, Standing
from evenkeel_router.fleet.wait_queue import FairQueue
from evenkeel_router.gate.engine_load import EngineLimit, EngineLoad, read_load
from evenkeel_router.gate.gate import Gate
from evenkeel_router.gate.sharing import ClientAtGate, Sharing
from evenkeel_router.gate.window import STREAMED, WHOLE, GatedRequest, Window
from evenkeel_router.ledger.held_work import HeldWork, TakenBack
from evenkeel_router.ledger.limit_parts import LimitParts
from evenkeel_router.ledger.totals import Histogram
from evenkeel_router.request.admission import Admission, BodyMemory, may_hold_more

from tests.support.decisions import row, text

# Gates.


def _gated(rng: Random, n: int) -> GatedRequest:
    return GatedRequest(
        id=str(n),
        client="ns/a/c",
        tenant="ns/a",
        arrival_s=0.0,
        input_tokens=(size := rng.choice((10, 600, 2500))),
        max_output_tokens=9,
        matched_tokens=rng.choice((0, 8, size // 2)),
        extend_tokens=rng.choice((5, 300, 2100)),
    )


def windows() -> Iterator[str]:
    """Requests that are sent, begin and end in any order: the window's limit, its room, and which would overtake."""
    for seed in range(40):
        rng = Random(seed)
        window = Window(STREAMED if seed % 2 else WHOLE)
        window.part = rng.choice((1.0, 1.0, 0.3))
        now_s, sent, begun, shown = 0.0, [], [], []
        for n in range(50):
            now_s += rng.choice((0.01, 0.1, 1.0))
            action = rng.randrange(10)
            if action < 4:
                one = _gated(rng, n)
                overtakes = window.would_overtake(one)
                if window.has_room:
                    window.sent(one, now_s)
                    sent.append(one)
                shown.append(
                    f"{window.limit:.4g}{'r' if window.has_room else '-'}{'o' if overtakes else ''}"
                )
            elif action < 8 and sent:
                one = sent.pop(rng.choice((0, 0, -1)))
                tokens = rng.choice((0, 0, 50))
                window.begun(one, now_s, output_tokens=tokens, others_wait=bool(rng.randrange(3)))
                begun.append(one)
            elif action == 8 and (there := begun or sent):
                window.left(there.pop(0))
            elif not rng.randrange(3):
                window.queue_is_long()
        yield f"{seed} {window.part}: {' '.join(shown)} {len(window)} pace {window.best_pace:.6g}"


PAGE = b"""# HELP x
vllm:num_requests_running{model="m"} 3.0
vllm:num_requests_waiting{model="m"} %s
vllm:kv_cache_usage_perc{model="m",engine="0"} 0.5
vllm:kv_cache_usage_perc{model="m",engine="1"} 0.25
sglang:num_queue_reqs{priority=""} 1.0
sglang:num_queue_reqs{priority="1"} 9.0
"""


def engine_limits() -> Iterator[str]:
    """Readings of an engine's own metrics, and the limits that follow from them."""
    for value in (b"2", b"1e1", b"e", b"0"):
        yield row({"waiting": value.decode()}, read_load(PAGE % value))
    yield row({"page": "none"}, read_load(b"vllm:num_requests_running 1\n"))
    for seed in range(40):
        rng, limit, shown = Random(seed), EngineLimit(), []
        for _ in range(20):
            load = EngineLoad(
                rng.choice((0, 6, 30)), rng.choice((0, 0, 1, 2, 3)), rng.choice((0.2, 0.94, 0.95))
            )
            if not rng.randrange(9):
                limit.lost()
            limit.read(
                load,
                begun=rng.choice((0, 8)),
                held_up=bool(rng.randrange(2)),
                streams_held_up=bool(rng.randrange(2)),
            )
            shown.append(f"{limit.limit:.5g}/{limit.unanswered:.4g}")
        yield f"{seed}: {' '.join(shown)}"


def sharing() -> Iterator[str]:
    """News of other routers' gates: this router's part, and the clients that are ahead."""
    clients = ("ns/a/x", "ns/a/y", "ns/b/x")
    for seed in range(40):
        rng = Random(seed)
        made = Sharing("one", EqualWeights(), has_accounts=bool(rng.randrange(5)))
        served = {(router, client): 0.0 for router in ("one", "two") for client in clients}
        shown = []
        for _ in range(16):
            still = not rng.randrange(3)
            for key in served:
                served[key] += 0.0 if still else rng.choice((0.0, 10.0, 200.0))
            at = {
                router: {
                    client: ClientAtGate(served[router, client], rng.choice((0.0, 1.0, 3.0)))
                    for client in clients
                }
                for router in ("one", "two")
            }
            given = made.update(at, EqualWeights(), quantum=rng.choice((0.0, 50.0)))
            shown.append(
                f"{made.part:.4g}{''.join(one[3] + one[-1] for one in sorted(made.ahead))}"
            )
            shown.append(f"{sum(given.values()):g}{'h' if made.holds(clients[:2]) else ''}")
        yield f"{seed}: {' '.join(shown)}"


def _gate(rng: Random) -> str:
    """Requests of three clients at one gate: what is admitted, what the clients hold, and the limits."""
    policy = make_policy(
        rng.choice(("DLPM", "DLPM", "FCFS", "VTC")),
        ReplicaPolicyConfig(deficits=DeficitRules(quantum=rng.choice((100, 600)))),
    )
    gate = Gate(policy, Sharing("one", EqualWeights(), has_accounts=policy.name != "FCFS"))
    now_s, open_, shown = 0.0, [], []
    for n in range(60):
        now_s += rng.choice((0.01, 0.2, 1.5))
        action = rng.randrange(10)
        if action < 4:
            one = replace(
                _gated(rng, n), client=f"ns/{rng.choice('ab')}/c", streams=bool(rng.randrange(4))
            )
            one.tenant = one.client.removesuffix("/c")
            open_.append(one)
            if not gate.enter(one, now_s):
                shown.append("w" if gate.would_send(one) is False else "W")
        elif action < 6 and gate.sent:
            one = rng.choice([*gate.sent])
            gate.begun(one, now_s, output_tokens=0 if one.streams else 9)
            gate.progress(one, rng.choice((1, 4)))
        elif action < 8 and open_:
            one = open_.pop(rng.randrange(len(open_)))
            gate.leave(one, now_s, rng.choice((None, NOTHING, Usage(one.input_tokens, 3, 12))))
        elif action == 8:
            load = EngineLoad(rng.choice((0, 3)), rng.choice((0, 3)), 0.5)
            gate.read(rng.choice((None, load)), now_s)
        else:
            other = {
                "ns/a/c": ClientAtGate(rng.choice((0.0, 400.0)) + 9 * n, rng.choice((0.0, 2.0)))
            }
            gate.share({"one": {}, "two": other}, EqualWeights())
        admitted = [one.id for one in gate.admit(now_s)]
        shown.append(
            f"{len(gate)}/{gate.unanswered}/{gate.limit}{'h' if gate.is_held else ''}{text(admitted) if admitted else ''}"
        )
    held = {name: (one.service, one.state) for name, one in sorted(gate.held(LinearCost()).items())}
    return f"{' '.join(shown)} held {text(held)} {text(dict(sorted(gate.admitted.items())))}"


def gates() -> Iterator[str]:
    """One gate: what it admits while requests begin and end, and what its clients hold."""
    yield from (f"{seed}: {_gate(Random(seed))}" for seed in range(40))


# Queues and limits.


def _queue(rng: Random) -> str:
    queue, left = FairQueue[int](), []
    for n in range(40):
        if rng.randrange(5) < 3:
            cost, weight = rng.choice((0.0, 1.0, 8.0)), rng.choice((1.0, 4.0))
            queue.push(n, client=rng.choice("abc"), cost=cost, weight=weight)
        elif len(queue) and rng.randrange(4):
            left.append(str(queue.pop()))
        elif len(queue):
            queue.discard(rng.randrange(n))
    return f"{' '.join(left)} and {len(queue)}"


def _pauses(rng: Random) -> str:
    standing, now_s, pauses = Standing(0.5), 0.0, []
    evidence = Evidence("lost", "it fails")
    for _ in range(40):
        now_s += rng.choice((0.1, 0.5, 4.0))
        action = rng.randrange(6)
        if action == 0:
            standing.answers += rng.choice((1, 3))
        elif action == 1:
            standing.begun()
        elif standing.failed(rng.choice((0.0, 0.2, 0.6))):
            pauses.append(f"{standing.suspect(evidence, now_s):g}")
        else:
            pauses.append("!" if standing.wants_probe(now_s) else "-")
    return " ".join(pauses)


def _histogram(rng: Random) -> str:
    histogram = Histogram((0.1, 1.0, 2.0))
    for _ in range(rng.randrange(6)):
        histogram.new.append(rng.choice((0.0, 0.1, 0.2, 1.0, 2.0, 2.1)))
        if not rng.randrange(4):
            histogram.never()
    return text((list(histogram.counts), histogram.total))


def queues() -> Iterator[str]:
    """The order of requests that wait for a replica, pauses of replicas that fail, and histograms."""
    for seed in range(25):
        yield f"queue {seed}: {_queue(Random(seed))}"
        yield f"suspicion {seed}: {_pauses(Random(seed))}"
        yield f"histogram {seed}: {_histogram(Random(seed))}"
    for pages in range(4):
        cached = [Pages([1] * 4, 16, tokens).cached(pages) for tokens in (0, 1, 16, 17, 33, 64)]
        yield row({"pages": pages}, cached)


def _parts(rng: Random) -> str:
    """Three routers that share limits: what is free and when, and what goes from one to another."""
    routers = [LimitParts(name) for name in "abc"]
    now_s, shown = 0.0, []
    first = routers[0].begin_census()
    assert routers[0].end_census(first, [one.answer(first, 0.0) for one in routers[1:]], 0.0)
    sizes = {"requests": (10.0, 60.0), "concurrent": (4.0, 0.0)}
    for _ in range(30):
        now_s += rng.choice((0.0, 0.5, 7.0))
        router, name = rng.choice(routers), rng.choice(list(sizes))
        size, fill_s = sizes[name]
        limit = router.limit(name, size=size, fill_s=fill_s, now_s=now_s)
        limit.asked(1, now_s)
        if limit.free(now_s) >= 1:
            limit.take(1, now_s)
        elif rng.randrange(2):
            limit.take(-1 if name == "concurrent" else 0.5, now_s)
        other = rng.choice([one for one in routers if one is not router])
        if not rng.randrange(8):
            census = router.begin_census()
            others = [one for one in routers if one is not router]
            shown.append(
                f"c{router.end_census(census, [one.answer(census, now_s) for one in others], now_s):d}"
            )
        else:
            ask = router.ask(now_s, {name: rng.choice((0.0, 0.1))} if rng.randrange(2) else None)
            answer = other.answer(ask, now_s)
            router.receive(answer, now_s)
            shown.append(f"{text([(gift.part, gift.level) for gift in answer.gifts])}")
        if not rng.randrange(10):
            sizes["requests"] = (rng.choice((5.0, 20.0)), 60.0)
        shown.append(f"{limit.part:.4g}/{limit.free(now_s):.4g}/{limit.wait_s(now_s):.4g}")
    whole = [sum(dict(one.parts()).get(name, 0.0) for one in routers) for name in sizes]
    return f"{' '.join(shown)} sum {text(whole)} heard {text(routers[1].heard(now_s + 1))}"


def _admitted(rng: Random) -> str:
    """Requests of two tenants that enter and leave: which are refused, and until when."""
    parts = LimitParts("r")
    if rng.randrange(8):
        assert parts.end_census(parts.begin_census(), (), 0.0)
    given = {
        "requests_per_minute": rng.choice((0, 30)),
        "tokens_per_minute": rng.choice((0, 600)),
        "max_concurrent": rng.choice((0, 2)),
    }
    tenant = TenantConfig(namespace="ns", name="t", limits=TenantLimits(**given))
    other = client_of(TenantConfig(namespace="ns", name="u"), "e")
    clients = [client_of(tenant, "c"), client_of(tenant, "d"), other]
    most = rng.choice((3, 12))
    config = LimitsConfig(max_concurrent=most, max_concurrent_per_client=rng.choice((0, 2)))
    admission, now_s = Admission(config, parts), 0.0
    inside, shown = [], []
    for _ in range(25):
        now_s += rng.choice((0.0, 1.0, 9.0))
        client = rng.choice(clients)
        if rng.randrange(3):
            try:
                admission.enter(client, rng.choice((1, 50)), now_s)
                inside.append(client)
                shown.append("in")
            except Refusal as refusal:
                shown.append(f"{refusal.code}@{refusal.retry_after_s:.3g}")
        elif inside:
            admission.leave(inside.pop(0), rng.choice((-20, 0, 40)), now_s)
        elif rng.randrange(2):
            shown.append(str(admission.running))
    return f"{text(given)}: {' '.join(shown)}"


def _memory(rng: Random) -> str:
    memory, shown = BodyMemory(1000), []
    held: list[tuple[str, int]] = []
    for _ in range(20):
        name, size = rng.choice("ab"), rng.choice((1, 90, 400, 901))
        if held and not rng.randrange(3):
            owner, reserved = held.pop(0)
            memory.of(owner).release(reserved)
        try:
            memory.of(name).reserve(size)
            held.append((name, size))
        except Refusal as refusal:
            shown.append(refusal.code)
        shown.append(str(memory.used_bytes))
    return " ".join(shown)


def limits() -> Iterator[str]:
    """Parts of limits at three routers, admission with its refusals, and memory for bodies."""
    yield from (f"{seed}: {_parts(Random(seed))}" for seed in range(25))
    for held in (0, 7, 8, 9, 80):
        yield row({"held": held}, [may_hold_more(held, free) for free in (0, 1, 10)])
    yield from (f"{seed} {_admitted(Random(seed))}" for seed in range(40))
    yield from (f"memory {seed}: {_memory(Random(seed))}" for seed in range(10))


def taken_back() -> Iterator[str]:
    """Requests taken back from a draining replica: which had begun there, by a report before and one after."""
    for seed in range(120):
        rng = Random(seed)
        before = HeldWork(
            rng.choice((0, 3)), rng.choice((0, 1, 4)), rng.choice((0, 2, 5)), rng.choice((0, 2)), 10
        )
        now = HeldWork(
            before.admitted + rng.choice((0, 1, 2)),
            rng.choice((0, 1, 3)),
            rng.choice((0, 1, 3)),
            before.aborted + rng.choice((0, 1, 2)),
            before.aborted_tokens + rng.choice((0, 7)),
        )
        open_here = rng.choice((1, 2, 6))
        one = TakenBack(before, before.share(open_here), tuple(range(rng.choice((1, 2, 3)))))
        answers = (
            before.share(open_here),
            before.running_here(open_here),
            before.waiting_here(open_here, rng.choice((0, 1, 2))),
            one.is_noticed(now),
            one.is_settled(now),
            one.verdict(now),
        )
        yield row(
            {"before": before, "now": now, "open": open_here, "taken": len(one.numbers)}, answers
        )


# Bodies, answers and streams.

VALUES: dict[str, tuple[Any, ...]] = {
    "model": ("m", "m", "a1", "alias", "x", "", 3),
    "prompt": ("hi", ["a", "bc"], [1, 2, 3], [[1], [2, 3]], [], "", [[]], 7),
    "messages": (
        [{"role": "user", "content": "hi"}],
        [
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "a"},
                    {"type": "image_url", "image_url": {"url": "u"}},
                ],
            }
        ],
        [
            {"role": "system", "content": "s"},
            {"role": "assistant", "content": None, "tool_calls": [1]},
        ],
        [],
        [{"content": "no role"}],
    ),
    "input": ("hi", ["a", "b"], [{"role": "user", "content": "x"}], [], [1, 2], None),
    "text": ("hi", ["a", "b"], "", None),
    "text_1": ("q", ["q", "r"]),
    "text_2": ("d", ["d", "e"]),
    "input_ids": ([1, 2], [[1], [2]], []),
    "query": ("q", ""),
    "documents": (["a", "b"], [], "x"),
    "tokens": ([1, 2], [], "x"),
    "max_tokens": (1, 16, 100, 101, 0, -1, None, "9"),
    "max_completion_tokens": (1, 100, 101, 0),
    "max_output_tokens": (16, 101, 0),
    "sampling_params": (
        {"max_new_tokens": 8},
        {"max_new_tokens": 101},
        {"n": 2, "max_new_tokens": 60},
        [{"n": 1}],
        {},
    ),
    "n": (1, 2, 9, 0, None),
    "best_of": (1, 3),
    "stream": (True, False, True, "yes"),
    "stream_options": ({"include_usage": True}, {"include_usage": False}, None, {}),
    "system": ("be short", [{"type": "text", "text": "s"}], ""),
    "instructions": ("be short", ""),
    "tools": ([{"type": "function"}], [], None),
    "routing_key": ("forged",),
    "rid": ("forged",),
    "priority": (1,),
    "cache_salt": ("s",),
    "lora_path": ("a1", "b2", None),
    "store": (True, False),
    "previous_response_id": ("r",),
    "background": (True, False),
}
LIKELY = {
    Endpoint.COMPLETIONS: "prompt", Endpoint.CHAT: "messages", Endpoint.RESPONSES: "input",
    Endpoint.MESSAGES: "messages", Endpoint.COUNT_TOKENS: "messages", Endpoint.EMBEDDINGS: "input",
    Endpoint.RERANK: "query documents", Endpoint.SCORE: "text_1 text_2", Endpoint.CLASSIFY: "input",
    Endpoint.TOKENIZE: "prompt", Endpoint.DETOKENIZE: "tokens", Endpoint.GENERATE: "text",
}  # fmt: skip


def bodies() -> Iterator[str]:
    """Bodies of every API: what is read of them and sent on, or the refusal."""
    known = Limits("m", 100, frozenset({"a1"}), frozenset({"alias"}))
    for number, (endpoint, needed) in enumerate(LIKELY.items()):
        for seed in range(28):
            rng = Random(1000 * number + seed)
            names = [*needed.split(), *rng.sample(list(VALUES), rng.choice((1, 2, 4)))]
            if rng.randrange(8):
                names.insert(0, "model")
            if endpoint is Endpoint.MESSAGES and rng.randrange(6):
                names.append("max_tokens")
            body = {
                name: VALUES[name][0] if rng.randrange(3) else rng.choice(VALUES[name])
                for name in names
            }
            data = json.dumps(body, separators=(",", ":")).encode()
            try:
                found = endpoint.api.parse(data, known, "application/json")
            except Refusal as refusal:
                yield f"{endpoint.value} {data.decode()} => {refusal.outcome.value} {refusal}"
                continue
            same = msgspec.structs.replace(found, body=b"same") if found.body == data else found
            shown = {
                name: one
                for name, one in msgspec.structs.asdict(same).items()
                if one not in (None, False, ())
            }
            del shown["content_type"]
            yield f"{endpoint.value} {data.decode()} => {shown}"


EVENTS = {
    "/v1/chat/completions": (
        'data: {"choices":[{"delta":{"role":"assistant","content":""}}]}\n\n',
        'data: {"choices":[{"delta":{"content":"a"}}]}\n\n',
        'data: {"choices":[{"delta":{"content":"a"}}],"usage":{"prompt_tokens":5,"completion_tokens":2}}\n\n',
        'data: {"choices":[],"usage":{"prompt_tokens":5,"completion_tokens":3,"prompt_tokens_details":{"cached_tokens":4}}}\n\n',
        ": comment\n\n",
        'data: {"error":{"message":"x"}}\n\n',
        "data: nonsense\n\n",
        "data: [DONE]\n\n",
    ),
    "/generate": (
        'data: {"text":"a","meta_info":{"prompt_tokens":5,"completion_tokens":1,"cached_tokens":2}}\n\n',
        'data: {"text":"ab","meta_info":{"prompt_tokens":5,"completion_tokens":2,"cached_tokens":2}}\n\n',
        'data: {"text":"b","index":1,"meta_info":{"prompt_tokens":5,"completion_tokens":3}}\n\n',
        'data: {"error":{"message":"x"}}\n\n',
        "data: [DONE]\n\n",
    ),
    "/v1/responses": (
        'event: response.created\ndata: {"type":"response.created"}\n\n',
        'event: response.output_text.delta\ndata: {"type":"response.output_text.delta","delta":"a"}\n\n',
        'event: response.failed\ndata: {"type":"response.failed"}\n\n',
        'event: error\ndata: {"type":"error"}\n\n',
        'event: response.completed\ndata: {"type":"response.completed","response":{"usage":{"input_tokens":5,"output_tokens":2,"input_tokens_details":{"cached_tokens":9}}}}\n\n',
    ),
    "/v1/messages": (
        'event: message_start\ndata: {"type":"message_start","message":{"usage":{"input_tokens":5,"output_tokens":1,"cache_read_input_tokens":3}}}\n\n',
        'event: content_block_delta\ndata: {"type":"content_block_delta"}\n\n',
        'event: message_delta\ndata: {"type":"message_delta","usage":{"output_tokens":7}}\n\n',
        'event: error\ndata: {"type":"error"}\n\n',
        'event: message_stop\ndata: {"type":"message_stop"}\n\n',
    ),
}


def streams() -> Iterator[str]:
    """Streams of every dialect, cut anywhere: what the client is sent, counted and charged."""
    for path, events in EVENTS.items():
        for seed in range(40):
            rng = Random(seed)
            scan = SCANS[dialect_of(path)](drops_usage=bool(rng.randrange(2)))
            chosen = [
                rng.choice(events[: rng.choice((3, len(events)))])
                for _ in range(rng.choice((1, 3, 5)))
            ]
            data = "".join([*chosen, *(events[-1:] if rng.randrange(4) else ())]).encode()
            if not rng.randrange(4):
                data = data.replace(b"\n", b"\r\n")
            if not rng.randrange(5):
                data = data[:-1]
            cuts = sorted(rng.sample(range(len(data)), rng.choice((0, 2, 4))))
            sent = 0
            for begin, end in zip([0, *cuts], [*cuts, len(data)], strict=True):
                if scan.broken is None:
                    sent += len(scan.feed(data[begin:end]))
            scan.close()
            facts = (
                scan.events,
                scan.output_tokens,
                scan.done,
                scan.failed,
                scan.usage,
                scan.broken,
            )
            yield f"{path} {seed} {[events.index(one) for one in chosen]} {len(data)} bytes, sent {sent}: {text(facts)}"


USAGES = (
    {"prompt_tokens": 5, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 4}},
    {"prompt_tokens": 5, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 6}},
    {"prompt_tokens": -1, "completion_tokens": 2},
    {"prompt_tokens": 5},
    {"input_tokens": 5, "output_tokens": 2, "input_tokens_details": {"cached_tokens": 4}},
    {
        "input_tokens": 5,
        "output_tokens": 2,
        "cache_read_input_tokens": 3,
        "cache_creation_input_tokens": 1,
    },
    {"seconds": 1.5, "type": "duration"},
    None,
)
META = {"prompt_tokens": 5, "completion_tokens": 2, "cached_tokens": 1}


def answers() -> Iterator[str]:
    """Usage of whole answers, and errors in the dialect of each API."""
    for path, endpoint in ENDPOINTS.items():
        plain: list[Any] = [{"usage": one} for one in USAGES]
        plain += [
            {"meta_info": META},
            [{"meta_info": META}, {"meta_info": META}],
            {},
            [],
            "x",
            [{"meta_info": META}] * 3,
        ]
        for body in plain:
            try:
                found: object = of_reply(endpoint, json.dumps(body).encode())
            except GarbageError as error:
                found = f"garbage: {error}"
            except ErrorAnswer as error:
                found = f"error: {error}"
            yield row({"path": path, "body": json.dumps(body)}, found)
        for status in (400, 404, 413, 422, 429):
            for body in (
                {"error": {"message": "no"}},
                {"message": "no"},
                {"detail": [{"msg": "no"}]},
                "text",
                {},
            ):
                refusal = rejected_by_replica(status, json.dumps(body).encode())
                if path in EVENTS or path == "/v1/rerank":
                    yield row(
                        {"path": path, "status": status, "body": json.dumps(body)},
                        error_body(refusal, endpoint.api.dialect).decode(),
                    )


TABLES = {
    "router-windows": windows,
    "router-engine-limits": engine_limits,
    "router-sharing": sharing,
    "router-gates": gates,
    "router-queues": queues,
    "router-limits": limits,
    "router-taken-back": taken_back,
    "router-bodies": bodies,
    "router-streams": streams,
    "router-answers": answers,
}
