"""One phase of the demo: a new fleet with one pair of policies, and the requests that it gets.

All phases have the same fleet. Both phases with the flood get the same requests at the same times.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from random import Random
from typing import Final

from evenkeel_contract.routerconfig import ListenConfig
from evenkeel_simulator.engine.cache import Segment
from evenkeel_simulator.traffic.workload import Call, Program

from evenkeel_cli.manifest import parse_manifest
from evenkeel_cli.replay.clients import assign_keys, headers_by_key
from evenkeel_cli.replay.run import Outcome, Replay
from evenkeel_cli.replay.sender import Sender, open_session
from evenkeel_cli.up.fleet import running_fleet

FLOOD: Final = "flood"
ORDINARY: Final = ("ada", "ben", "cleo")


@dataclass(frozen=True, slots=True, kw_only=True)
class Flood:
    """The parameters of the load."""

    duration_s: float = 35.0
    """Time in which requests arrive."""
    ordinary_per_s: float = 2.0
    """Requests per second of each ordinary client; arrivals are Poisson."""
    flood_factor: float = 10.0
    """The rate of the flood over that of an ordinary client; 0: no flood."""
    prefixes: int = 4
    """Number of prompts that begin a client's requests, equally likely."""
    prefix_tokens: int = 512
    question_tokens: tuple[int, int] = (32, 160)
    """Range of the tokens that differ between requests: uniform, both ends included."""
    answer_tokens: tuple[int, int] = (32, 96)
    seed: int = 7

    def programs(self) -> list[Program]:
        """The requests in the order of arrival; equal parameters give equal requests."""
        rates = {name: self.ordinary_per_s for name in ORDINARY}
        rates[FLOOD] = self.ordinary_per_s * self.flood_factor
        found = [program for name in rates for program in self._client(name, rates[name])]
        return sorted(found, key=lambda program: program.arrival_s)

    def _client(self, name: str, per_s: float) -> Iterator[Program]:
        rng = Random(f"{self.seed} {name}")
        arrival_s = 0.0
        for number in count():
            if per_s <= 0:
                return
            arrival_s += rng.expovariate(per_s)
            if arrival_s >= self.duration_s:
                return
            yield Program(f"{name}-{number}", name, arrival_s, (self._call(name, rng),))

    def _call(self, name: str, rng: Random) -> Call:
        prefix = Segment((name, rng.randrange(self.prefixes)), self.prefix_tokens)
        answer = rng.randint(*self.answer_tokens)
        return Call(
            input_tokens=self.prefix_tokens + rng.randint(*self.question_tokens),
            output_tokens=answer,
            max_output_tokens=answer,
            prompt=(prefix,),
        )


REPLICAS: Final = 3
PROFILE: Final = "a10g-llama2-7b"
"""The only profile with measured figures; those of the others are fitted."""
_MODEL: Final = "demo"


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """The policies and the load of a phase."""

    name: str
    """Name of the phase in files."""
    title: str
    replica_policy: str
    fleet_policy: str
    flood: Flood
    client_quantum: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseResult:
    """The requests of a phase and their outcomes."""

    phase: Phase
    programs: Sequence[Program]
    outcomes: Sequence[Outcome]
    elapsed_s: float
    """The time until the last ordinary request ended, or until the phase was cut."""


def phases(flood: Flood, client_quantum: str) -> tuple[Phase, Phase, Phase]:
    """The baseline, the common setup without fairness, and Evenkeel."""
    alone = replace(flood, flood_factor=0.0, duration_s=flood.duration_s / 3)
    fair = Phase(
        name="evenkeel",
        title="D2LPM + DLPM",
        replica_policy="DLPM",
        fleet_policy="D2LPM",
        flood=flood,
        client_quantum=client_quantum,
    )
    common = Phase(
        name="round_robin",
        title="round robin + LPM",
        replica_policy="LPM",
        fleet_policy="RoundRobin",
        flood=flood,
        client_quantum=client_quantum,
    )
    return replace(fair, name="baseline", title="no flood", flood=alone), common, fair


async def run_phase(
    phase: Phase, *, state_root: Path, progress: Callable[[float, int], None]
) -> PhaseResult:
    """Run a phase; `progress` gets the elapsed seconds and the requests in flight. Raises `FleetError`.

    It ends when every ordinary request has ended, at the latest after twice the time in which requests
    arrive. The requests of the flood that then still wait do not change the figures.
    """
    manifest = parse_manifest(_file(phase).encode(), f"demo: {phase.title}")
    programs = phase.flood.programs()
    listen = ListenConfig(traffic_port=0, probe_port=0, admin_port=0)
    async with (
        running_fleet(
            manifest, listen=listen, state_root=state_root / phase.name, report=lambda _: None
        ) as fleet,
        open_session() as session,
    ):
        loop = asyncio.get_running_loop()
        keys = {client.partition("/")[0]: key for client, key in manifest.api_keys()}
        began_s = loop.time()
        sender = Sender(
            url=f"{fleet.routers[0].url}/v1",
            model=_MODEL,
            session=session,
            now=lambda: loop.time() - began_s,
            headers_of=headers_by_key(assign_keys((*ORDINARY, FLOOD), keys), keys),
        )
        run = Replay(send=sender.send, now=sender.now)
        await _until_ordinary_end(
            run, programs, now=sender.now, duration_s=phase.flood.duration_s, progress=progress
        )
        elapsed_s = sender.now()
    return PhaseResult(
        phase=phase, programs=programs, outcomes=tuple(run.outcomes), elapsed_s=elapsed_s
    )


async def _until_ordinary_end(
    run: Replay,
    programs: Sequence[Program],
    *,
    now: Callable[[], float],
    duration_s: float,
    progress: Callable[[float, int], None],
) -> None:
    ordinary = sum(program.client != FLOOD for program in programs)
    sending = asyncio.create_task(run.run(programs))
    try:
        while not sending.done() and now() < 2 * duration_s:
            await asyncio.wait([sending], timeout=0.2)
            progress(now(), run.in_flight)
            ended = sum(outcome.client != FLOOD for outcome in run.outcomes)
            if now() >= duration_s and ended == ordinary:
                break
    finally:
        sending.cancel()
        await asyncio.wait([sending])


def _file(phase: Phase) -> str:
    """The fleet as a file of resources: the demo runs the same as `evenkeel up` with this file."""
    clients = (*ORDINARY, FLOOD)
    service = f"""\
apiVersion: evenkeel.dev/v1alpha1
kind: FairInferenceService
metadata: {{name: demo}}
spec:
  model: {{source: hf://demo/{_MODEL}}}
  engine: {{runtime: Simulator, replicas: {REPLICAS}, args: [--profile={PROFILE}]}}
  scheduling:
    replicaPolicy: {phase.replica_policy}
    fleetPolicy: {phase.fleet_policy}
    clientQuantum: {phase.client_quantum}
"""
    tenants = [
        f"""\
apiVersion: evenkeel.dev/v1alpha1
kind: InferenceTenant
metadata: {{name: {client}}}
spec:
  clients: [{{name: app}}]
  apiKeys: [{{name: key, client: app, secretRef: {{name: keys, key: {client}}}}}]
"""
        for client in clients
    ]
    entries = ", ".join(f"{client}: sk-demo-{client}" for client in clients)
    secret = f"""\
apiVersion: v1
kind: Secret
metadata: {{name: keys}}
stringData: {{{entries}}}
"""
    return "---\n".join([service, *tenants, secret])
