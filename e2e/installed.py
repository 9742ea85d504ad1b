"""Evenkeel as its users have it: the chart installed, services applied, requests through the ingress.

On your own cluster (`E2E_KUBECONFIG`): `E2E_REGISTRY` holds the images, `E2E_INGRESS` is the address of the
ingress controller.
"""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, Final

import httpx
import yaml
from evenkeel_contract.names import USE_LABEL

from e2e.kubectl import Kubectl, KubectlError
from e2e.operators import wait_until
from e2e.rig import cluster
from e2e.rig.images import REGISTRY, product_archives
from e2e.rig.layout import CACHE, NODES, in_url

ROOT: Final = Path(__file__).parents[1]
CHART: Final = ROOT / "charts" / "evenkeel"
SYSTEM: Final = "evenkeel-system"
OPERATOR: Final = f"system:serviceaccount:{SYSTEM}:evenkeel"
MODEL: Final = "llama-3.1-8b"
DEFINITIONS: Final = (
    "fairinferenceservices.evenkeel.dev",
    "inferencetenants.evenkeel.dev",
    "fairinferencegateways.evenkeel.dev",
)


ASLEEP: Final = {
    "minReplicas": 0,
    "maxReplicas": 2,
    "prometheus": {"url": "http://prometheus.nowhere:9090"},
}
"""`spec.autoscaling` of a service that starts at zero, and grows by its requests alone."""


@cache
def registry() -> str:
    """Where the images are; builds them and loads them into the rig's own cluster, once."""
    given = os.environ.get("E2E_REGISTRY")
    if given is None:
        cluster.load_images(product_archives())
    return given or REGISTRY


def ingress() -> str:
    """The address of the ingress controller, as URLs have it."""
    return os.environ.get("E2E_INGRESS", in_url(NODES[0].ip))


def program(name: str) -> str:
    """kubectl's and helm's place."""
    built = CACHE / "bin" / name
    found = str(built) if built.exists() else shutil.which(name)
    assert found is not None, f"no {name}"
    return found


def helm(kubectl: Kubectl, *arguments: str) -> str:
    """Its output; raises `AssertionError` with its error output."""
    command = [program("helm"), f"--kubeconfig={kubectl.kubeconfig}", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"helm {' '.join(arguments)}: {done.stderr.strip()}"
    return done.stdout


def forget(kubectl: Kubectl) -> None:
    """Remove objects of earlier tests; deleting the definitions deletes all services."""
    if "evenkeel" in helm(kubectl, "--namespace", SYSTEM, "list", "--short", "--all"):
        helm(kubectl, "--namespace", SYSTEM, "uninstall", "evenkeel", "--wait")
    kubectl("delete", "crd", "--ignore-not-found", *DEFINITIONS)
    kubectl("delete", "namespace", SYSTEM, "--ignore-not-found")


def install(kubectl: Kubectl, *values: str, chart: Path = CHART) -> None:
    """Install the chart, and wait until its operator runs."""
    options = [f"--set=images.registry={registry()}", *values]
    if chart == CHART:  # the Prometheus of a test is beside the cluster
        options.append("--set=allowPrometheus={*}")
    helm(kubectl, "--namespace", SYSTEM, "install", "evenkeel", str(chart),
         "--create-namespace", "--wait", "--timeout=120s", *options)  # fmt: skip


@contextmanager
def installed(kubectl: Kubectl, *values: str, chart: Path = CHART) -> Iterator[None]:
    """The chart, installed for the time of the context."""
    forget(kubectl)
    try:
        install(kubectl, *values, chart=chart)
        yield
    finally:
        forget(kubectl)


class Namespace:
    """A team's namespace: actions of its users with kubectl, and answers to its clients."""

    def __init__(self, kubectl: Kubectl, name: str) -> None:
        self.kubectl = kubectl
        self.name = name

    def __call__(self, *arguments: str, stdin: str | None = None) -> str:
        return self.kubectl("-n", self.name, *arguments, stdin=stdin)

    def get(self, *arguments: str) -> Any:
        return self.kubectl.get("-n", self.name, *arguments)

    def apply(self, *objects: dict[str, Any]) -> None:
        self("apply", "-f", "-", stdin=yaml.safe_dump_all(objects))

    def serve(self, name: str, *, replicas: int | None = 1, **spec: Any) -> None:
        """A service of simulated replicas at `<name>.<namespace>.test`, once it is ready."""
        self.apply(service(name, host=self.host(name), replicas=replicas, **spec))
        self.ready(name)

    def patch(self, name: str, **spec: Any) -> None:
        """Change fields of a service's spec."""
        change = json.dumps({"spec": spec})
        self("patch", "fis", name, "--type=merge", "-p", change)

    def ready(self, name: str, *, replicas: int | None = None) -> None:
        """Wait until the service is ready, with that many replicas."""
        self("wait", "--for=condition=Ready", f"fis/{name}", "--timeout=180s")
        if replicas is not None:
            self("wait", f"--for=jsonpath={{.status.readyReplicas}}={replicas}", f"fis/{name}",
                 "--timeout=180s")  # fmt: skip
            wait_until(lambda: len(self.pods(name, "engine")) == replicas, f"{replicas} pods")

    def tenant(self, name: str, key: str, *, weight: int = 1) -> None:
        """A tenant with one client, `chat`, and its key in the Secret `<name>-keys`."""
        secret = {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": f"{name}-keys", "labels": {USE_LABEL: "true"}},
            "stringData": {"chat": key},
        }
        reference = {"name": f"{name}-keys", "key": "chat"}
        spec = {
            "weight": weight,
            "clients": [{"name": "chat"}],
            "apiKeys": [{"name": "chat-1", "client": "chat", "secretRef": reference}],
        }
        self.apply(
            secret,
            {
                "apiVersion": "evenkeel.dev/v1alpha1",
                "kind": "InferenceTenant",
                "metadata": {"name": name},
                "spec": spec,
            },
        )

    def condition(self, name: str, type_: str) -> Any:
        """The condition of the service with that type."""
        found = self.get("fis", name)["status"]["conditions"]
        return next(item for item in found if item["type"] == type_)

    def pods(self, service: str, component: str) -> dict[str, Any]:
        """Pods that are not being deleted, by name."""
        labels = f"evenkeel.dev/service={service},evenkeel.dev/component={component}"
        items = self.get("pods", "-l", labels)["items"]
        return {
            item["metadata"]["name"]: item
            for item in items
            if "deletionTimestamp" not in item["metadata"]
        }

    def admin_token(self, service: str) -> str:
        """The bearer token of its routers' admin port."""
        data = self.get("secret", f"{service}-router")["data"]["router.json"]
        return str(json.loads(base64.b64decode(data))["state"]["peerToken"])

    def host(self, service: str) -> str:
        return f"{service}.{self.name}.test"

    def client(self, service: str, key: str) -> httpx.Client:
        """Through the ingress, with an API key."""
        headers = {"Host": self.host(service), "Authorization": f"Bearer {key}"}
        return httpx.Client(base_url=f"http://{ingress()}", headers=headers, timeout=60)

    def status(self, service: str, key: str) -> int:
        """The answer to a short request."""
        with self.client(service, key) as client:
            return client.post("/v1/completions", json=request(tokens=2)).status_code

    def answers(self, service: str, key: str, status: int, *, within_s: float = 30) -> None:
        """Wait until requests are answered with `status`, by every router."""
        routers = len(self.pods(service, "router"))

        def all_say_so() -> bool:
            # The ingress controller uses routers in turn.
            return all(self.status(service, key) == status for _ in range(2 * routers))

        wait_until(all_say_so, f"{status} from {service}", timeout_s=within_s)

    def reached(self, service: str, key: str) -> None:
        """Wait until both routers answer, and know the key: for this they need no replica."""
        with self.client(service, key) as client:
            wait_until(
                lambda: all(client.get("/v1/models").is_success for _ in range(4)),
                f"the way to {service} through the ingress",
            )

    def python(self, pod: str, code: str) -> str:
        """The output of a program in a pod."""
        return self("exec", pod, "--", "python3", "-c", code).strip()

    @contextmanager
    def forwarded(self, pod: str, port: int) -> Iterator[str]:
        """The address of a pod's port, from here."""
        command = self.kubectl.command("-n", self.name, "port-forward", f"pod/{pod}", f":{port}")
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            try:
                assert process.stdout is not None
                line = process.stdout.readline()  # Forwarding from 127.0.0.1:… -> …
                yield f"http://{line.split()[2]}"
            finally:
                process.terminate()


@contextmanager
def namespace(kubectl: Kubectl, name: str) -> Iterator[Namespace]:
    """A namespace for the time of the context; that of an earlier run may still be going."""
    try:
        kubectl("create", "namespace", name)
    except KubectlError as error:
        if "object is being deleted" not in str(error):
            raise
        kubectl("wait", "--for=delete", f"namespace/{name}", "--timeout=180s")
        kubectl("create", "namespace", name)
    try:
        yield Namespace(kubectl, name)
    finally:
        kubectl("delete", "namespace", name, "--wait=false")


def service(name: str, *, host: str, replicas: int | None = 1, **spec: Any) -> dict[str, Any]:
    """The sample with simulated replicas, under another name, with changes."""
    plain: dict[str, Any] = yaml.safe_load((ROOT / "crds/samples/simulator.yaml").read_text())
    plain["metadata"]["name"] = name
    plain["spec"] |= {"exposure": {"ingress": {"host": host}}} | spec
    plain["spec"]["engine"]["replicas"] = replicas
    if replicas is None:  # an autoscaler decides
        del plain["spec"]["engine"]["replicas"]
    return plain


def request(*, tokens: int = 8, stream: bool = False, model: str = MODEL) -> dict[str, Any]:
    """A completion of exactly that many tokens."""
    return {
        "model": model,
        "prompt": "Ahoy",
        "max_tokens": tokens,
        "ignore_eos": True,
        "stream": stream,
    }


def refused(kubectl: Kubectl, *arguments: str, stdin: str | None = None) -> bool:
    """Whether RBAC refuses the request. Any other answer, also an error, is not a refusal."""
    try:
        kubectl(*arguments, stdin=stdin)
    except KubectlError as error:
        return "forbidden" in str(error).lower()
    return False


class Stream(threading.Thread):
    """A streamed request through the ingress, read in the background."""

    def __init__(self, client: httpx.Client, *, tokens: int, model: str = MODEL) -> None:
        super().__init__(daemon=True)
        self._client = client
        self._tokens = tokens
        self._body = request(tokens=tokens, stream=True, model=model)
        self.events: list[str] = []
        self.fault: Exception | None = None

    def run(self) -> None:
        try:
            with self._client.stream("POST", "/v1/completions", json=self._body) as response:
                if not response.is_success:  # the message has the router's reason
                    said = f"{response.status_code}: {response.read().decode(errors='replace')}"
                    raise httpx.HTTPStatusError(said, request=response.request, response=response)
                for line in response.iter_lines():
                    if line.startswith("data: "):
                        self.events.append(line.removeprefix("data: "))
        except httpx.HTTPError as error:
            self.fault = error

    def started(self) -> Stream:
        """Wait for the first event."""
        self.start()
        wait_until(lambda: self.events or self.fault, "the first event")
        assert self.fault is None, self.fault
        return self

    def finish(self) -> None:
        """Wait for its end; it must be whole."""
        self.join(timeout=120)
        assert not self.is_alive()
        assert self.fault is None, self.fault
        assert self.events[-1] == "[DONE]"
        chunks = [json.loads(event) for event in self.events[:-1]]
        assert not [chunk for chunk in chunks if "error" in chunk]
        texts = [choice["text"] for chunk in chunks for choice in chunk["choices"]]
        assert len([text for text in texts if text]) >= self._tokens // 2


OVERLAP_S: Final = 4.0
"""From one stream of `under_load` to the next; each lives for several times as long."""


@contextmanager
def under_load(
    team: Namespace, service: str, key: str, *, tokens: int = 1500, model: str = MODEL
) -> Iterator[None]:
    """Short requests, one after another, and streams that overlap at every moment: all must be answered."""
    stop, outcomes, streams = threading.Event(), list[str](), list[Stream]()

    def ask() -> None:
        with team.client(service, key) as client:
            while not stop.is_set():
                try:
                    answer = client.post("/v1/completions", json=request(tokens=2, model=model))
                    outcomes.append(f"{answer.status_code}")
                except httpx.HTTPError as error:
                    outcomes.append(repr(error))

    with team.client(service, key) as client:

        def stream() -> None:
            while not stop.wait(OVERLAP_S):
                streams.append(Stream(client, tokens=tokens, model=model))
                streams[-1].start()

        streams.append(Stream(client, tokens=tokens, model=model).started())
        threads = [threading.Thread(target=one) for one in (ask, stream)]
        for thread in threads:
            thread.start()
        try:
            yield
            assert any(one.is_alive() for one in streams)  # else this would prove nothing
        finally:
            stop.set()
            for thread in threads:
                thread.join(timeout=60)
        for one in streams:
            one.finish()
    assert len(outcomes) > 10
    assert set(outcomes) == {"200"}
