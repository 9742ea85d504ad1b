"""Operators as processes outside the cluster, with exactly the rights of the real one.

Pods need images; what the operator decides does not. So these tests run it from the source tree, as the
ServiceAccount that the chart would give it.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import yaml

from e2e.kubectl import Kubectl
from e2e.rig.layout import AUDIT_LOG
from tests.support.operator_rights import (
    cluster_rules,
    lease_rules,
    namespaced_rules,
    overview_rules,
)

ROOT = Path(__file__).parents[1]
NAMESPACE = "evenkeel-operator-test"
USER = f"system:serviceaccount:{NAMESPACE}:operator"
IMAGES = {name: f"evenkeel.dev/absent/{name}:1" for name in ("router", "engine", "operator")}
DEADLINE_S = 90.0
KINDS = "deploy,svc,secret,cm,sa,role,rolebinding,pdb,netpol,ingress,pvc"
_FOLDERS = ("fairshare", "contract", "kube", "operator")


def wait_until(
    holds: Callable[[], Any], what: str, *, timeout_s: float = DEADLINE_S, every_s: float = 0.1
) -> Any:
    """The first true answer. Raises `AssertionError` when none comes."""
    deadline_s = time.monotonic() + timeout_s
    while True:
        answer = holds()
        if answer:
            return answer
        if time.monotonic() > deadline_s:
            raise AssertionError(f"waited {timeout_s:.0f} s for {what}")
        time.sleep(every_s)


@contextmanager
def account(
    kubectl: Kubectl, folder: Path, *, in_namespaces: bool = False, overview: bool = True
) -> Iterator[Path]:
    """A kubeconfig of a ServiceAccount with the operator's rights; all of it goes again.

    `in_namespaces`: only `grant` adds rights to read services. `overview`: it may also read nodes, namespaces and definitions.
    """
    rules = ([] if in_namespaces else cluster_rules()) + (overview_rules() if overview else [])
    objects = [
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}},
        _named("v1", "ServiceAccount", "operator"),
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "ClusterRole",
            "metadata": {"name": NAMESPACE},
            "rules": rules,
        },
        _named("rbac.authorization.k8s.io/v1", "Role", "operator", rules=lease_rules()),
        _binding("ClusterRoleBinding", {"name": NAMESPACE}, "ClusterRole", NAMESPACE),
        _binding("RoleBinding", {"name": "operator", "namespace": NAMESPACE}, "Role", "operator"),
    ]
    kubectl("apply", "-f", "-", stdin=yaml.safe_dump_all(objects))
    try:
        token = kubectl("-n", NAMESPACE, "create", "token", "operator", "--duration=2h").strip()
        config = yaml.safe_load(kubectl("config", "view", "--raw", "--minify", "--flatten"))
        config["users"][0]["user"] = {"token": token}
        path = folder / "operator.kubeconfig"
        path.write_text(yaml.safe_dump(config))
        yield path
    finally:
        kubectl("delete", "namespace", NAMESPACE, "--timeout=90s")  # the next module makes it anew
        kubectl("delete", "clusterrole,clusterrolebinding", NAMESPACE)


def grant(kubectl: Kubectl, namespace: str) -> None:
    """Give the account the operator's rights in a namespace."""
    rules = namespaced_rules()
    api = "rbac.authorization.k8s.io/v1"
    role = _named(api, "Role", "evenkeel", namespace, rules=rules)
    where = {"name": "evenkeel", "namespace": namespace}
    binding = _binding("RoleBinding", where, "Role", "evenkeel")
    kubectl("apply", "-f", "-", stdin=yaml.safe_dump_all([role, binding]))


def _named(
    api: str, kind: str, name: str, namespace: str = NAMESPACE, **fields: Any
) -> dict[str, Any]:
    metadata = {"name": name, "namespace": namespace}
    return {"apiVersion": api, "kind": kind, "metadata": metadata, **fields}


def _binding(kind: str, metadata: Any, role_kind: str, role: str) -> dict[str, Any]:
    group = "rbac.authorization.k8s.io"
    subject = {"kind": "ServiceAccount", "name": "operator", "namespace": NAMESPACE}
    return {
        "apiVersion": f"{group}/v1",
        "kind": kind,
        "metadata": metadata,
        "roleRef": {"apiGroup": group, "kind": role_kind, "name": role},
        "subjects": [subject],
    }


@dataclass(frozen=True, slots=True)
class Operator:
    """One process."""

    process: subprocess.Popen[bytes]
    log: Path

    def kill(self) -> None:
        """Kill the process, as a failed machine would: the Lease is not released."""
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def stop(self) -> int:
        """Stop the process as a kubelet does; returns its exit code."""
        self.process.terminate()
        return self.process.wait(timeout=30)


@contextmanager
def operator(
    kubeconfig: Path,
    *options: str,
    identity: str,
    lease: str = "operator",
    dies_after: int | None = None,
) -> Iterator[Operator]:
    """An operator for the time of the context. With `dies_after` it is gone right after that many writes."""
    module = "evenkeel_operator" if dies_after is None else "e2e.dying_operator"
    environment: Mapping[str, str] = {
        **os.environ,
        "KUBECONFIG": str(kubeconfig),
        "PYTHONPATH": ":".join(str(ROOT / name) for name in (*_FOLDERS, ".")),
        "DIES_AFTER": str(dies_after),
    }
    command = [sys.executable, "-m", module, f"--namespace={NAMESPACE}", f"--identity={identity}",
               f"--lease={lease}", "--probe-host=127.0.0.1", "--probe-port=0",
               f"--router-image={IMAGES['router']}", f"--sglang-image={IMAGES['engine']}", f"--vllm-image={IMAGES['engine']}",
               f"--simulator-image={IMAGES['engine']}", f"--download-image={IMAGES['operator']}", "--image-pull-policy=Never", *options]  # fmt: skip
    if not any(option.startswith("--allow-prometheus") for option in options):
        command.append("--allow-prometheus=*")
    path = kubeconfig.parent / f"{identity}.log"
    with path.open("wb") as log:
        process = subprocess.Popen(command, env=environment, stdout=log, stderr=log, cwd=ROOT)
    try:
        yield Operator(process, path)
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()


@contextmanager
def alone(kubectl: Kubectl) -> Iterator[None]:
    """No other operator acts for the time of the context: the chart's, if it is installed, rests."""
    labels = "app.kubernetes.io/name=evenkeel-operator"
    found = kubectl.get("deploy", "-A", "-l", labels)["items"]
    try:
        for item in found:
            _scale(kubectl, item, 0)
        yield
    finally:
        for item in found:
            _scale(kubectl, item, item["spec"]["replicas"])


def _scale(kubectl: Kubectl, item: Any, replicas: int) -> None:
    metadata = item["metadata"]
    where = ("-n", metadata["namespace"])
    kubectl(*where, "scale", f"deploy/{metadata['name']}", f"--replicas={replicas}")
    kubectl(*where, "rollout", "status", f"deploy/{metadata['name']}", "--timeout=60s")


@dataclass(frozen=True, slots=True)
class Usage:
    """CPU time and memory of a process."""

    cpu_s: float
    resident_mib: float


def usage(found: Operator) -> Usage:
    """CPU time and memory of a running operator."""
    process = psutil.Process(found.process.pid)
    times = process.cpu_times()
    return Usage(times.user + times.system, process.memory_info().rss / 2**20)


def writes_since(position: int) -> list[str]:
    """Writes of the operator's user since a position of the audit log, except those of its Lease."""
    found = []
    with AUDIT_LOG.open() as log:
        log.seek(position)
        for line in log:
            entry = json.loads(line)
            what = entry.get("objectRef", {})
            reads = entry["verb"] in ("get", "list", "watch")
            user = entry["user"].get("username")  # none: the request was refused before it had one
            if user == USER and not reads and what["resource"] != "leases":
                name = f"{what['resource']}/{what.get('name', '')}"
                sub = what.get("subresource")
                found.append(f"{entry['verb']} {name}{f'/{sub}' if sub else ''}")
    return found


def audit_position() -> int:
    """The end of the audit log."""
    return AUDIT_LOG.stat().st_size


# A service on the API server.


def sample(name: str = "simulated", **spec: Any) -> str:
    plain = yaml.safe_load((ROOT / "crds" / "samples" / "simulator.yaml").read_text())
    plain["metadata"]["name"] = name
    plain["spec"] |= spec
    return yaml.safe_dump(plain)


def condition(kubectl: Kubectl, namespace: str, type_: str, name: str = "simulated") -> Any:
    status = kubectl.get("-n", namespace, "fis", name).get("status", {})
    found = [item for item in status.get("conditions", ()) if item["type"] == type_]
    return found[0] if found else {}


def made(kubectl: Kubectl, namespace: str, name: str = "simulated") -> set[str]:
    """Everything that is labelled as the service's."""
    items = kubectl.get("-n", namespace, KINDS, "-l", f"evenkeel.dev/service={name}")["items"]
    return {f"{item['kind']}/{item['metadata']['name']}" for item in items}


def is_made(kubectl: Kubectl, namespace: str, name: str = "simulated") -> bool:
    # The status may already report that the images of the pods are missing.
    reason = condition(kubectl, namespace, "Progressing", name).get("reason")
    rolls_out = reason in ("RollingOut", "RolloutStuck")
    return rolls_out and len(made(kubectl, namespace, name)) >= 17


def await_made(kubectl: Kubectl, namespace: str) -> None:
    wait_until(lambda: is_made(kubectl, namespace), "all objects of a service")


def at_rest() -> int:
    """Wait until there was no write for five seconds; returns the position in the audit log."""

    def silent() -> int | None:
        position = audit_position()
        time.sleep(5)
        return position if not writes_since(position) else None

    found: int = wait_until(silent, "silence")
    return found
