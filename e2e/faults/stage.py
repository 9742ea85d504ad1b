"""The stage of all scenes: two services under load, their stores and measurements, and what counts as at rest.

`one` has three replicas, two routers, store Redis and the built-in scaler. Two tenants with weights 4 and 1 always have
waiting requests at each replica. `filed` has one router that keeps its ledger on a small disk.
"""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

import httpx
from evenkeel_contract.names import DRAIN_ANNOTATION, USE_LABEL
from evenkeel_operator.core.recommendation import AGE, ASKED, IN_FLIGHT, Sample

from e2e.faults import machine
from e2e.faults.load import Hands, Load, load
from e2e.faults.watch import Watch, watching
from e2e.figures import Question, figures, samples_of
from e2e.installed import SYSTEM, Namespace, request, service
from e2e.operators import wait_until
from e2e.rig.layout import NODES
from e2e.scraping import routes

GOLD, BRONZE, OTHER = "gold", "bronze", "other"
WEIGHTS: Final = {GOLD: 4, BRONZE: 1}
REPLICAS: Final = 3
LEAST_REPLICAS: Final = 2
MOST_REPLICAS: Final = 4
QUANTUM: Final = 500
POOL_TOKENS: Final = 2048
REQUEST_TOKENS: Final = 512
ENGINE_ARGS: Final = (
    "--profile=a100-llama3.1-8b", "--speed=0.1", "--max-running-requests=4", f"--kv-tokens={POOL_TOKENS}",
)  # fmt: skip
"""A replica that serves four requests at once, some 8 tokens a second each."""
_PER_REPLICA: Final = 100
_PATIENCE_S: Final = 420.0


@dataclass(slots=True)
class Scaler:
    """The answers of the Prometheus that the scaler reads, which scenes spoil."""

    age_s: float = 1.0
    factor: float = 1.0
    delay_s: float = 0.0
    refuses: bool = False
    url: str = ""

    def says(self, question: Question) -> Sequence[Sample]:
        if self.refuses:
            raise ConnectionAbortedError("not here")
        time.sleep(self.delay_s)
        asked = {GOLD: 2 * _PER_REPLICA, BRONZE: _PER_REPLICA}
        answers = {
            AGE: [Sample({}, self.age_s)],
            ASKED: [
                Sample({"tenant": name, "client": "chat"}, value * self.factor)
                for name, value in asked.items()
            ],
            IN_FLIGHT: [Sample({}, 30 * self.factor)],
        }
        return samples_of(question, namespace="faults", service="one", answers=answers)


@dataclass(slots=True)
class Stage:
    """Everything that a scene may touch."""

    team: Namespace
    api: httpx.Client
    load: Load
    watch: Watch
    waits: Mapping[str, str]
    """`for` of each alert."""
    redis: machine.Redis
    scaler: Scaler
    folder: Path
    kept: dict[str, Any] = field(default_factory=dict)
    """What a scene remembers between its fault and its end."""

    def pods(self, component: str, *, service: str = "one", node: str = "") -> dict[str, Any]:
        """Pods of a service by name, those that are being deleted included."""
        labels = {"evenkeel.dev/component": component, "evenkeel.dev/service": service}
        return {
            pod["metadata"]["name"]: pod
            for pod in self.watch.pods(self.team.name)
            if labels.items() <= pod["metadata"].get("labels", {}).items()
            and (not node or pod["spec"].get("nodeName") == node)
        }

    def leader(self) -> Any:
        """The pod of the operator that leads."""
        name = self._lease()["holderIdentity"]
        return next(pod for pod in self.watch.pods(SYSTEM) if pod["metadata"]["name"] == name)

    def renewed(self) -> str:
        """When the leader renewed its Lease."""
        return str(self._lease()["renewTime"])

    def _lease(self) -> Any:
        path = f"/apis/coordination.k8s.io/v1/namespaces/{SYSTEM}/leases/evenkeel"
        return self.api.get(path).raise_for_status().json()["spec"]

    def unrest(self) -> str:
        """Empty at rest: every part runs as its spec says, and nothing is left of a change. Else the first thing
        that is not."""
        try:
            return next(self._unrest(), "")
        except (httpx.HTTPError, KeyError, ValueError) as error:
            return f"the API server does not answer: {error!r}"

    def _unrest(self) -> Iterator[str]:
        want = {
            "Ready": "True", "EnginesReady": "True", "RouterReady": "True", "Progressing": "False",
            "Degraded": "False", "SpecValid": "True",
        }  # fmt: skip
        for item in self.watch.services():
            name, status = item["metadata"]["name"], item["status"]
            found = {one["type"]: one for one in status["conditions"]}
            # The version before has no scaler, and keeps `minReplicas`.
            scales = found["ScalingActive"]["reason"] != "NoScaler"
            wanted = want | ({"ScalingActive": "True"} if name == "one" and scales else {})
            yield from (
                f"{name}: {kind} is {found[kind]['reason']}"
                for kind, value in wanted.items()
                if found[kind]["status"] != value
            )
            if found["Progressing"]["reason"] != "Stable":
                yield f"{name}: Progressing is {found['Progressing']['reason']}"
            if status["observedGeneration"] != item["metadata"]["generation"]:
                yield f"{name}: the newest spec has not been seen"
            replicas = (REPLICAS if scales else LEAST_REPLICAS) if name == "one" else 1
            if status["readyReplicas"] != replicas:
                yield f"{name}: {status['readyReplicas']} of {replicas} replicas"
        for pod in (*self.watch.pods(self.team.name), *self.watch.pods(SYSTEM)):
            name, marks = pod["metadata"]["name"], pod["metadata"].get("annotations", {})
            ready = {c["type"]: c["status"] for c in pod["status"].get("conditions", ())}
            if "deletionTimestamp" in pod["metadata"]:
                yield f"{name} is being deleted"
            elif ready.get("Ready") != "True" or DRAIN_ANNOTATION in marks:
                yield f"{name} is not ready"
        for node in self.api.get("/api/v1/nodes").raise_for_status().json()["items"]:
            ready = {c["type"]: c["status"] for c in node["status"]["conditions"]}
            if ready["Ready"] != "True" or node["spec"].get("unschedulable"):
                yield f"{node['metadata']['name']} is not ready"

    def at_rest(self) -> None:
        """Wait until it stays so for two seconds."""
        calm_since_s = [float("inf")]

        def is_calm() -> bool:
            if self.unrest():
                calm_since_s[0] = float("inf")
            else:
                calm_since_s[0] = min(calm_since_s[0], time.monotonic())
            return time.monotonic() - calm_since_s[0] > 2

        try:
            wait_until(is_calm, "rest", timeout_s=_PATIENCE_S, every_s=0.5)
        except AssertionError as error:
            raise AssertionError(f"{error}: {self.unrest()}") from error

    def router_config(self, service: str = "one") -> Any:
        """The configuration that the operator gave the routers."""
        return json.loads(
            base64.b64decode(self.team.get("secret", f"{service}-router")["data"]["router.json"])
        )

    def logged(self) -> dict[str, set[str]]:
        """Request → its router and its replica, by the logs of all routers that run."""
        found: dict[str, set[str]] = {}
        for name in ("one", "filed"):
            for pod in self.pods("router", service=name):
                for line in self.team("logs", pod, "--since=10m").splitlines():
                    if '"message":"request"' in line:
                        one = json.loads(line)
                        found.setdefault(one["request_id"], {pod}).add(one.get("replica", ""))
        return found


def document(team: Namespace, scaler: Scaler) -> dict[str, Any]:
    """The service `one`."""
    reference = {"name": "redis", "key": "url"}
    found = service(
        "one",
        host=team.host("one"),
        replicas=None,
        router={
            "replicas": 2,
            "state": {"store": "Redis", "redis": {"urlSecretRef": reference}},
            "template": {"spec": machine.with_clock()},
        },
        scheduling={"clientQuantum": QUANTUM},
        tenancy={"anonymous": "Reject"},
        autoscaling={
            "minReplicas": LEAST_REPLICAS,
            "maxReplicas": MOST_REPLICAS,
            "targets": {"servicePerReplica": _PER_REPLICA, "utilizationPercent": 100},
            "prometheus": {"url": scaler.url},
            "drainTimeout": "240s",  # as long as clients wait
        },
    )
    found["spec"]["engine"] |= {
        "args": list(ENGINE_ARGS),
        "template": {"spec": machine.with_clock()},
    }
    return found


def filed(team: Namespace) -> dict[str, Any]:
    """The service `filed`."""
    found = service(
        "filed",
        host=team.host("filed"),
        router={"replicas": 1, "state": {"store": "File"}},
        tenancy={"anonymous": "Reject"},
    )
    found["spec"]["engine"]["args"] = list(ENGINE_ARGS)
    return found


def volume() -> dict[str, Any]:
    """The volume of `filed`: the small disk of node 1."""
    here = {"key": "kubernetes.io/hostname", "operator": "In", "values": [machine.ONE.name]}
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": "evenkeel-faults"},
        "spec": {
            "capacity": {"storage": "1Gi"},
            "accessModes": ["ReadWriteOnce"],
            "hostPath": {"path": machine.DISK},
            "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [here]}]}},
        },
    }


def hands(team: Namespace) -> list[Hands]:
    """43 streams and 15 requests without streaming, all at once.

    Both tenants have more than each replica serves at once for them, so that both wait at every replica (theorem 2).
    """
    counts = {GOLD: ("one", 30, 10), BRONZE: ("one", 12, 4), OTHER: ("filed", 1, 1)}
    return [
        Hands(name, address(team, at), f"sk-{name}", streams, unary)
        for name, (at, streams, unary) in counts.items()
    ]


def address(team: Namespace, service: str) -> str:
    """Of the routers' Service, as clients in the cluster use it: no proxy of others is in between."""
    return f"http://{team.get('svc', f'{service}-router')['spec']['clusterIP']}"


def answers(url: str, key: str) -> bool:
    """Whether a request is served."""
    headers = {"Authorization": f"Bearer {key}"}
    with suppress(httpx.HTTPError):
        sent = httpx.post(f"{url}/v1/completions", json=request(), headers=headers, timeout=30)
        return sent.is_success
    return False


@contextmanager
def stage(team: Namespace, api: httpx.Client, folder: Path) -> Iterator[Stage]:
    """Everything runs, and all clients are served."""
    with ExitStack() as stack:
        stack.enter_context(routes())
        redis = machine.Redis(folder)
        redis.start()
        stack.callback(redis.kill)
        for node in NODES:
            machine.set_clock(node, 0)
        machine.make_disk()
        scaler = Scaler()
        scaler.url = stack.enter_context(figures(scaler.says))
        for name in (GOLD, BRONZE, OTHER):
            team.tenant(name, f"sk-{name}", weight=WEIGHTS.get(name, 1))
        secret = {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": "redis", "labels": {USE_LABEL: "true"}},
            "stringData": {"url": redis.url},
        }
        team.apply(volume(), secret, document(team, scaler), filed(team))
        stack.callback(team.kubectl, "delete", "pv", "evenkeel-faults", "--wait=false")
        for name in ("one", "filed"):
            team.ready(name)
        for one in hands(team):
            wait_until(partial(answers, one.url, one.key), f"an answer to {one.tenant}")
        watch, waits = stack.enter_context(watching(team, api, folder, "one", "filed"))
        running = stack.enter_context(load(hands(team)))
        made = Stage(team, api, running, watch, waits, redis, scaler, folder)
        made.at_rest()
        yield made
