"""Tokens mode on a cluster: replicas send their tokenizer and events, and the router predicts hits exactly."""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families

from e2e.installed import MODEL, Namespace
from e2e.operators import wait_until

KEY = "sk-ads"
STORY = "Once upon a time there was a router that knew every page of every cache. " * 20
METRICS = "from urllib.request import urlopen as o; print(o('http://127.0.0.1:8081/metrics').read().decode())"
Samples = dict[tuple[str, str], float]


def samples(team: Namespace, router: str) -> Samples:
    """What a router measures, by name and by mode, reason or replica; asked from inside its pod."""
    found: Samples = {}
    for family in text_string_to_metric_families(team.python(router, METRICS)):
        for sample in family.samples:
            labels = sample.labels
            of = labels.get("mode") or labels.get("reason") or labels.get("replica", "")
            found[sample.name.removeprefix("evenkeel_router_"), of] = sample.value
    return found


def test_a_conversation_is_predicted_exactly_by_its_replicas_events(
    team: Namespace,
) -> None:
    team.tenant("ads", KEY)
    team.serve("exact", replicas=2, router={"replicas": 1, "prefix": {"mode": "Tokens"}})
    team.answers("exact", KEY, 200)
    (router,) = team.pods("exact", "router")

    def exact() -> bool:
        """Whether a request was matched by complete events; sends one."""
        team.status("exact", KEY)
        return ("prefix_error_tokens_count", "exact") in samples(team, router)

    wait_until(exact, "the replicas' tokenizer and events", timeout_s=60)
    before = samples(team, router)
    messages = [{"role": "user", "content": STORY}]
    cached = 0
    with team.client("exact", KEY) as client:
        for _ in range(4):
            body = {"model": MODEL, "messages": messages, "max_tokens": 40}
            answer = client.post("/v1/chat/completions", json=body).raise_for_status().json()
            cached += answer["usage"]["prompt_tokens_details"]["cached_tokens"]
            text = answer["choices"][0]["message"]["content"]
            messages += [{"role": "assistant", "content": text}, {"role": "user", "content": "On?"}]
    after = samples(team, router)

    def grown(name: str) -> float:
        return after[name, "exact"] - before[name, "exact"]

    assert cached > 1000
    assert grown("prefix_error_tokens_count") == 4
    assert grown("prefix_predicted_tokens_total") == grown("prefix_reported_tokens_total") == cached


def test_a_tenant_does_not_find_what_another_one_sent(team: Namespace) -> None:
    """Through several routers, which derive the same salts."""
    for name, key in (("ads", KEY), ("search", "sk-search")):
        team.tenant(name, key)
    team.serve("private", replicas=1, router={"replicas": 2})
    found = {}
    for key in (KEY, "sk-search"):
        team.answers("private", key, 200)
        found[key] = [_cached(team, key) for _ in range(4)]
    assert all(first == 0 and min(later) > 100 for first, *later in found.values()), found


def _cached(team: Namespace, key: str) -> int:
    body = {"model": MODEL, "prompt": STORY, "max_tokens": 4}
    with team.client("private", key) as client:
        answer = client.post("/v1/completions", json=body).raise_for_status().json()
    return int(answer["usage"]["prompt_tokens_details"]["cached_tokens"])
