"""`evenkeel plan` against truth: `python -m bench.plan_truth [--seconds 60]`.

Records a run of `evenkeel up` under load, predicts another weight and a third replica, makes each change with the same load, and
compares. The load is an open loop over the capacity of the fleet; replicas are simulated, in real time.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from argparse import ArgumentParser
from dataclasses import dataclass
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any, Final

import aiohttp
import httpx
import msgspec
import yaml
from evenkeel_contract.recording import RECORDING_FILE_PATH, RECORDING_PATH, decode_recording_state
from evenkeel_laboratory.commands.planning import (
    Plan,
    calibrated,
    changed,
    make_plan,
    read_change,
    recorded_figures,
)
from evenkeel_laboratory.experiments.recording import read_recording
from evenkeel_laboratory.experiments.whatif import RunFigures, verdicts

PORT: Final = 18380
PROFILE: Final = {
    "prefill_ms": 20, "prefill_token_ms": 0.5, "decode_ms": 80, "decode_request_ms": 2,
    "decode_kv_token_ms": 0.002, "kv_tokens": 6000,
}  # fmt: skip
RATES: Final = {"ads": 4.0, "search": 4.0, "support": 2.0}
"""Requests per second: about three times what two replicas serve."""
WORDS: Final = [
    "the",
    "river",
    "runs",
    "past",
    "old",
    "mills",
    "and",
    "quiet",
    "farms",
    "toward",
    "a",
    "wide",
    "cold",
    "sea",
]


@dataclass(frozen=True, slots=True)
class Ask:
    """One request of the load."""

    at_s: float
    tenant: str
    words: int
    output_tokens: int


def load(seconds: float, *, seed: int) -> list[Ask]:
    """Poisson arrivals of all tenants."""
    rng = Random(seed)
    found = []
    for tenant, rate in RATES.items():
        at_s = rng.expovariate(rate)
        while at_s < seconds:
            found.append(Ask(at_s, tenant, rng.randint(60, 220), rng.randint(30, 90)))
            at_s += rng.expovariate(rate)
    return sorted(found, key=lambda ask: ask.at_s)


def manifest(profile: Path, *, replicas: int, weights: dict[str, int]) -> str:
    """The fleet's file."""
    service: dict[str, Any] = {
        "apiVersion": "evenkeel.dev/v1alpha1",
        "kind": "FairInferenceService",
        "metadata": {"name": "truth"},
        "spec": {
            "model": {"source": "hf://org/model", "servedName": "m"},
            "engine": {
                "runtime": "Simulator",
                "replicas": replicas,
                "args": [f"--profile={profile}"],
            },
            "router": {
                "replicas": 1,
                "recording": {},
                "limits": {"firstTokenTimeout": "900s", "queueTimeout": "900s"},
            },
        },
    }
    documents: list[dict[str, Any]] = [service]
    for tenant in RATES:
        documents += [
            {
                "apiVersion": "evenkeel.dev/v1alpha1",
                "kind": "InferenceTenant",
                "metadata": {"name": tenant},
                "spec": {
                    "weight": weights.get(tenant, 1),
                    "clients": [{"name": "app"}],
                    "apiKeys": [
                        {"name": "k", "client": "app", "secretRef": {"name": "keys", "key": tenant}}
                    ],
                },
            },
        ]
    keys = {tenant: f"sk-{tenant}" for tenant in RATES}
    secret = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": "keys"},
        "stringData": keys,
    }
    return yaml.safe_dump_all([*documents, secret])


async def send(client: aiohttp.ClientSession, ask: Ask, *, run: str, number: int) -> None:
    """One streamed completion; its prompt begins like the others of its tenant."""
    rng = Random(f"{run} {number}")
    common = " ".join(Random(ask.tenant).choices(WORDS, k=100))
    own = " ".join(rng.choices(WORDS, k=ask.words))
    body = {
        "model": "m",
        "messages": [{"role": "user", "content": f"{run} {common} {number} {own}"}],
        "max_tokens": ask.output_tokens,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    headers = {"Authorization": f"Bearer sk-{ask.tenant}"}
    async with client.post("/v1/chat/completions", json=body, headers=headers) as answer:
        answer.raise_for_status()
        async for _ in answer.content.iter_any():
            pass


async def record(asks: list[Ask], *, run: str, out: Path) -> None:
    """Write the recording of one run of the load."""
    admin = httpx.AsyncClient(base_url=f"http://127.0.0.1:{PORT + 2}", timeout=60)
    traffic = aiohttp.ClientSession(
        f"http://127.0.0.1:{PORT}",
        connector=aiohttp.TCPConnector(limit=0),
        timeout=aiohttp.ClientTimeout(total=None),
    )
    async with admin, traffic:
        (await admin.put(RECORDING_PATH)).raise_for_status()
        start_s = time.monotonic()
        async with asyncio.TaskGroup() as group:
            for number, ask in enumerate(asks):
                await asyncio.sleep(max(0.0, start_s + ask.at_s - time.monotonic()))
                group.create_task(send(traffic, ask, run=run, number=number))
        (await admin.delete(RECORDING_PATH)).raise_for_status()
        while decode_recording_state((await admin.get(RECORDING_PATH)).content).open:  # noqa: ASYNC110
            await asyncio.sleep(0.5)
        out.write_bytes((await admin.get(RECORDING_FILE_PATH)).content)  # noqa: ASYNC240


async def ready(replicas: int, up: subprocess.Popen[bytes]) -> None:
    """Wait until so many replicas take requests."""
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{PORT + 2}", timeout=5) as admin:
        async with asyncio.timeout(120):
            while True:
                if up.poll() is not None:
                    raise RuntimeError("evenkeel up has ended")
                try:
                    state = msgspec.json.decode((await admin.get("/v1/replicas")).content)
                    if sum(one["routable"] for one in state["replicas"]) == replicas:
                        return
                except httpx.HTTPError:
                    pass
                await asyncio.sleep(0.3)


def rows(title: str, before: RunFigures, plan: Plan, truth: RunFigures) -> list[str]:
    """Markdown rows, one for each client: before, predicted, measured, and whether the prediction was right."""
    predicted = plan.changed
    told = {one.client: one.effect for one in plan.verdicts}
    seen = {one.client: one.effect for one in verdicts(before, before, truth)}
    found = []
    for name, measured in truth.clients.items():
        was, guess = before.clients[name], predicted.clients[name]
        points = 100 * abs(guess.share - measured.share)
        ttft = guess.ttft_p50_s / measured.ttft_p50_s - 1
        good = points <= 5 and abs(ttft) <= 0.3 and told[name] == seen[name]
        found.append(
            f"| {title} | {name.split('/')[1]} | {was.share:.1%} | {guess.share:.1%} | {measured.share:.1%} "
            f"| {was.ttft_p50_s:.2f} | {guess.ttft_p50_s:.2f} | {measured.ttft_p50_s:.2f} | {ttft:+.0%} "
            f"| {told[name]} | {seen[name]} | {'yes' if good else 'no'} |"
        )
    return found


BASE: Final = "base"
CHANGES: Final[dict[str, tuple[dict[str, Any], int, dict[str, int]]]] = {
    "ads weighs 4": ({"weights": {"default/ads": 4}}, 2, {"ads": 4}),
    "a third replica": ({"replicas": 3}, 3, {}),
}


def files(folder: Path) -> dict[str, Path]:
    """The recording of each fleet."""
    return {title: folder / f"{title.replace(' ', '-')}.jsonl" for title in (BASE, *CHANGES)}


async def run(folder: Path, asks: list[Ask]) -> None:
    """Record every fleet under the same load."""
    profile, file = folder / "profile.json", folder / "fleet.yaml"
    profile.write_bytes(msgspec.json.encode(PROFILE))
    file.write_text(manifest(profile, replicas=2, weights={}))
    up = subprocess.Popen(  # noqa: ASYNC220
        [sys.executable, "-c", "from evenkeel_cli.main import main; main()", "up", str(file),
         f"--port={PORT}", f"--state-dir={folder / 'state'}"],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    fleets: dict[str, tuple[int, dict[str, int]]] = {BASE: (2, {})} | {
        title: fleet[1:] for title, fleet in CHANGES.items()
    }
    try:
        await ready(2, up)
        for title, (replicas, weights) in fleets.items():
            file.write_text(manifest(profile, replicas=replicas, weights=weights))
            await asyncio.sleep(5)  # for the edit to be applied
            await ready(replicas, up)
            await record(asks, run=title, out=files(folder)[title])
    finally:
        up.terminate()
        up.wait(30)


def compare(folder: Path) -> None:
    """Predict each change from the first recording, and print it beside what was measured."""
    base, *truths = (read_recording(path) for path in files(folder).values())
    fit, today = calibrated(base)
    before = recorded_figures(base, today.setup)
    lines = [
        "| change | client | share before | predicted | measured | TTFT before (s) | predicted | measured | error | predicted effect | measured effect | within the limits |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for (title, (change, _, _)), truth in zip(CHANGES.items(), truths, strict=True):
        path = folder / "change.yaml"
        path.write_text(yaml.safe_dump(change))
        plan = make_plan(base, today, changed(today, read_change(path, base)), fit)
        lines += rows(title, before, plan, recorded_figures(truth, today.setup))
    print(
        f"{len(base.requests)} requests in {base.end_s:.1f} s, and {', '.join(f'{one.end_s:.1f} s' for one in truths)}. {fit}\n"
        f"Today replayed: share error {100 * plan.share_error:.1f} points, TTFT {plan.ttft_error:+.0%}; "
        f"pool {today.setup.profile.kv_tokens} tokens"
    )
    print("\n".join(lines))


if __name__ == "__main__":
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--folder", type=Path, help="of recordings; those in it are used again")
    given = parser.parse_args()
    with TemporaryDirectory() as temporary:
        place = given.folder or Path(temporary)
        place.mkdir(exist_ok=True)
        if not all(path.exists() for path in files(place).values()):
            asyncio.run(run(place, load(given.seconds, seed=given.seed)))
        compare(place)
