"""Which client a request is of, what clients were served and are owed, and what the router judges of it."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Any

import msgspec
from evenkeel_contract.adminstate import PeerState
from evenkeel_contract.routerconfig import (
    Anonymous,
    ApiKeyConfig,
    CacheSharing,
    ClientConfig,
    TenancyConfig,
    TenantConfig,
)
from evenkeel_fairshare.ledger import CarryRules, Ledger, ReplicaRow
from evenkeel_router.api.claims import Claims
from evenkeel_router.api.cors import Cors
from evenkeel_router.api.errors import Refusal
from evenkeel_router.api.identity import Directory, names_of, other_clients
from evenkeel_router.api.proxies import Proxies
from evenkeel_router.fleet.replicas import ReplicaReport
from evenkeel_router.ledger.clients import ClientFigures
from evenkeel_router.ledger.estimates import TokenRatio
from evenkeel_router.ledger.fairness import Fairness, MemberFigures
from evenkeel_router.ledger.totals import DemandMeter
from evenkeel_router.ledger.weights import ConfiguredWeights
from evenkeel_router.prefix.tokenised import Untokenised, most_reported
from evenkeel_router.telemetry.conditions import conditions
from evenkeel_router.telemetry.history import History, Moment, RateWindow
from evenkeel_router.telemetry.recent import NO_REQUESTS
from evenkeel_router.telemetry.rooms import Rooms

from tests.support.decisions import row, text
from tests.support.routers import config_for, sha256
from tests.support.steps import result_of

ACME = TenantConfig(
    namespace="ns",
    name="acme",
    weight=2,
    clients=(ClientConfig(name="chat", weight=3), ClientConfig(name="batch")),
    api_keys=(ApiKeyConfig(name="k", client="chat", sha256=sha256("key")),),
)
FAR = TenantConfig(namespace="far", name="beta", default_client_weight=5)
HEADERS = ("", "Bearer key", "bearer  key ", "Bearer wrong", "Basic key", "Bearer", "key")
NAMED = (
    "acme", "acme/chat", "acme/x y", "far/beta/c", "ns/acme/é", "beta", "a/b/c/d", "acme/", "ns/acme/" + "x" * 300,
)  # fmt: skip
PEERS = ("", "10.1.2.3", "10.2.0.1", "::ffff:10.1.9.9", "fe80::1%eth0", "nonsense", "192.168.0.1")


def _claims(rng: Random) -> Claims:
    authorization = rng.choice(HEADERS)
    keys = rng.choice(((), (), ("key",), ("wrong",), ("key", "wrong")))
    named = [("x-evenkeel-client", rng.choice(NAMED))] * rng.choice((0, 0, 1, 1, 2))
    return Claims(
        [authorization] * rng.choice((1, 1, 2)) if authorization else [],
        keys,
        named,
        rng.choice(PEERS),
    )


def identities() -> Iterator[str]:
    """The client of a request, or the refusal, by its headers and its address."""
    for seed in range(250):
        rng = Random(seed)
        tenancy = TenancyConfig(
            anonymous=rng.choice(list(Anonymous)),
            tenants=rng.choice(((ACME, FAR), (ACME, FAR), (FAR,))),
            cache_sharing=rng.choice(list(CacheSharing)),
            trusted_proxies=rng.choice((("10.1.0.0/16", "fe80::/10"), ())),
        )
        directory, claims = Directory(tenancy, namespace="ns", salt_key="salt"), _claims(rng)
        answers: list[object] = [directory.spoofed(claims)]
        for identify in (directory.identify, directory.identify_named):
            try:
                found = identify(claims)
                answers.append(
                    (found.identity, found.tenant_identity, found.weight, found.cache_salt)
                )
            except Refusal as refusal:
                answers.append(f"{refusal.code} {refusal}"[:110])
        given = {
            "anonymous": tenancy.anonymous,
            "tenants": len(tenancy.tenants),
            "sharing": tenancy.cache_sharing,
            "proxies": len(tenancy.trusted_proxies),
            "claims": (
                list(claims.authorization),
                list(claims.keys),
                [v[:12] for _, v in claims.named],
                claims.peer,
            ),
        }
        yield row(given, answers)
    proxies = Proxies(("10.1.0.0/16", "fe80::/10", "192.168.0.7/32"))
    yield row({"peers": PEERS}, [proxies.trusts(peer) for peer in (*PEERS, *PEERS)])
    for identity in ("ns/acme/chat", "ns/a%2Fb/c%20d", other_clients("ns/acme")):
        yield row({"identity": identity}, list(names_of(identity)))
    for origins in (("*",), ("https://a",), ("https://a", "https://b")):
        cors = Cors(origins)
        for origin in ("https://a", "https://c", ""):
            yield row(
                {"origins": origins, "origin": origin},
                [cors.headers(origin), cors.preflight(origin)],
            )


def fairness() -> Iterator[str]:
    """A ledger to which two replicas report, step by step: who is owed what, who leads, who is beyond its share."""
    weights = ConfiguredWeights(TenancyConfig(tenants=(ACME, FAR)))
    clients = ("ns/acme/chat", "ns/acme/batch", "far/beta/c", "ns/gone/d")
    for seed in range(20):
        rng = Random(seed)
        ledger = Ledger("here", rules=CarryRules(quantum=100, overshoot=500), weights=weights)
        ledger.members = frozenset({"here"})
        truth = Fairness(ledger)
        alive = ["r0", "r1"]
        served = {(at, one): 0.0 for at in alive for one in clients}
        admitted = dict.fromkeys(served, 0)
        now_s, lines = 0.0, []
        for sequence in range(1, 13):
            now_s += rng.choice((1.0, 10.0))
            name = rng.choice(alive)
            rows = []
            for one in rng.sample(clients, rng.choice((2, 3, 4))):
                served[name, one] += rng.choice((0.0, 50.0, 400.0))
                admitted[name, one] += rng.choice((0, 1, 3))
                service = served[name, one]
                waiting, running = rng.choice((0, 1, 1, 4)), rng.choice((0, 2))
                rows.append(
                    ReplicaRow(
                        one,
                        service,
                        service / weights.client(one),
                        admitted[name, one],
                        0.0,
                        0.0,
                        waiting,
                        running,
                    )
                )
            ledger.observe(name, since=ledger.sequence(name), sequence=sequence, rows=rows)
            for _ in truth.steps(alive, weights, now_s):
                pass
            now = truth.now
            members = {
                one: (
                    round(of.service, 3),
                    round(of.owed, 3),
                    round(of.waiting, 3),
                    round(of.lead_s, 4),
                    of.backlogged,
                )
                for one, of in sorted({**now.clients, **now.tenants}.items())
            }
            lines.append(
                f"{text(members)} {now.share_error:.4g} {now.jain:.4g} {now.bound_ratio:.4g} {now.lead_s:.4g} {now.backlogged}"
            )
        yield from (f"{seed}: {line}" for line in lines[::4])
        yield f"{seed}: {text(now.given_over_owed)} beyond {text(now.beyond_share)} within {text(now.waiting_within_share)} {now.saturated_s:g}/{now.saturated_service:g} {now.verdict}"


def judged() -> Iterator[str]:
    """The conditions of alerts that are problems, at the bounds of their thresholds."""
    for seed in range(60):
        rng = Random(seed)
        rooms = Rooms.make(
            config_for(
                max_lead_s=rng.choice((None, 60.0)), max_share_error_percent=rng.choice((None, 15))
            )
        )
        fleet = rooms.replicas.fleet
        for n in range(rng.choice((0, 1, 2))):
            member = fleet.add(f"r{n}")
            fleet.ready(member)
            if rng.randrange(3):
                rooms.service_ledger.accounting.meets(f"r{n}", f"i{n}", policy="DLPM", now_s=0.0)
                report = ReplicaReport(
                    incarnation=f"i{n}",
                    policy="DLPM",
                    sequence=1,
                    received_s=rng.choice((9.9, 10.0, 39.0)),
                    counted=bool(rng.randrange(4)),
                )
                rooms.replicas.reports[f"r{n}"] = report
            if not rng.randrange(4):
                fleet.unready(member)
                member.unschedulable = rng.choice(("draining", "terminating", "other"))
        rooms.intake.admission.running = rng.choice(
            (0, 3, int(0.9 * rooms.settings.config.limits.max_concurrent), 10**6)
        )
        truth = rooms.service_ledger.fairness
        given = {"ns/acme/chat": rng.choice((0.49, 0.5)), "ns/b/c": 0.1} if rng.randrange(2) else {}
        truth.now = msgspec.structs.replace(
            truth.now,
            share_error=rng.choice((0.15, 0.1501)),
            lead_s=rng.choice((60.0, 60.1)),
            given_over_owed=given,
        )
        rooms.settings.faults = rng.choice(((), (), ("spec is odd",)))
        peers = (PeerState(name="p", url="u", error=rng.choice(("", "timeout"))),)
        window = RateWindow(seconds=10.0, cpu=rng.choice((0.9, 0.91)))
        found = conditions(rooms, window, peers, 40.0, recent=NO_REQUESTS)
        yield f"{seed}: {text([(one.alert, one.problem, one.message) for one in found])}"


def _moment(rng: Random, at_s: float, grown: dict[str, float]) -> Moment:
    figures = {}
    for name in rng.sample(sorted(grown), rng.randrange(2, len(grown) + 1)):
        grown[name] += rng.choice((0.0, 30.0))
        tenant, own = names_of(name)
        fleet = MemberFigures(service=grown[name], owed=grown[name] / 2)
        figures[name] = ClientFigures(
            name, tenant, own, fleet, waiting=rng.choice((0, 2)), running=1
        )
    replicas = {"r0": (grown["ns/a/x"], 3 * at_s, 5 * at_s)}
    return Moment(at_s, figures, replicas, cpu_s=0.25 * at_s)


def hours() -> Iterator[str]:
    """The console's windows and samples of drawn moments, with room for two clients with names of their own."""
    for seed in range(15):
        rng, history = Random(seed), History(max_clients=2)
        grown = dict.fromkeys(("ns/a/x", "ns/a/y", "ns/b/x", "ns/b/z", other_clients("ns/a")), 0.0)
        at_s, shown = 0.0, []
        for n in range(32):
            at_s += rng.choice((2.0, 2.0, 3.0))
            result_of(history.add(_moment(rng, at_s, grown)))
            if n % 8 == 7:
                now = history.now
                shown.append(
                    f"{now.seconds:g} {now.cpu:.4g} {text(dict(sorted(now.rates.items())))} {text(now.replicas)}"
                )
        columns = {name: history.columns(name) for name in ("", "ns/a", "ns/a/x", "ns/b/z", "none")}
        most = [result_of(history.most_concerned(within, 2, ())) for within in ("", "ns/a")]
        yield f"{seed}: {' | '.join(shown)}"
        kept = {
            name: None if one is None else [text(v) for v in list(one.values())[:4]]
            for name, one in columns.items()
        }
        yield f"{seed}: {len(history)} {text(list(history.times_s))} {text(kept)} {text(most)}"


def meters() -> Iterator[str]:
    """Requested rates, tokens per byte, and which kinds of prompts are tokenised."""
    for seed in range(25):
        rng, meter, now_s, shown = Random(seed), DemandMeter(window_s=10.0), 0.0, []
        for _ in range(30):
            now_s += rng.choice((0.0, 0.5, 4.0, 31.0))
            name = rng.choice("abc")
            if rng.randrange(3):
                meter.arrived(name, now_s)
            if rng.randrange(2):
                meter.finished(name, rng.choice((10.0, 400.0)))
            if not rng.randrange(3):
                shown.append(f"{text(meter.rates(now_s))}/{len(meter)}")
        yield f"{seed}: {' '.join(shown)}"
        ratio = TokenRatio()
        for _ in range(rng.choice((1, 5, 60))):
            ratio.learn(rng.choice((100, 5000)), rng.choice((20, 4000)))
        counts, trusted = Untokenised(), []
        for _ in range(14):
            kind = rng.choice(("chat", "tools"))
            right = counts.check(
                kind, tokens=rng.choice((0, 5)), reported=rng.choice((0, 5, 10, 11))
            )
            trusted.append(f"{right:d}{counts.distrusts(kind):d}")
        counts.trust_again()
        digests = {f"r{n}": rng.choice("xyz") for n in range(rng.randrange(5))}
        facts: tuple[Any, ...] = (
            [ratio.estimate(n) for n in (0, 1, 1000)],
            trusted,
            counts.distrusts("chat"),
        )
        yield f"{seed}: {text(facts)} {text(digests)} => {most_reported(digests, 'y')}"


TABLES = {
    "router-identities": identities,
    "router-fairness": fairness,
    "router-conditions": judged,
    "router-history": hours,
    "router-meters": meters,
}
