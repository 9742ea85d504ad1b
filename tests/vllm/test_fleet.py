"""Fleets with vLLM: as `evenkeel up` runs them, one whose replica ends under load, and SGLang and vLLM behind one router."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import psutil
import pytest
from evenkeel_contract.enginesettings import (
    POLICY_VARIABLE,
    QUANTUM_VARIABLE,
    REPORTS_PORT_VARIABLE,
)
from evenkeel_contract.routerconfig import (
    ApiKeyConfig,
    ClientConfig,
    ReplicaConfig,
    SchedulingConfig,
    TenancyConfig,
    TenantConfig,
)
from evenkeel_contract.vllm import SCHEDULER_FLAG

from bench.vllm_engine import running_vllm
from tests.sglang.engine import ROOT, Engine, clients_of, engine_environment, unused_port
from tests.sglang.fleet import Fleet, flooded, session, stream
from tests.support.routers import config_for, router_of, sha256, until

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(1200)]

SAMPLE = ROOT / "examples" / "vllm.yaml"
REPLICAS = ("replica-0", "replica-1")
ADS, RESEARCH = "sk-ads-chat", "sk-research-notebook"
WEIGHTS = {"ads": 3, "research": 1}
KEYS = {"ads": ADS, "research": RESEARCH}
RUNNING = 4
QUANTUM = 500
LEAST_REPORTED = 400
"""Cached tokens."""
SERVICE = 8_000.0
"""Weighted tokens that each engine gives."""


async def test_up_runs_a_fleet_whose_engines_account_and_whose_caches_are_known(
    environment: Path, tmp_path: Path
) -> None:
    text = SAMPLE.read_text()
    text = text.replace("  scheduling:", "  router: {prefix: {mode: Tokens}}\n  scheduling:")
    with Fleet(tmp_path, file=text, environment=environment, option="--vllm") as fleet:
        answers = []
        async with session(fleet.url) as http, asyncio.timeout(120):
            while fleet.prediction().get("exact", (0, 0))[1] < LEAST_REPORTED:
                # The first ones may come before the tokenizer, which comes by reports.
                answers.append(await stream(http, ADS, "Ahoy " * 60, output_tokens=20))
        assert [answer.failure for answer in answers if answer.failure] == []
        assert answers[-1].usage["prompt_tokens_details"]["cached_tokens"] > 0
        rows = [clients_of(fleet.reports_port(name)).get("default/ads/chat") for name in REPLICAS]
        served = [row for row in rows if row is not None]
        assert sum(row.requests for row in served) == len(answers)
        assert sum(row.output_tokens for row in served) == 20 * len(answers)
        prompts = len(answers) * answers[0].usage["prompt_tokens"]
        assert sum(row.extend_tokens + row.cached_tokens for row in served) == prompts
        service = sum(row.service for row in served)
        await until(lambda: fleet.service()["ads"].given == service, "the ledger")
        assert {fleet.replica(name).policy for name in REPLICAS} == {"DLPM"}
        predicted, reported = fleet.prediction()["exact"]
        assert predicted == reported, "the router's tokens are the engine's"
        assert fleet.stop() == 0


@contextmanager
def vllm(environment: Path, folder: Path, name: str) -> Iterator[ReplicaConfig]:
    """An engine with the plug-in."""
    port = unused_port()
    with running_vllm(
        environment=environment,
        served_name="tiny",
        flags=(
            SCHEDULER_FLAG,
            f"--max-num-seqs={RUNNING}",
            "--shutdown-timeout=60",
            "--stream-interval=16",
        ),
        log=folder / f"{name}.log",
        settings={
            POLICY_VARIABLE: "DLPM",
            QUANTUM_VARIABLE: str(QUANTUM),
            REPORTS_PORT_VARIABLE: str(port),
        },
    ) as url:
        yield ReplicaConfig(name=name, url=url, reports=f"tcp://127.0.0.1:{port}")


@contextmanager
def sglang(folder: Path, name: str) -> Iterator[ReplicaConfig]:
    """The same of SGLang."""
    port = unused_port()
    flags = ("--schedule-policy", "dlpm", "--max-running-requests", str(RUNNING))
    with Engine(
        *flags,
        *("--served-model-name=tiny", "--stream-interval=16"),
        log=folder / f"{name}.log",
        environment={QUANTUM_VARIABLE: str(QUANTUM), REPORTS_PORT_VARIABLE: str(port)},
    ) as engine:
        yield ReplicaConfig(name=name, url=engine.url, reports=f"tcp://127.0.0.1:{port}")


def tenancy() -> TenancyConfig:
    return TenancyConfig(
        tenants=tuple(
            TenantConfig(
                namespace="ns",
                name=name,
                weight=weight,
                clients=(ClientConfig(name="app"),),
                api_keys=(ApiKeyConfig(name="k", client="app", sha256=sha256(KEYS[name])),),
            )
            for name, weight in WEIGHTS.items()
        )
    )


async def test_a_replica_that_ends_finishes_its_requests_and_others_take_the_rest(
    environment: Path, tmp_path: Path
) -> None:
    with vllm(environment, tmp_path, "r0") as one, vllm(environment, tmp_path, "r1") as other:
        config = config_for(one, other, model="tiny", tenancy=tenancy())
        async with router_of(config) as router, flooded(router.url, [ADS], each=16) as load:
            await until(lambda: load.answered[ADS] > 20, "a load")
            served = router.rooms.replicas.totals["r0"].requests
            assert served > 0
            _server(one).send_signal(signal.SIGTERM)
            before = load.answered[ADS]
            await until(lambda: load.answered[ADS] > before + 60, "the other replica's answers")
        assert load.failures == []


def _server(replica: ReplicaConfig) -> psutil.Process:
    """The parent process of an engine."""
    port = f"--port={replica.url.rpartition(':')[2]}"
    (found,) = (child for child in psutil.Process().children() if port in child.cmdline())
    return found


async def test_sglang_and_vllm_serve_all_tenants_behind_one_router(
    environment: Path, tmp_path: Path
) -> None:
    if engine_environment() is None:
        pytest.skip("the other engine is not installed: make sglang")
    with ExitStack() as stack:
        replicas = (
            await asyncio.to_thread(stack.enter_context, vllm(environment, tmp_path, "vllm")),
            await asyncio.to_thread(stack.enter_context, sglang(tmp_path, "sglang")),
        )
        # Their speeds differ, so a constant worker quantum would leave one of them empty.
        scheduling = SchedulingConfig(client_quantum=QUANTUM)
        config = config_for(*replicas, model="tiny", tenancy=tenancy(), scheduling=scheduling)
        async with (
            router_of(config) as router,
            flooded(router.url, list(KEYS.values()), each=60) as load,
        ):
            ports = [int((one.reports or "").rpartition(":")[2]) for one in replicas]
            async with asyncio.timeout(300):
                for port in ports:
                    while await asyncio.to_thread(given, port) < SERVICE:  # noqa: ASYNC110
                        await asyncio.sleep(0.2)
            rows = [await asyncio.to_thread(clients_of, port) for port in ports]
            for row in rows:
                assert {f"ns/{name}/app" for name in WEIGHTS} <= row.keys(), (
                    "both serve all tenants"
                )
            state = router.rooms.replicas.reports
            assert {state[one.name].policy for one in replicas} == {"DLPM"}
        assert load.failures == []


def given(port: int) -> float:
    """Weighted tokens that an engine gave to all clients, by its report."""
    return sum(row.service for row in clients_of(port).values())
