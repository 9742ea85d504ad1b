"""Operators with options of their own, two operators, and one with many services.

They run beside the cluster (`e2e/operators.py`), with the rights that the chart gives them.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from contextlib import ExitStack
from functools import partial
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
import yaml
from evenkeel_operator.autoscaler import INTERVAL_S

from e2e.kubectl import Kubectl
from e2e.operators import (
    Operator,
    at_rest,
    audit_position,
    await_made,
    condition,
    is_made,
    made,
    operator,
    sample,
    usage,
    wait_until,
    writes_since,
)
from e2e.rig.layout import AUDIT_LOG
from e2e.scraping import host
from tests.support.crd_documents import SCALED

pytestmark = pytest.mark.alone
_log = logging.getLogger(__name__)

SERVICES = 200
MINUTES = 6
"""Their pods never run, so passes are repeated after 15 s, 30 s, 60 s and so on: the first minutes are no rest. Ten
minutes after the start, each status says `RolloutStuck`."""


@pytest.mark.timeout(300)
def test_a_prometheus_that_is_not_allowed_gets_no_token(
    kubectl: Kubectl, kubeconfig: Path, namespace: str
) -> None:
    """A listener of the service's owner, and a Secret of another application."""
    asked: list[str] = []

    class Listener(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.headers.get("Authorization", ""))
            self.send_error(404)

    with HTTPServer((host(), 0), Listener) as server, ExitStack() as stack:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        stack.callback(server.shutdown)
        kubectl(
            "-n", namespace, "create", "secret", "generic", "foreign", "--from-literal=t=hidden"
        )
        url = f"http://{host()}:{server.server_port}"
        prometheus = {"url": url, "tokenSecretRef": {"name": "foreign", "key": "t"}}
        plain = yaml.safe_load(sample(autoscaling={"maxReplicas": 2, "prometheus": prometheus}))
        del plain["spec"]["engine"]["replicas"]
        for options, condition_, reason in (
            (("--allow-prometheus-namespace=monitoring",), "SpecValid", "Invalid"),
            (("--allow-prometheus=*",), "ScalingActive", "SecretNotLabelled"),
        ):
            with operator(kubeconfig, *options, identity="strict") as found:
                kubectl("-n", namespace, "apply", "-f", "-", stdin=yaml.safe_dump(plain))
                read = partial(condition, kubectl, namespace, condition_)
                wait_until(lambda: read().get("reason") == reason, reason)  # noqa: B023 - awaited here
                time.sleep(2 * INTERVAL_S)
                assert found.stop() == 0
        assert asked == []


@pytest.mark.core
def test_an_address_that_the_operator_may_not_read_is_a_fault(
    kubectl: Kubectl, namespace: str, kubeconfig: Path
) -> None:
    strict = "--allow-prometheus=http://allowed"
    with operator(kubeconfig, strict, identity="strict", lease="strict") as found:
        kubectl("-n", namespace, "create", "-f", "-", stdin=json.dumps(SCALED))
        verdict = wait_until(
            lambda: condition(kubectl, namespace, "SpecValid", "llama"), "a word about it"
        )
        assert verdict["status"] == "False"
        assert "spec.autoscaling.prometheus.url" in verdict["message"]
        assert not made(kubectl, namespace, "llama")
        assert found.stop() == 0


def test_of_two_operators_one_acts_and_the_other_follows_at_once(
    kubectl: Kubectl, namespace: str, kubeconfig: Path
) -> None:
    with operator(kubeconfig, identity="first") as first:
        wait_until(lambda: "first leads" in first.log.read_text(), "a leader")
        with operator(kubeconfig, identity="second") as second:
            kubectl("-n", namespace, "apply", "-f", "-", stdin=sample())
            await_made(kubectl, namespace)
            assert "apply" not in second.log.read_text()
            assert first.stop() == 0
            wait_until(lambda: "second leads" in second.log.read_text(), "the other one")
            assert "second leads" in second.log.read_text()
            kubectl("-n", namespace, "delete", "svc", "simulated-engine")
            wait_until(lambda: is_made(kubectl, namespace), "the Service again")
            second.kill()
        with operator(kubeconfig, identity="third") as third:
            # The Lease was not released: it has to expire.
            wait_until(lambda: "third leads" in third.log.read_text(), "the third one")
            assert third.stop() == 0


@pytest.mark.skipif(not AUDIT_LOG.exists(), reason="needs the rig's audit log")
@pytest.mark.timeout(1500)
def test_two_hundred_services_converge_and_then_nothing_is_written(
    kubectl: Kubectl, namespace: str, kubeconfig: Path
) -> None:
    specs = "---\n".join(sample(f"s{n:03}") for n in range(SERVICES))
    kubectl("-n", namespace, "apply", "--server-side", "-f", "-", stdin=specs)
    with operator(kubeconfig, identity="many", lease="many") as many:

        def all_made() -> bool:
            items = kubectl.get("-n", namespace, "fis")["items"]
            return all(item.get("status", {}).get("observedGeneration") for item in items)

        started_at = audit_position()
        started_s = time.monotonic()
        wait_until(all_made, "200 services", timeout_s=900)
        made_s, made_use = time.monotonic() - started_s, usage(many)
        position = at_rest()
        use, writes = usage(many), len(writes_since(started_at))
        minutes = [_minute(many) for _ in range(MINUTES)]
        _log.info(
            f"{SERVICES} services: all made after {made_s:.0f} s and {made_use.cpu_s:.1f} s of CPU; "
            f"no write after {use.cpu_s:.1f} s of CPU and {writes} writes, {use.resident_mib:.0f} MiB; "
            f"seconds of CPU in each minute from then: {' '.join(f'{cpu_s:.2f}' for cpu_s in minutes)}"
        )
        assert writes_since(position) == []
        deployments = kubectl.get("-n", namespace, "deploy")["items"]
        assert len(deployments) == 2 * SERVICES
        assert many.stop() == 0


def _minute(process: Operator) -> float:
    """CPU time of the next minute, in seconds."""
    before_s = usage(process).cpu_s
    time.sleep(60)
    return usage(process).cpu_s - before_s
