"""Effects of fields of both specs on running pods: refused requests, clients and weights of a router, the engine's
answers, the scaler's status. `test_fields.py` has all objects, field by field.

Services of simulated replicas with one router each, so that the queried router is the configured one.
"""

from __future__ import annotations

import itertools
import json
import re
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import httpx
import pytest
from evenkeel_contract.adminstate import STATE_PATH, ClientState, RouterState, decode_state
from evenkeel_contract.names import ADMIN_PORT, PROBE_PORT, TRAFFIC_PORT, USE_LABEL
from evenkeel_operator.core.recommendation import Sample

from e2e.figures import Question, figures, samples_of
from e2e.installed import Namespace, Stream, request, service
from e2e.operators import wait_until
from tests.support.fake_prometheus import answers

pytestmark = [pytest.mark.core, pytest.mark.timeout(300)]

KEY, OTHER, FAR = "sk-chat-44d1", "sk-other-90b2", "sk-far-71c3"
BY_KEY: Final = {"Authorization": f"Bearer {KEY}"}
ANYBODY: Final[dict[str, Any]] = {"tenancy": {"anonymous": "Share"}}


@dataclass(frozen=True, slots=True)
class Service:
    """One service with its only router."""

    team: Namespace
    name: str
    traffic: httpx.Client
    admin: httpx.Client
    metrics: httpx.Client

    def patch(self, **spec: Any) -> None:
        """A merge patch of its spec."""
        change = json.dumps({"spec": spec})
        self.team("patch", "fis", self.name, "--type=merge", "-p", change)

    def ask(
        self, headers: Mapping[str, str] | None = None, *, tokens: int = 2, **body: Any
    ) -> httpx.Response:
        """A short request."""
        whole = {**request(tokens=tokens), **body}
        return self.traffic.post("/v1/completions", json=whole, headers=headers)

    def says(self, status: int, code: str, headers: Mapping[str, str] | None = None) -> bool:
        """Whether a short request is refused so."""
        answer = self.ask(headers)
        return answer.status_code == status and answer.json()["error"]["code"] == code

    def answers(self, status: int, headers: Mapping[str, str] | None = None) -> bool:
        """Whether that is what a short request is answered with."""
        return self.ask(headers).status_code == status

    def state(self) -> RouterState:
        return decode_state(self.admin.get(STATE_PATH).raise_for_status().content)

    def client(self, name: str) -> ClientState | None:
        """One of the tenant's, as the router has it."""
        found = (one for tenant in self.state().tenants for one in tenant.clients)
        return next((one for one in found if one.name == name), None)

    def weight(self, name: str) -> int | None:
        found = self.client(name)
        return None if found is None else found.weight


@contextmanager
def reached(team: Namespace, name: str) -> Iterator[Service]:
    """A service at the ports of its router."""
    (router,) = team.pods(name, "router")
    with ExitStack() as stack:

        def port(number: int, **headers: str) -> httpx.Client:
            url = stack.enter_context(team.forwarded(router, number))
            return stack.enter_context(httpx.Client(base_url=url, headers=headers, timeout=60))

        admin = port(ADMIN_PORT, Authorization=f"Bearer {team.admin_token(name)}")
        yield Service(team, name, port(TRAFFIC_PORT), admin, port(PROBE_PORT))


def tenant(team: Namespace, **spec: Any) -> None:
    """A merge patch of the tenant's spec."""
    team("patch", "itn", "ads", "--type=merge", "-p", json.dumps({"spec": spec}))


@pytest.fixture(scope="module")
def one(team: Namespace) -> Iterator[Service]:
    """A service that anybody may use, and a tenant with a key."""
    team.tenant("ads", KEY)
    team("patch", "secret", "ads-keys", "-p", json.dumps({"stringData": {"other": OTHER}}))
    team("create", "secret", "generic", "far", f"--from-literal=chat={FAR}")
    team("label", "secret", "far", f"{USE_LABEL}=true")
    team("label", "itn", "ads", "team=ml")
    team.serve("one", router={"replicas": 1}, **ANYBODY)
    with reached(team, "one") as found:
        wait_until(lambda: found.ask(BY_KEY).is_success, "the tenant's key")
        yield found


LATE: Final = ("queueTime", "ttftP95")


@pytest.fixture(scope="module")
def late(team: Namespace) -> Iterator[dict[str, int]]:
    """A service for each target of latency, which is missed from the start; their replicas at first. The scaler waits for
    minutes before it acts, and the other tests of this file run meanwhile."""
    first = {}

    def says(question: Question) -> Sequence[Sample]:
        found = answers({("ads", "anybody"): 1.0}, queue=5.0, ttft=5.0)
        return [
            sample
            for name in LATE
            for sample in samples_of(
                question, namespace=team.name, service=name.lower(), answers=found
            )
        ]

    with figures(says) as url:
        for target in LATE:
            targets = {"servicePerReplica": "1k", "queueTime": "1h", "ttftP95": "1h", target: "2s"}
            scaling = {"maxReplicas": 3, "prometheus": {"url": url}, "targets": targets}
            name = target.lower()
            team.serve(name, replicas=None, router={"replicas": 1}, autoscaling=scaling, **ANYBODY)
            wait_until(lambda: _scaling_is_active(team, name), "figures")  # noqa: B023
            first[target] = _wanted(team, target)
        yield first


def test_latencies_beyond_their_targets_ask_for_nothing_at_first(late: dict[str, int]) -> None:
    assert late == dict.fromkeys(LATE, 1)


def _scaling_is_active(team: Namespace, name: str) -> bool:
    conditions = team.get("fis", name)["status"]["conditions"]
    return any((one["type"], one["status"]) == ("ScalingActive", "True") for one in conditions)


def _wanted(team: Namespace, target: str) -> int:
    return int(team.get("deploy", f"{target.lower()}-engine")["spec"]["replicas"])


def test_a_router_refuses_what_is_beyond_its_limits(one: Service) -> None:
    long = "x" * 4096
    assert one.ask(prompt=long).is_success
    one.patch(router={"limits": {"maxBodySize": "1Ki"}})
    wait_until(lambda: one.ask(prompt=long).status_code == 413, "too large a body")
    one.patch(router={"limits": {"maxBodySize": "16Mi", "firstTokenTimeout": "1ms"}})
    # Silence is checked every quarter of a second: a prompt that is not cached takes longer.
    new = (f"{n} {'x' * 20_000}" for n in itertools.count())
    wait_until(
        lambda: one.ask(prompt=next(new), stream=True).status_code == 504, "too late a token"
    )
    one.patch(router={"limits": {"firstTokenTimeout": "120s"}})
    wait_until(lambda: one.ask(stream=True).is_success, "the answer again")
    with occupied(one):
        one.patch(router={"limits": {"maxConcurrentPerClient": 1}})
        wait_until(lambda: one.says(429, "max_concurrent", BY_KEY), "one request too many")
        assert one.ask().is_success  # another client's request
        one.patch(router={"limits": {"maxConcurrentPerClient": 0}})
        wait_until(lambda: one.ask(BY_KEY).is_success, "the client again")
        tenant(one.team, limits={"maxConcurrent": 1})
        wait_until(lambda: one.says(429, "max_concurrent", BY_KEY), "the tenant's limit")
        tenant(one.team, limits={"maxConcurrent": None})
        wait_until(lambda: one.ask(BY_KEY).is_success, "the tenant again")


@contextmanager
def occupied(one: Service) -> Iterator[None]:
    """A stream of the client, and the next one after it, as far as limits let them begin; none is cut."""
    stop, ends = threading.Event(), list[str]()

    def ask() -> None:
        with httpx.Client(base_url=one.traffic.base_url, headers=BY_KEY, timeout=60) as client:
            while not stop.is_set():
                stream = Stream(client, tokens=1000)
                stream.run()
                if not isinstance(stream.fault, httpx.HTTPStatusError):
                    ends.append(repr(stream.fault) if stream.fault else stream.events[-1])

    asking = threading.Thread(target=ask)
    asking.start()
    try:
        yield
    finally:
        stop.set()
        asking.join(timeout=60)
    assert set(ends) == {"[DONE]"}


def test_a_tenant_gets_no_more_per_minute_than_its_limits_say(one: Service) -> None:
    for limit in ("requestsPerMinute", "tokensPerMinute"):
        code = re.sub(r"[A-Z]", lambda found: f"_{found[0].lower()}", limit)
        tenant(one.team, limits={limit: 1})
        wait_until(partial(one.says, 429, code, BY_KEY), limit)
        assert one.ask().is_success
        tenant(one.team, limits={limit: None})
        wait_until(lambda: one.ask(BY_KEY).is_success, "the tenant again")


def test_identities_follow_the_spec(one: Service) -> None:
    one.patch(tenancy={"anonymous": "Reject"})
    wait_until(lambda: one.says(401, "missing_api_key"), "no more anonymous requests")
    named = {"x-evenkeel-client": "ads/talk"}
    assert one.ask(named).status_code == 401
    one.patch(tenancy={"trustedProxies": ["127.0.0.0/8"]})
    wait_until(lambda: one.ask(named).is_success, "a name that is believed")
    assert one.weight("talk") == 1
    tenant(one.team, defaultClientWeight=5)
    wait_until(lambda: one.ask(named).is_success and one.weight("talk") == 5, "another default")
    tenant(one.team, clients=[{"name": "chat", "weight": 7}, {"name": "talk", "weight": 9}])
    wait_until(lambda: one.ask(named).is_success and one.weight("talk") == 9, "a client's weight")
    assert one.weight("chat") == 7
    for expression, status in (
        ({"key": "team", "operator": "Exists"}, 200),
        ({"key": "team", "operator": "DoesNotExist"}, 403),
        ({"key": "team", "operator": "In", "values": ["ml", "other"]}, 200),
        ({"key": "team", "operator": "In", "values": ["other"]}, 403),
        ({"key": "other", "operator": "NotIn", "values": ["ml"]}, 200),
    ):
        one.patch(tenancy={"selector": {"matchExpressions": [expression]}})
        wait_until(partial(one.answers, status, named), str(expression))
    one.patch(tenancy={"selector": {"matchLabels": {"team": "other"}}})
    wait_until(lambda: one.ask(named).status_code == 403, "another team")
    one.patch(tenancy={"selector": None})
    wait_until(lambda: one.ask(BY_KEY).is_success, "the tenant again")


def test_whose_key_it_is_follows_the_spec(one: Service) -> None:
    tenant(one.team, clients=[{"name": "chat"}, {"name": "talk"}])
    before = one.client("talk")
    _give(one, client="talk", secret="ads-keys", entry="other")
    wait_until(lambda: one.ask(_bearer(OTHER)).is_success, "another entry")
    assert one.ask(BY_KEY).status_code == 401
    after = one.client("talk")
    assert after is not None
    assert after.requests > (before.requests if before else 0)
    _give(one, client="talk", secret="far", entry="chat")
    wait_until(lambda: one.ask(_bearer(FAR)).is_success, "another Secret")
    _give(one, client="chat", secret="ads-keys", entry="chat")
    wait_until(lambda: one.ask(BY_KEY).is_success, "the first key again")


def _give(one: Service, *, client: str, secret: str, entry: str) -> None:
    reference = {"name": secret, "key": entry}
    tenant(one.team, apiKeys=[{"name": "chat-1", "client": client, "secretRef": reference}])


def _bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


def test_how_a_router_chooses_and_measures_follows_the_spec(one: Service) -> None:
    one.patch(scheduling={"fleetPolicy": "LeastLoaded"})
    wait_until(lambda: one.state().fleet_policy == "LeastLoaded", "another policy")
    one.patch(scheduling={"fleetPolicy": "D2LPM", "workerQuantum": 3_000_000})

    def credit() -> float:
        """Of the client that asks, at the replica."""
        assert one.ask(BY_KEY).is_success
        found = one.client("chat")
        return max(at.credit for at in found.replicas) if found and found.replicas else 0.0

    wait_until(lambda: credit() > 1_000_000, "a larger quantum")
    one.patch(router={"prefix": {"textBlockBytes": 64}})
    wait_until(lambda: _blocks(one, "a") >= 4096 // 64, "small blocks")
    one.patch(router={"prefix": {"textBlockBytes": 1024}})
    wait_until(lambda: 4 <= _blocks(one, "b") < 8, "large blocks")
    one.patch(router={"prefix": {"mode": "Tokens"}})
    wait_until(lambda: one.state().prefix.mode == "Tokens", "another mode")
    bucket = 'le="1.234"'
    assert bucket not in one.metrics.get("/metrics").text
    one.patch(slo={"ttft": {"threshold": "1234ms"}})
    wait_until(lambda: bucket in one.metrics.get("/metrics").text, "the objective's bucket")


def _blocks(one: Service, letter: str) -> int:
    """How many of the router's blocks a prompt of four kilobytes makes, when none else is known."""
    assert one.ask(BY_KEY, prompt=letter * 4096).is_success
    return one.state().prefix_blocks


def test_the_host_of_the_ingress_follows_the_spec(one: Service) -> None:
    with one.team.client("one", KEY) as client:

        def status(host: str) -> int:
            return client.get("/v1/models", headers={"Host": host}).status_code

        first, second = one.team.host("one"), one.team.host("another")
        wait_until(lambda: status(first) == 200, "the first host")
        one.patch(exposure={"ingress": {"host": second}})
        wait_until(lambda: (status(first), status(second)) == (404, 200), "another host")
        one.patch(exposure={"ingress": {"additionalHosts": [first]}})
        wait_until(lambda: (status(first), status(second)) == (200, 200), "both hosts")
        one.patch(exposure={"ingress": {"paths": ["/v1/chat"]}})
        wait_until(lambda: (status(first), status(second)) == (404, 404), "another path")
        one.patch(exposure={"ingress": {"paths": None, "additionalHosts": None}})
        wait_until(lambda: (status(first), status(second)) == (404, 200), "one host, all paths")


def test_engine_settings_take_effect(one: Service) -> None:
    """One rollout for all that starts an engine anew."""
    team = one.team
    profile = team.get("fis", "one")["spec"]["engine"]["args"]
    (old,) = team.pods("one", "engine")
    one.patch(
        model={"servedName": "another"},
        engine={
            "args": [*profile, "--context-length=2048"],
            "template": {
                "metadata": {"annotations": {"evenkeel.test/a": "b"}},
                "spec": {"env": [{"name": "ADDED", "value": "so"}]},
            },
        },
        scheduling={
            "replicaPolicy": "VTC",
            "inputTokenWeight": 100,
            "outputTokenWeight": 1000,
            "rejoin": "Paper",
            "order": "LongestMatch",
        },
        router={"prefix": {"mode": "Text"}},
    )
    wait_until(lambda: old not in team.pods("one", "engine"), "another engine")
    team.ready("one", replicas=1)
    ((pod, item),) = team.pods("one", "engine").items()
    info = json.loads(team.python(pod, INFO))
    assert info["served_model_name"] == "another"
    assert info["schedule_policy"] == "vtc"
    assert info["context_length"] == 2048
    assert item["metadata"]["annotations"]["evenkeel.test/a"] == "b"
    assert team.python(pod, "import os; print(os.environ['ADDED'])") == "so"
    command = team.python(pod, "print(open('/proc/1/cmdline').read())")
    assert "--rejoin=Paper" in command
    assert "--order=LongestMatch" in command
    assert one.says(404, "model_not_found", BY_KEY)  # by its old name
    wait_until(lambda: [at.policy for at in one.state().replicas] == ["VTC"], "its policy alone")
    fresh = {"x-evenkeel-client": "ads/fresh"}
    one.patch(tenancy={"trustedProxies": ["127.0.0.0/8"]})
    answer = wait_until(lambda: _answered(one, fresh), "a name that is believed")
    cost = 100 * answer["prompt_tokens"] + 1000 * answer["completion_tokens"]
    wait_until(lambda: _service(one, "fresh") == pytest.approx(cost), "its price")


def _answered(one: Service, headers: Mapping[str, str]) -> Any:
    """The usage of a request to the model by its new name; None where it is refused."""
    answer = one.ask(headers, prompt="A prompt that is not cached", model="another")
    return answer.json()["usage"] if answer.is_success else None


INFO: Final = """
import os, urllib.request as u
key = os.environ['EVENKEEL_ENGINE_KEY']
print(u.urlopen(u.Request('http://127.0.0.1:30000/server_info', headers={'Authorization': f'Bearer {key}'})).read().decode())
"""


def _service(one: Service, name: str) -> float:
    found = one.client(name)
    return found.service if found else 0.0


NOWHERE: Final = {"template": {"spec": {"nodeSelector": {"evenkeel.test/none": "none"}}}}
SLEEPS: Final = {
    "minReplicas": 0,
    "maxReplicas": 1,
    "prometheus": {"url": "http://prometheus.nowhere:9090"},
}


def test_requests_wait_for_a_replica_as_long_as_they_may(team: Namespace) -> None:
    """Replicas that no node takes, of a service that should have one and of one that stands at zero."""
    router = {"replicas": 1, "limits": {"queueTimeout": "1s", "activationTimeout": "2s"}}
    for name, replicas, spec in (("empty", 1, {}), ("asleep", None, {"autoscaling": SLEEPS})):
        plain = service(name, host=team.host(name), replicas=replicas, router=router, **ANYBODY)
        plain["spec"]["engine"] |= NOWHERE
        plain["spec"] |= spec
        team.apply(plain)
    for name, limit, waits in (
        ("empty", "queueTimeout", "No replica was ready within"),
        ("asleep", "activationTimeout", "none was ready within"),
    ):
        condition = "--for=jsonpath={.status.router.readyReplicas}=1"
        team("wait", condition, f"fis/{name}", "--timeout=90s")
        with reached(team, name) as found:
            for limit_s in (1, 2) if name == "empty" else (2, 3):
                found.patch(router={"limits": {limit: f"{limit_s}s"}})
                wait_until(lambda: f"{waits} {limit_s} s" in found.ask().text, limit)  # noqa: B023


def test_latencies_beyond_their_targets_ask_for_more_in_the_end(
    team: Namespace, late: dict[str, int]
) -> None:
    """Once the replica has been ready for as long as the measured requests took: two minutes, and their latency."""
    for target in LATE:
        wait_until(lambda: _wanted(team, target) == 2, target, timeout_s=200)  # noqa: B023
