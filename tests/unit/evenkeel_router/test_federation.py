"""What a router makes of the answers of other cells (R21)."""

from __future__ import annotations

import asyncio
import ssl
import subprocess
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest
from aiohttp import ClientSession, web
from aiohttp.test_utils import TestServer
from evenkeel_contract.cellswire import CELL_PATH, CellFigures, TenantRates, encode
from evenkeel_contract.federationconfig import CellConfig, FederationConfig
from evenkeel_contract.identityheaders import UndeclaredTenants
from evenkeel_contract.routerconfig import (
    RouterConfig,
    TenancyConfig,
    TenantConfig,
)
from evenkeel_fairshare.cells import STEP_TENANTS, at_once
from evenkeel_router.ledger import federation as module
from evenkeel_router.ledger.federation import Federation, seen_from
from evenkeel_router.ledger.service_ledger import ServiceLedger
from evenkeel_router.settings import Settings

from tests.support.routers import config_for

GOOD = CellFigures(cell="west", capacity=10.0, tenants={"ns/a": TenantRates(4.0, 9.0)})


def figures(cell: str, capacity: float, **tenants: tuple[float, float]) -> CellFigures:
    rates = {f"ns/{name}": TenantRates(*one) for name, one in tenants.items()}
    return CellFigures(cell=cell, capacity=capacity, tenants=rates)


def federation_of(config: RouterConfig, session: ClientSession) -> Federation:
    async def nothing(weights: Mapping[str, float]) -> None: ...

    return Federation(config, ServiceLedger(Settings(config)), session, reweigh=nothing)


@asynccontextmanager
async def asked(
    answer: web.Response, *, tls: ssl.SSLContext | None = None, ca: str | None = None
) -> AsyncIterator[Federation]:
    """A router's view after it asked one cell, which gives this answer."""

    async def handle(request: web.Request) -> web.Response:
        assert request.headers["Authorization"] == "Bearer a token of all cells"
        return answer

    app = web.Application()
    app.router.add_get(CELL_PATH, handle)
    server = TestServer(app)
    await server.start_server(ssl=tls)
    async with AsyncExitStack() as stack:
        stack.push_async_callback(server.close)
        session = await stack.enter_async_context(ClientSession())
        url = str(server.make_url("")).rstrip("/")
        wanted = FederationConfig(
            cell="east",
            token="a token of all cells",
            ca=ca,
            cells=(CellConfig(name="west", url=url),),
        )
        config: RouterConfig = config_for(federation=wanted)

        found = federation_of(config, session)
        await found._ask_all(wanted)
        await found._weigh(wanted)
        yield found


async def test_the_figures_of_a_cell_are_kept() -> None:
    async with asked(web.Response(body=encode(GOOD))) as found:
        (contact,) = found.contacts.values()
        assert (contact.figures, contact.error, contact.counts) == (GOOD, "", True)


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A certificate for 127.0.0.1 that signs itself, and its key (`.key`)."""
    path = tmp_path_factory.mktemp("tls") / "cell.crt"
    subprocess.run(
        [
            "openssl", "req", "-x509", "-nodes", "-days", "2", "-subj", "/CN=cell", "-newkey", "ec",
            "-pkeyopt", "ec_paramgen_curve:P-256", "-addext", "subjectAltName=IP:127.0.0.1",
            "-keyout", str(path.with_suffix(".key")), "-out", str(path),
        ],
        check=True, capture_output=True,
    )  # fmt: skip
    return path


@pytest.mark.parametrize(
    ("trusts", "error"),
    [
        (True, ""),
        (False, "certificate verify failed"),
        (
            "-----BEGIN CERTIFICATE-----\nTUlJQg==\n-----END CERTIFICATE-----",
            "federation.ca cannot be read",
        ),
    ],
)
async def test_a_cell_is_believed_if_a_configured_authority_signed_its_certificate(
    trusts: bool | str, error: str, certificate: Path
) -> None:
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(certificate, certificate.with_suffix(".key"))
    ca = (await asyncio.to_thread(certificate.read_text)) if trusts is True else trusts or None
    async with asked(web.Response(body=encode(GOOD)), tls=tls, ca=ca) as found:
        (contact,) = found.contacts.values()
        assert contact.counts is (error == "")
        assert error in contact.error


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        ({"body": encode(figures("north", 1.0))}, "it calls itself 'north'"),
        ({"body": b"\x63" + encode(GOOD)[1:]}, "version 99 is not supported"),
        ({"body": encode(GOOD)[:-3]}, "not figures of a cell"),
        ({"body": encode(figures("west", 1.0, a=(-1.0, 1.0)))}, "not figures of a cell"),
        ({"body": encode(figures("west", 1.0, a=(float("nan"), 1.0)))}, "not figures of a cell"),
        ({"status": 500}, "it answered 500"),
        ({"status": 302, "headers": {"Location": "http://127.0.0.1:1/"}}, "it answered 302"),
        ({"body": bytes(2000)}, "its answer is longer than 1000 bytes"),
    ],
)
async def test_an_answer_that_cannot_be_used_leaves_the_cell_out(
    answer: Mapping[str, object], error: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_CELL_BYTES", 1000)
    async with asked(web.Response(**answer)) as found:  # type: ignore[arg-type]
        (contact,) = found.contacts.values()
        assert contact.figures is None
        assert error in contact.error


def test_only_full_cells_take_part_in_a_step_and_all_in_the_sum() -> None:
    own = figures("east", 10.0, a=(4.0, 9.0), b=(6.0, 8.0))
    full = figures("west", 5.0, a=(5.0, 7.0))
    idle = figures("north", 9.0, a=(2.0, 2.0))
    seen = at_once(seen_from(own, [full, idle], {"ns/a": 3.0, "ns/b": 1.0}.__getitem__))
    assert (seen["ns/a"].weight, seen["ns/a"].elsewhere) == (3.0, 7.0)
    assert seen["ns/a"].full == (5.0, 7.0)
    assert (seen["ns/b"].weight, seen["ns/b"].elsewhere) == (1.0, 0.0)


async def test_tenants_that_no_resource_declares_have_weights_in_a_cell() -> None:
    tenancy = TenancyConfig(
        tenants=(TenantConfig(namespace="ns", name="acme"),),
        undeclared_tenants=UndeclaredTenants.ACCEPT,
        undeclared_tenant_weight=2,
    )
    wanted = FederationConfig(
        cell="east", token="t", cells=(CellConfig(name="west", url="http://w"),)
    )
    async with ClientSession() as session:
        found = federation_of(config_for(federation=wanted, tenancy=tenancy), session)
        found.own = figures("east", 9.0, acme=(3.0, 9.0), guest=(6.0, 9.0))
        # `guest` gets as much in the other cell, so here it falls behind.
        weights = at_once(found._changed([figures("west", 9.0, guest=(9.0, 9.0))]))
    assert weights is not None
    assert weights["ns/guest"] < 2 and weights["ns/acme"] > 1
    assert sum(weights.values()) == pytest.approx(3, abs=0.002)


async def test_weights_of_many_tenants_are_computed_in_steps() -> None:
    wanted = FederationConfig(
        cell="east", token="t", cells=(CellConfig(name="west", url="http://w"),)
    )
    async with ClientSession() as session:
        found = federation_of(config_for(federation=wanted), session)
        many = {f"t{n}": (1.0, 2.0 + n) for n in range(10_000)}
        found.own, west = figures("east", 9_000.0, **many), figures("west", 9_000.0, **many)
        steps = sum(1 for _ in found._changed([west]))
    assert steps >= 5 * 10_000 / STEP_TENANTS


async def test_what_a_tenant_keeps_in_each_cell_adds_up_to_the_same() -> None:
    wanted = FederationConfig(
        cell="east", token="t", cells=(CellConfig(name="west", url="http://w"),)
    )
    async with ClientSession() as session:
        found = federation_of(config_for(federation=wanted), session)
        found.own = figures("east", 10.0, behind=(9.9, 20.0), ahead=(0.1, 20.0))
        kept = []
        for number in (1, 4):
            others = [figures(f"c{n}", 90.0, ahead=(90.0, 99.0)) for n in range(number)]
            weights = at_once(found._changed(others))
            assert weights is not None
            kept.append(weights["ns/ahead"] / weights["ns/behind"])
    # Two full cells, and five.
    assert kept[0] / kept[1] == pytest.approx(5 / 2, rel=0.1)
