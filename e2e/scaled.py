"""Services with the built-in scaler, their status, and clients that send requests in the background."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import httpx

from e2e.installed import Namespace, request
from e2e.operators import wait_until
from e2e.scraping import PrometheusServer

TENANTS: Final = ("ads", "search", "mail", "maps", "news")
SLOW: Final = ("--profile=a10g-llama2-7b", "--speed=0.25", "--max-running-requests=1")
"""A replica that serves one request after another, some two thirds of a second each."""
PATIENCE_S: Final = 300.0


@dataclass(frozen=True, slots=True)
class Scaled:
    """One service, looked at through the API server: that costs little, so it may be often."""

    team: Namespace
    name: str
    api: httpx.Client
    prometheus: PrometheusServer

    @property
    def status(self) -> Any:
        where = f"/apis/evenkeel.dev/v1alpha1/namespaces/{self.team.name}/fairinferenceservices"
        return self.api.get(f"{where}/{self.name}").raise_for_status().json().get("status", {})

    @property
    def decided(self) -> tuple[int, str]:
        """Wanted number of replicas, and the reason."""
        found = self.status.get("scaling", {})
        return found.get("desired", -1), found.get("reason", "")

    @property
    def active(self) -> tuple[str, str]:
        """The condition ScalingActive."""
        listed = self.status.get("conditions", ())
        found: Any = next((item for item in listed if item["type"] == "ScalingActive"), {})
        return found.get("status", ""), found.get("reason", "")

    @property
    def steps(self) -> list[str]:
        """Every change of the number so far, from events: `1 to 2: Demand`."""
        fields = f"reason=Scaled,involvedObject.name={self.name}"
        where = f"/api/v1/namespaces/{self.team.name}/events"
        found = self.api.get(where, params={"fieldSelector": fields}).raise_for_status().json()
        items = sorted(found["items"], key=lambda item: str(item["eventTime"]))
        texts = (str(item["message"]) for item in items)
        return [text.removeprefix("Replicas changed from ").removesuffix(".") for text in texts]

    def wait(self, holds: Callable[[], Any], what: str) -> Any:
        """The first true answer."""
        return wait_until(holds, f"{self.name}: {what}", timeout_s=PATIENCE_S, every_s=0.5)

    def wait_for(self, replicas: int) -> None:
        """Wait until that many replicas are wanted and ready."""
        self.wait(lambda: self.decided[0] == replicas, f"{replicas} to be wanted")
        self.wait(lambda: self.status["readyReplicas"] == replicas, f"{replicas} replicas")

    def demand(self, over: str = "") -> float:
        """What all ask for, in weighted tokens per second; the most of `over`, a range of subqueries. Above all else while
        Prometheus does not know."""
        of = f'namespace="{self.team.name}",evenkeel_dev_service="{self.name}"'
        now = f"sum(max by (tenant, client) (evenkeel_router_service_requested{{{of}}}))"
        if not over:
            return self.prometheus.ask(now) or 0.0
        enough = f"count_over_time({now}[{over}]) >= 18"
        found = self.prometheus.ask(f"max_over_time({now}[{over}]) and {enough}")
        return float("inf") if found is None else found

    def rest(self, *, least: int, usable: float) -> None:
        """Wait until the first requests have no effect. Their cost is overestimated until they end. Afterwards demand
        is below one replica for longer than the scale-down window."""

        def rests() -> bool:
            return self.demand("40s:2s") < usable and self.decided[0] == least

        self.wait(rests, "rest")


def key(tenant: str) -> str:
    return f"sk-{tenant}"


@contextmanager
def asking(
    one: Scaled, *tenants: str, hands: int = 1, every_s: float = 0.0, tokens: int = 8
) -> Iterator[None]:
    """Each thread sends requests one after another; all must be answered. With `every_s` all hands send
    one at once, and wait for the next time."""
    stop, statuses = threading.Event(), []

    def ask(tenant: str) -> None:
        with one.team.client(one.name, key(tenant)) as client:
            while not stop.is_set():
                answer = client.post("/v1/completions", json=request(tokens=tokens))
                statuses.append(answer.status_code)
                if every_s:
                    stop.wait(every_s - time.time() % every_s)

    threads = [threading.Thread(target=ask, args=(name,)) for name in tenants * hands]
    for thread in threads:
        thread.start()
    try:
        yield
        # What the context awaits may hold at once, before a slow replica has answered.
        wait_until(lambda: len(statuses) > len(threads), f"{one.name}: answers")
    finally:
        stop.set()
        for thread in threads:
            thread.join(timeout=120)
    assert set(statuses) == {200}
