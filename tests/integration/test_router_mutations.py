"""Thousands of hostile requests to every API: each gets an answer, and the router stays as it was."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
from collections import Counter
from random import Random

import httpx
import psutil
import pytest
from evenkeel_contract.routerconfig import LimitsConfig

from tests.support.mutations import FORMS, requests
from tests.support.routers import KEY, MODEL, fleet, simulated

PATIENCE_S = 60.0
AT_ONCE = 16


@pytest.mark.parametrize(
    "number",
    [
        400,
        pytest.param(20_000, marks=[pytest.mark.slow, pytest.mark.timeout(3600)]),
    ],
)
async def test_hostile_requests_get_an_answer_and_leave_nothing_behind(
    number: int, caplog: pytest.LogCaptureFixture
) -> None:
    logging.getLogger("httpx").setLevel(logging.WARNING)  # a line for each request
    process = psutil.Process(os.getpid())
    outcomes: Counter[tuple[str, int]] = Counter()
    faults: list[str] = []
    sizes_mb: list[float] = []
    async with (
        fleet(2, settings=simulated(speed=1000.0), limits=LimitsConfig(max_output_tokens=64)) as (router, _),
        httpx.AsyncClient(
            base_url=router.url, timeout=PATIENCE_S, headers={"authorization": f"Bearer {KEY}"}
        ) as client,
    ):  # fmt: skip

        async def send(path: str, content_type: str, body: bytes) -> None:
            headers = {"content-type": content_type}
            try:
                answer = await client.post(path, content=body, headers=headers)
            except httpx.TransportError as error:
                faults.append(f"{path} {error!r} {len(body)} bytes {body[:300]!r}")
                return
            outcomes[path, answer.status_code] += 1
            if answer.status_code >= 500:
                faults.append(f"{path} {answer.status_code} {body[:300]!r}: {answer.text[:300]}")

        made = requests(Random(number), MODEL, number)
        for sent in range(0, number, AT_ONCE):
            batch = [one for _, one in zip(range(min(AT_ONCE, number - sent)), made, strict=False)]
            await asyncio.gather(*(send(*one) for one in batch))
            if sent % (AT_ONCE * 50) == 0:
                gc.collect()
                sizes_mb.append(process.memory_info().rss / 2**20)
        assert router.rooms.totals.faults == 0
        assert router.rooms.intake.admission.running == 0
    by_status = Counter[int]()
    for (_, status), count in outcomes.items():
        by_status[status] += count
    logging.getLogger(__name__).info(
        "%s; RSS in MB: %s", dict(by_status), [round(one) for one in sizes_mb]
    )
    assert faults == []
    assert sum(outcomes.values()) == number
    tracebacks = [one for one in caplog.records if one.exc_info or one.levelno >= logging.ERROR]
    assert tracebacks == []
    # Simulated replicas do not transcribe: a form that passes the router gets their 404.
    passed = {path for path, status in outcomes if status == (404 if path in FORMS else 200)}
    assert passed == {path for path, _ in outcomes}
    half = len(sizes_mb) // 2
    assert sizes_mb[-1] < sizes_mb[half] + 50, sizes_mb
