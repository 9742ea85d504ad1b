"""CPU time and memory of an operator over many tenants, services and Secrets, on a real API server.

    python bench/operator_scale.py --tenants 10000 --services 100 --secrets-mb 500
    python bench/operator_scale.py … --code /path/of/another/checkout      # the same for its operator

Starts etcd and kube-apiserver (the programs of the cluster rig) on ports of the loopback interface, without kubelets and
controllers: the benchmark marks Deployments as ready itself. Prints CPU seconds and the largest resident memory of the
operator's process for its first start, for a restart, for a changed tenant and for a deleted one.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, Any, Final

import aiohttp
import yaml

REPOSITORY: Final = Path(__file__).parents[1]
PROGRAMS: Final = Path.home() / ".cache" / "evenkeel" / "e2e" / "bin"
TOKEN: Final = "bench"
BALLAST_BYTES: Final = 700_000
PARALLEL: Final = 8
GROUP: Final = "/apis/evenkeel.dev/v1alpha1"
IDLE_S: Final = 4.0
IDLE_CPU_S: Final = 0.15
PATIENCE_S: Final = 1500.0
Plain = dict[str, Any]


def free_port() -> int:
    """A free port."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


@dataclass
class Api:
    """A running API server."""

    url: str
    session: aiohttp.ClientSession

    async def call(self, method: str, path: str, body: Any = None, kind: str = "json") -> Plain:
        """One request. Raises `RuntimeError` for an error."""
        types = {"json": "application/json", "merge": "application/merge-patch+json"}
        headers = {"Authorization": f"Bearer {TOKEN}", "Content-Type": types[kind]}
        data = None if body is None else json.dumps(body)
        url = self.url + path
        async with self.session.request(method, url, data=data, headers=headers) as answer:
            text = await answer.text()
            if answer.status >= 400:
                raise RuntimeError(f"{method} {path}: {answer.status} {text[:300]}")
            return dict(json.loads(text))

    async def create(self, path: str, items: Iterable[Plain]) -> None:
        """Create objects, some at a time."""
        pending = iter(items)

        async def work() -> None:
            for item in pending:
                namespace = item["metadata"].get("namespace")
                where = path.format(ns=namespace)
                await self.call("POST", where, item)

        await asyncio.gather(*(work() for _ in range(PARALLEL)))


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True)


def _start(command: list[str], log: IO[str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(command, stdout=log, stderr=log)


@asynccontextmanager
async def api_server(folder: Path) -> AsyncIterator[Api]:
    """etcd and an API server, ended by their process ids."""
    etcd, peer, port = free_port(), free_port(), free_port()
    key = folder / "sa.key"
    _run("openssl", "genrsa", "-out", str(key), "2048")
    (folder / "tokens").write_text(f"{TOKEN},admin,admin,system:masters\n")
    commands = [
        [
            str(PROGRAMS / "etcd"),
            f"--data-dir={folder}/etcd",
            f"--listen-client-urls=http://127.0.0.1:{etcd}",
            f"--advertise-client-urls=http://127.0.0.1:{etcd}",
            f"--listen-peer-urls=http://127.0.0.1:{peer}",
            "--unsafe-no-fsync",
            "--quota-backend-bytes=6000000000",
            "--log-level=error",
        ],
        [
            str(PROGRAMS / "kube-apiserver"),
            f"--etcd-servers=http://127.0.0.1:{etcd}",
            "--bind-address=127.0.0.1",
            f"--secure-port={port}",
            f"--cert-dir={folder}/certificates",
            f"--token-auth-file={folder}/tokens",
            "--authorization-mode=AlwaysAllow",
            "--service-cluster-ip-range=10.0.0.0/16",
            "--service-account-issuer=https://bench",
            f"--service-account-key-file={key}",
            f"--service-account-signing-key-file={key}",
            "--disable-admission-plugins=ServiceAccount",
            "--enable-priority-and-fairness=false",
        ],
    ]
    async with AsyncExitStack() as stack:
        for command in commands:
            log = stack.enter_context((folder / f"{Path(command[0]).name}.log").open("w"))
            process = _start(command, log)
            stack.callback(process.wait)
            stack.callback(process.terminate)
        connector = aiohttp.TCPConnector(ssl=False)
        session = await stack.enter_async_context(aiohttp.ClientSession(connector=connector))
        api = Api(f"https://127.0.0.1:{port}", session)
        for _ in range(300):
            try:
                await api.call("GET", "/api/v1/namespaces/default")
                break
            except (aiohttp.ClientError, RuntimeError):
                await asyncio.sleep(0.3)
        yield api


def kubeconfig(folder: Path, api: Api) -> Path:
    """For the operator."""
    cluster = {"server": api.url, "insecure-skip-tls-verify": True}
    found = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "c", "cluster": cluster}],
        "users": [{"name": "u", "user": {"token": TOKEN}}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "x",
    }
    path = folder / "kubeconfig"
    path.write_text(yaml.safe_dump(found))
    return path


def secret(namespace: str, name: str, data: dict[str, bytes], **labels: str) -> Plain:
    encoded = {key: base64.b64encode(value).decode() for key, value in data.items()}
    metadata = {"namespace": namespace, "name": name, "labels": labels}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "data": encoded}


def tenant(namespace: str, name: str) -> Plain:
    key = {"name": "key-1", "client": "chat", "secretRef": {"name": name, "key": "key"}}
    return {
        "apiVersion": "evenkeel.dev/v1alpha1",
        "kind": "InferenceTenant",
        "metadata": {"namespace": namespace, "name": name},
        "spec": {"clients": [{"name": "chat"}], "apiKeys": [key]},
    }


async def fill(api: Api, options: argparse.Namespace) -> list[str]:
    """Create everything; the namespaces."""
    for name in ("fairinferenceservices", "inferencetenants"):
        crd = yaml.safe_load((options.code / "crds" / f"{name}.yaml").read_text())
        await api.call("POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", crd)
    spaces = [f"team-{n:03}" for n in range(options.namespaces)]
    named = [{"metadata": {"name": name}} for name in (*spaces, "evenkeel-system", "ballast")]
    await api.create("/api/v1/namespaces", named)
    tenants = [(spaces[n % len(spaces)], f"tenant-{n:05}") for n in range(options.tenants)]
    use = {"evenkeel.dev/use": "true"}
    keys = (secret(ns, name, {"key": f"sk-{name}".encode()}, **use) for ns, name in tenants)
    await api.create("/api/v1/namespaces/{ns}/secrets", keys)
    count = options.secrets_mb * 1_000_000 // BALLAST_BYTES
    junk = os.urandom(BALLAST_BYTES)
    ballast = (secret("ballast", f"ballast-{n}", {"a": junk}) for n in range(count))
    await api.create("/api/v1/namespaces/{ns}/secrets", ballast)
    await asyncio.sleep(3)
    await api.create(GROUP + "/namespaces/{ns}/inferencetenants", (tenant(*one) for one in tenants))
    sample = yaml.safe_load((REPOSITORY / "crds" / "samples" / "simulator.yaml").read_text())
    del sample["spec"]["exposure"]
    services = [
        {**sample, "metadata": {"namespace": spaces[n % len(spaces)], "name": f"service-{n:03}"}}
        for n in range(options.services)
    ]
    await api.create(GROUP + "/namespaces/{ns}/fairinferenceservices", services)
    return spaces


class Ended(Exception):
    """The operator's process ended by itself."""

    def __init__(self, cpu_s: float) -> None:
        super().__init__(f"the operator ended after {cpu_s:.1f} s of CPU time")
        self.cpu_s = cpu_s


class Operator:
    """One process of an operator."""

    def __init__(self, options: argparse.Namespace, config: Path, log: Path) -> None:
        images = ("router", "sglang", "vllm", "simulator", "download")
        paths = (str(options.code / part) for part in ("operator", "kube", "contract", "fairshare"))
        self.port = free_port()
        command = [
            sys.executable, "-m", "evenkeel_operator", "--namespace", "evenkeel-system",
            "--identity", f"bench-{self.port}", "--probe-port", str(self.port),
            "--probe-host", "127.0.0.1", "--log-level", "warning",
            *(part for image in images for part in (f"--{image}-image", f"{image}:1")),
        ]  # fmt: skip
        environment = {**os.environ, "KUBECONFIG": str(config), "PYTHONPATH": ":".join(paths)}
        self._log = log.open("a")
        self.process = subprocess.Popen(
            command, env=environment, stdout=self._log, stderr=self._log, cwd=options.code
        )

    @property
    def cpu_s(self) -> float:
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    @property
    def peak_mib(self) -> float:
        text = Path(f"/proc/{self.process.pid}/status").read_text()
        return next(int(l.split()[1]) / 1024 for l in text.splitlines() if l.startswith("VmHWM"))

    async def idle(self, done: Callable[[], Awaitable[bool]] | None = None) -> float:
        """Wait until it has nothing to do; its CPU time by then."""
        begin_s = time.monotonic()
        while time.monotonic() - begin_s < PATIENCE_S:
            before = self.cpu_s
            await asyncio.sleep(IDLE_S)
            if self.process.poll() is not None:
                raise Ended(before)
            quiet = self.cpu_s - before < IDLE_CPU_S
            if quiet and (done is None or await done()):
                return before
        return self.cpu_s

    def stop(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


async def make_ready(api: Api) -> None:
    """What controllers and kubelets would report."""
    listed = await api.call("GET", "/apis/apps/v1/deployments?limit=1000")
    for item in listed["items"]:
        metadata, count = item["metadata"], item["spec"]["replicas"]
        path = f"/apis/apps/v1/namespaces/{metadata['namespace']}/deployments/{metadata['name']}"
        numbers = ("replicas", "readyReplicas", "updatedReplicas", "availableReplicas")
        status = {"observedGeneration": metadata["generation"], **dict.fromkeys(numbers, count)}
        await api.call("PATCH", f"{path}/status", {"status": status}, "merge")


async def measure(options: argparse.Namespace) -> Plain:
    """All figures."""
    found: Plain = {}
    folder = Path(tempfile.mkdtemp(prefix="scale-", dir=options.folder))
    async with api_server(folder) as api:
        begin_s = time.monotonic()
        await fill(api, options)
        print(f"filled in {time.monotonic() - begin_s:.0f} s", flush=True)
        config, log = kubeconfig(folder, api), folder / "operator.log"

        async def all_report() -> bool:
            path = f"{GROUP}/fairinferenceservices?limit=1000"
            services = (await api.call("GET", path))["items"]
            return all("status" in one for one in services)

        for name in ("first start", "restart"):
            operator = await started(
                partial(Operator, options, config, log), all_report, name, found
            )
            try:
                await make_ready(api)
                if name == "restart":
                    await operator.idle()
                    await changes(api, operator, found)
                else:
                    with suppress(Ended):  # on a busy machine it may lose its lease
                        await operator.idle()
            finally:
                operator.stop()
    return found


async def started(
    start: Callable[[], Operator], done: Callable[[], Awaitable[bool]], name: str, found: Plain
) -> Operator:
    """An operator that has nothing to do any more. On a busy machine it may lose its lease meanwhile, and starts again."""
    spent_s, starts = 0.0, 0
    while True:
        operator, starts = start(), starts + 1
        try:
            spent_s += await operator.idle(done)
        except Ended as error:
            spent_s += error.cpu_s
        else:
            found[f"{name}, CPU s"], found[f"{name}, processes"] = round(spent_s, 1), starts
            found[f"{name}, peak MiB"] = round(operator.peak_mib)
            print({key: one for key, one in found.items() if name in key}, flush=True)
            return operator


async def changes(api: Api, operator: Operator, found: Plain) -> None:
    """A changed tenant, and a deleted one."""
    rest_s, begin = operator.cpu_s, time.monotonic()
    await asyncio.sleep(10)
    per_s = (operator.cpu_s - rest_s) / (time.monotonic() - begin)
    found["at rest, CPU ms/s"] = round(1e3 * per_s, 1)
    for name, method, body in (
        ("changed", "PATCH", {"spec": {"weight": 3}}),
        ("deleted", "DELETE", None),
    ):
        begin, before = time.monotonic(), operator.cpu_s
        for number in range(5):
            path = f"{GROUP}/namespaces/team-000/inferencetenants"
            first = (await api.call("GET", f"{path}?limit={number + 1}"))["items"][-1]
            await api.call(
                method, f"{path}/{first['metadata']['name']}", body, "merge" if body else "json"
            )
            await operator.idle()
        spent = operator.cpu_s - before - per_s * (time.monotonic() - begin)
        found[f"a {name} tenant, CPU ms"] = round(1e3 * spent / 5, 1)


def main() -> None:
    """Print the figures as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tenants", type=int, default=10_000)
    parser.add_argument("--services", type=int, default=100)
    parser.add_argument("--namespaces", type=int, default=10)
    parser.add_argument("--secrets-mb", type=int, default=500)
    parser.add_argument("--code", type=Path, default=REPOSITORY, help="a checkout of Evenkeel")
    parser.add_argument("--folder", type=Path, default=None, help="where etcd keeps its data")
    options = parser.parse_args()
    print(json.dumps(asyncio.run(measure(options)), indent=2))


if __name__ == "__main__":
    main()
