"""What the cluster says of a fault while it lasts: conditions of services, and alerts of a real Prometheus.

Prometheus has the rules that operator and chart ship, unchanged. A fault is alerted from the moment at which its rule is
true (pending), plus the `for` of the rule; so no scene has to last as long as that.
"""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import httpx
import yaml

from e2e.installed import SYSTEM, Namespace
from e2e.scraping import PrometheusServer, free_port

EVERY_S: Final = 0.5
_PORTS: Final = {"router": 8081, "engine": 30000}
_OPERATOR_JOB: Final = f"{SYSTEM}/evenkeel"


@dataclass(frozen=True, slots=True)
class Change:
    """A condition that changed, at a time of the monotonic clock."""

    at_s: float
    service: str
    type: str
    status: str
    reason: str
    message: str


@dataclass(slots=True)
class Watch:
    """A thread that looks twice a second; failures of the API server leave a gap."""

    team: Namespace
    api: httpx.Client
    prometheus: PrometheusServer
    changes: list[Change] = field(default_factory=list)
    active: dict[str, tuple[str, float]] = field(default_factory=dict)
    """Alert → its state, pending or firing, and when it was first seen so."""
    fired: list[tuple[float, str]] = field(default_factory=list)
    _stopped: threading.Event = field(default_factory=threading.Event)

    def named(self, service: str, type_: str, reason: str, *, after_s: float) -> Change | None:
        """The first time since then that a condition had a reason, which may be a regular expression."""
        return next(
            (
                one
                for one in list(self.changes)
                if one.at_s > after_s
                and (one.service, one.type) == (service, type_)
                and re.fullmatch(reason, one.reason)
            ),
            None,
        )

    def run(self) -> None:
        known: dict[tuple[str, str], tuple[str, str]] = {}
        while not self._stopped.wait(EVERY_S):
            with suppress(httpx.HTTPError, ValueError, KeyError):
                self._conditions(known)
            with suppress(httpx.HTTPError, ValueError, KeyError):
                self._alerts()
            with suppress(httpx.HTTPError, ValueError, KeyError):
                self._follow()

    def stop(self) -> None:
        self._stopped.set()

    def services(self) -> list[Any]:
        path = f"/apis/evenkeel.dev/v1alpha1/namespaces/{self.team.name}/fairinferenceservices"
        found: list[Any] = self.api.get(path).raise_for_status().json()["items"]
        return found

    def pods(self, namespace: str) -> list[Any]:
        path = f"/api/v1/namespaces/{namespace}/pods"
        found: list[Any] = self.api.get(path).raise_for_status().json()["items"]
        return found

    def _conditions(self, known: dict[tuple[str, str], tuple[str, str]]) -> None:
        now_s = time.monotonic()
        for item in self.services():
            name = item["metadata"]["name"]
            for one in item.get("status", {}).get("conditions", ()):
                state = (one["status"], one["reason"])
                if known.get((name, one["type"])) != state:
                    known[name, one["type"]] = state
                    message = one.get("message", "")
                    self.changes.append(Change(now_s, name, one["type"], *state, message))

    def _alerts(self) -> None:
        answer = httpx.get(f"{self.prometheus.url}/api/v1/alerts", timeout=2).raise_for_status()
        now_s = time.monotonic()
        found: dict[str, str] = {}
        for one in answer.json()["data"]["alerts"]:
            name = one["labels"]["alertname"]
            if found.get(name) != "firing":
                found[name] = one["state"]
        for name, state in found.items():
            before = self.active.get(name)
            if before is None or before[0] != state:
                if state == "firing":
                    self.fired.append((now_s, name))
                self.active[name] = (state, now_s)
        for name in self.active.keys() - found.keys():
            del self.active[name]

    def _follow(self) -> None:
        """Scrape the pods that exist now."""
        found = [target for pod in self.pods(self.team.name) if (target := _target(pod))]
        for pod in self.pods(SYSTEM):
            labels = {"namespace": SYSTEM, "job": _OPERATOR_JOB}
            found += _scrape(pod, 8081, labels)
        text = json.dumps(found)
        path = self.prometheus.folder / "targets.json"
        if not path.exists() or path.read_text() != text:
            path.with_suffix(".new").write_text(text)
            path.with_suffix(".new").replace(path)


def _target(pod: Any) -> dict[str, Any] | None:
    labels = pod["metadata"].get("labels", {})
    component, service = (labels.get(f"evenkeel.dev/{name}") for name in ("component", "service"))
    if component not in _PORTS:
        return None
    namespace = pod["metadata"]["namespace"]
    job = f"{namespace}/{service}-{component}"
    given = {"namespace": namespace, "evenkeel_dev_service": str(service), "job": job}
    return next(iter(_scrape(pod, _PORTS[component], given)), None)


def _scrape(pod: Any, port: int, labels: Mapping[str, str]) -> list[dict[str, Any]]:
    address = pod["status"].get("podIP")
    if not address or pod["status"]["phase"] != "Running":
        return []
    named = {**labels, "pod": pod["metadata"]["name"]}
    return [{"targets": [f"{address}:{port}"], "labels": named}]


def rules(team: Namespace, folder: Path, *services: str) -> tuple[list[str], dict[str, str]]:
    """Write the shipped rules. Returns the files, and the `for` of each alert."""
    texts = {}
    for service in services:
        (text,) = team.get("configmap", f"{service}-alerts")["data"].values()
        texts[service] = text
    shipped = team.kubectl.get("-n", SYSTEM, "configmap", "evenkeel-prometheus")["data"]
    texts["operator"] = shipped["rules.yaml"]
    waits: dict[str, str] = {}
    for name, text in texts.items():
        (folder / f"{name}.rules.yaml").write_text(text)
        for group in yaml.safe_load(text)["groups"]:
            for rule in group["rules"]:
                waits.setdefault(rule["alert"], rule["for"])
    return [f"{folder}/{name}.rules.yaml" for name in texts], waits


def configuration(folder: Path, rule_files: list[str]) -> dict[str, Any]:
    """Scrapes every two seconds, and evaluates the rules as often."""
    targets = {"files": [f"{folder}/targets.json"]}
    return {
        "global": {"scrape_interval": "2s", "scrape_timeout": "2s", "evaluation_interval": "2s"},
        "rule_files": rule_files,
        "scrape_configs": [{"job_name": "pods", "file_sd_configs": [targets]}],
    }


@contextmanager
def watching(
    team: Namespace, api: httpx.Client, folder: Path, *services: str
) -> Iterator[tuple[Watch, Mapping[str, str]]]:
    """The watch, and the `for` of each alert."""
    files, waits = rules(team, folder, *services)
    (folder / "prometheus.yaml").write_text(yaml.safe_dump(configuration(folder, files)))
    server = PrometheusServer(folder, free_port())
    server.start()
    watch = Watch(team, api, server)
    thread = threading.Thread(target=watch.run)
    thread.start()
    try:
        with server.client:
            yield watch, waits
    finally:
        watch.stop()
        thread.join()
        server.stop()
