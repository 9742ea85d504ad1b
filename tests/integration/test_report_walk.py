"""The files that a number passes from an engine's account to a line of the metrics are those that ARCHITECTURE.md lists."""

from __future__ import annotations

from dataclasses import replace

from evenkeel_contract.heldpages import HeldPages
from evenkeel_contract.promptfacts import facts_of
from evenkeel_contract.reportbook import ReportBook
from evenkeel_plugin.reports import ReportServer
from evenkeel_router.app import running
from evenkeel_router.telemetry.metrics import metrics

from tests.support.fakes import FakeProber, FakeReply, FakeUpstream, replicas
from tests.support.routers import QUICK, config_for, routable, until
from tests.support.walks import carrying, listed
from tests.unit.evenkeel_plugin.test_scheduling import Loop, req

FOLDERS = ("plugins/common", "contract", "router", "fairshare")
ROOMS = {"engine": "plugins/common/evenkeel_plugin"} | {
    room: f"router/evenkeel_router/{room}" for room in ("fleet", "ledger", "telemetry")
}
TOKENS = 95
"""Of the prompt of client a."""
SERVED = TOKENS + 2.0
"""What the client was served: a number that nothing else in the test has."""


def serving(loop: Loop) -> ReportServer:
    """The reports of an engine."""
    return ReportServer(
        ReportBook(incarnation="process", policy="DLPM"),
        loop.scheduling.news,
        prompts=lambda: facts_of({}, page_tokens=16),
        pages=HeldPages(),
        host="127.0.0.1",
        port=0,
    )


async def test_a_number_passes_the_files_that_architecture_lists() -> None:
    loop = Loop()
    with carrying(FOLDERS, SERVED) as found:
        server = serving(loop)
        loop.send(req("one", tokens=TOKENS), req("other", "b", base=9000))
        assert loop.step() == ["one", "other"]
        loop.forward(is_prefill=True, finish=["one", "other"])
        (one,) = replicas(1)
        config = config_for(replace(one, reports=f"tcp://127.0.0.1:{server.port}"))
        upstream = FakeUpstream(lambda *_: FakeReply([]))
        async with running(config, upstream=upstream, prober=FakeProber(), timing=QUICK) as router:
            await routable(router, 1)
            fairness = router.rooms.service_ledger.fairness
            await until(lambda: "ns/a/a" in fairness.now.clients, "figures of the client")
            scrape = "".join(metrics(router.rooms))
    assert f'service_total{{client="a",model_name="llama",tenant="a"}} {SERVED}' in scrape
    assert found == listed("From an engine's account to a line of the metrics", ROOMS)
