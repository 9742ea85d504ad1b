"""Decisions over more than one fleet: weights in cells and services, members of gateways, models on volumes; and revocations,
and where the time of a request went."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from random import Random
from typing import Any

from evenkeel_contract.cellswire import CellFigures, TenantRates
from evenkeel_contract.consolestate import RequestNow
from evenkeel_contract.downloads import Progress
from evenkeel_contract.gateway import gateway_config, members_of, parse_gateway, unknown_fallbacks
from evenkeel_contract.names import MODEL_LABEL
from evenkeel_contract.render import CredentialSecrets
from evenkeel_contract.revocations import Revocation, RevocationList, RevocationMessage
from evenkeel_contract.routerconfig import LimitsConfig, ListenConfig, TenantConfig, TenantLimits
from evenkeel_contract.signedkeys import SignedKey
from evenkeel_contract.tenantshards import MAX_SHARD_BYTES, SHARD_BYTES, shard_count
from evenkeel_contract.validate import parse_service
from evenkeel_fairshare.across_services import ServiceRates, weights_in_services
from evenkeel_fairshare.cells import (
    CellSums,
    TenantInCell,
    at_once,
    demand_of,
    level_of,
    local_weights,
)
from evenkeel_operator.core.fill import KEEPS_ANNOTATION, cached, digest_of, fill_of, held_spec
from evenkeel_operator.core.gateways import behind_of
from evenkeel_router.api.contents import Media
from evenkeel_router.api.errors import Refusal
from evenkeel_router.api.identity import client_of
from evenkeel_router.api.inference import Inference
from evenkeel_router.ledger.estimates import Estimates
from evenkeel_router.ledger.federation import seen_from
from evenkeel_router.ledger.limit_parts import LimitParts
from evenkeel_router.request.admission import Admission
from evenkeel_router.telemetry.requests import ahead_of, why

from tests.support.build_contexts import document
from tests.support.decisions import draws, row, text
from tests.support.routers import config_for


def cells() -> Iterator[str]:
    """The weights of two to four tenants inside one cell, and the level that they come from."""
    for seed in range(60):
        rng = Random(seed)
        tenants = {}
        for name in "abcd"[: rng.choice((2, 3, 4))]:
            served, more = rng.choice((0.0, 10.0, 40.0)), rng.choice((0.0, 20.0, 90.0))
            full = rng.choice((0.0, 5.0, 60.0))
            tenants[name] = TenantInCell(
                weight=rng.choice((1.0, 3.0)),
                served=served,
                demand=served + more,
                elsewhere=full + rng.choice((0.0, 70.0)),
                full=CellSums(full, rng.choice((full, full + 30.0))),
            )
        capacity = rng.choice((0.0, 50.0, 80.0, 400.0))
        found = local_weights(tenants, capacity)
        yield f"{seed} {text(tenants)} {capacity:g} => {text(level_of(tenants, capacity))} {text(found)}"
    for given in draws(1, 12, served=(0.0, 10.0), waiting=(0.0, 50.0), capacity=(15.0, 60.0), interval_s=(1.0, 5.0)):  # fmt: skip
        served, waiting = given["served"], given["waiting"]
        rest = {"capacity": given["capacity"], "interval_s": given["interval_s"]}
        yield row(given, demand_of(served, waiting, **rest))


def _cell(rng: Random, name: str) -> CellFigures:
    rates = {
        tenant: TenantRates(served := rng.choice((0.0, 10.0)), served + rng.choice((0.0, 10.0)))
        for tenant in rng.sample(("ns/a", "ns/b", "ns/c"), rng.choice((1, 2, 3)))
    }
    capacity = sum(one.served for one in rates.values()) + rng.choice((0.0, 10.0))
    return CellFigures(cell=name, capacity=capacity, tenants=rates)


def seen_cells() -> Iterator[str]:
    """What a cell knows of its tenants in the others."""
    for seed in range(25):
        rng = Random(seed)
        own, others = _cell(rng, "own"), [_cell(rng, name) for name in "xy"]
        full = [one.cell for one in others if one.is_full]
        seen = at_once(seen_from(own, others, lambda name: 2.0 if name == "ns/a" else 1.0))
        yield f"{seed} {text(full)} {text(seen)}"


def services() -> Iterator[str]:
    """The weights of tenants inside each of several services."""
    for seed in range(40):
        rng = Random(seed)
        given = {
            name: ServiceRates(
                served={tenant: rng.choice((0.0, 10.0, 30.0)) for tenant in "abc"},
                waiting={tenant: rng.choice((0.0, 100.0)) for tenant in "ab"},
                token_cost_s=rng.choice((0.01, 0.04)),
            )
            for name in ("large", "small")
        }
        weights = {"a": 1.0, "b": rng.choice((1.0, 4.0)), "c": 2.0}
        found = weights_in_services(given, weights.__getitem__, interval_s=rng.choice((1.0, 5.0)))
        yield f"{seed} {text(given)} b={weights['b']:g} => {text(found)}"


def members() -> Iterator[str]:
    """The services behind a gateway, their names, what is left out, and the pools of its routers."""
    for seed in range(40):
        rng = Random(seed)
        resources = []
        for name in ("large", "medium", "small"):
            one = document("simulator.yaml")
            one["metadata"] |= {"name": name, "labels": {"tier": rng.choice(("gold", "tin"))}}
            one["spec"]["model"]["servedName"] = rng.choice((name, "llama"))
            resources.append(parse_service(one)[0])
        models: list[dict[str, Any]] = []
        for _ in range(rng.choice((1, 2, 3))):
            model: dict[str, Any] = {"fallback": rng.sample(("large", "llama", "fast"), rng.choice((0, 1)))}  # fmt: skip
            if rng.randrange(3):
                model["serviceRef"] = {"name": rng.choice(("large", "medium", "absent"))}
                if rng.randrange(2):
                    model |= {"name": rng.choice(("fast", "large")), "aliases": rng.sample(("quick", "llama"), 1)}  # fmt: skip
            else:
                model["serviceSelector"] = {"matchLabels": {"tier": "gold"}}
            models.append(model)
        metadata = {"name": "front", "namespace": resources[0].metadata.namespace}  # type: ignore[union-attr]
        shared = rng.choice(("None", "Gateway"))
        gateway, faults = parse_gateway({
            "apiVersion": "evenkeel.dev/v1alpha1", "kind": "FairInferenceGateway", "metadata": metadata,
            "spec": {"models": models, "shareAcross": shared},
        })  # fmt: skip
        if gateway is None:
            yield f"{seed} {text(models)} => {text(faults)}"
            continue
        found = members_of(gateway, [one for one in resources if one is not None])
        config = gateway_config(
            gateway,
            found.found,
            configs={one.service.metadata.name: config_for() for one in found.found},
            tenants=(),
            key_hashes={},
            credentials=CredentialSecrets(),
            listen=ListenConfig(),
        )
        offered = {one.service.metadata.name: one.offered for one in found.found}
        pools = [(one.names, one.fallback, one.gpus) for one in config.pools]
        left_out = text([found.missing, found.clashing, list(unknown_fallbacks(found.found))])
        yield f"{seed} {text(models)} {shared} => {text(offered)} {left_out} {text(pools)}"


def behind() -> Iterator[str]:
    """Which of several gateways has a service, and which services of a gateway another one has."""
    for seed in range(40):
        rng = Random(seed)
        gateways = [
            {
                "metadata": {"name": name, "creationTimestamp": rng.choice(("2026-01-01", "2026-01-02"))}
                | rng.choice(({}, {}, {"deletionTimestamp": "now"})),
                "status": {
                    "models": [{"service": one} for one in rng.sample(("large", "small"), rng.choice((0, 1, 2)))],
                    "router": {"readyReplicas": rng.choice((0, 1))},
                    "url": rng.choice(("", "http://x")),
                },
            }
            for name in rng.sample(("front", "back", "side"), 3)
        ]  # fmt: skip
        yield f"{seed} {text(gateways)} => {text(behind_of('large', gateways))}"


def fills() -> Iterator[str]:
    """How far a volume with a model is, and what the condition says."""
    sources = ("s3://models/one", "s3://models/two")
    for given in draws(
        2, 60, source=sources, in_use=("", *sources), filled=(*sources, ""), ended=("", "Complete", "Failed"),
        keeps=("", "old"), leaves=(False, False, True), ready=(0, 1), written=(None, 0, 30_000_000, 70_000_000_000),
    ):  # fmt: skip
        one = document("simulator.yaml")
        one["spec"]["model"] = {"source": given["source"], "servedName": "m", "cache": {"size": "1Gi"}}  # fmt: skip
        service, faults = parse_service(one)
        assert service is not None, faults
        digests = {source: digest_of(parse_service(one | {"spec": one["spec"] | {"model": one["spec"]["model"] | {"source": source}}})[0].spec.model) for source in sources}  # type: ignore[union-attr]  # fmt: skip
        names = {digest: source[-3:] for source, digest in digests.items()}
        engines = None if not given["in_use"] else {
            "metadata": {"name": "engine", "generation": 1},
            "spec": {"replicas": 1, "template": {"metadata": {"labels": {MODEL_LABEL: digests[given["in_use"]]}}}},
            "status": {"observedGeneration": 1, **dict.fromkeys(("replicas", "updatedReplicas", "readyReplicas", "availableReplicas"), given["ready"])},
        }  # fmt: skip
        metadata: dict[str, Any] = {"name": "job", "labels": {MODEL_LABEL: digests.get(given["filled"], "")}}  # fmt: skip
        metadata |= {"annotations": {KEEPS_ANNOTATION: given["keeps"]}} if given["keeps"] else {}
        metadata |= {"deletionTimestamp": "now"} if given["leaves"] else {}
        conditions = [{"type": given["ended"], "status": "True"}] if given["ended"] else []
        jobs = [{"metadata": metadata, "status": {"conditions": conditions}}]
        fill = fill_of(service, engines=engines, jobs=jobs)
        written = given["written"]
        progress = None if written is None else Progress(written=written, total=2 * written)
        keeps = names.get(fill.keeps, fill.keeps)
        found = (fill.is_filled, fill.needs_job, keeps, fill.has_engines, cached(fill, (), progress).message)  # fmt: skip
        yield row(given, found)
    for before, newest in (({"replicas": 2, "image": "a"}, {"replicas": 5, "image": "b"}), ({"replicas": 2}, {}), (None, None)):  # fmt: skip
        specs = {"model": 2, "router": 3, "engine": newest}, {"model": 1, "engine": before}
        yield row({"newest": specs[0], "before": specs[1]}, held_spec(*specs))


def _request(rng: Random, n: int) -> RequestNow:
    tenant, duration_s = rng.choice("ab"), rng.choice((0.0004, 0.8, 9.0))
    return RequestNow(
        request_id=f"r{n}",
        client=f"ns/{tenant}/c{n % 3}",
        name=f"{tenant}/c{n % 3}",
        path="/v1/completions",
        state=rng.choice(("waiting", "running", "ended")),
        begun_unix_s=100.0 + rng.choice((0.0, 2.0, 5.0)),
        duration_s=duration_s,
        ttft_s=rng.choice((None, duration_s / 2, duration_s)),
        held_s=rng.choice((0.0, 0.3)),
        gate_s=rng.choice((0.0, 1.0)),
        engine_s=rng.choice((0.0, 0.2, 4.0)),
        itl_s=rng.choice((None, 0.02)),
        input_tokens=1500,
        cached_tokens=rng.choice((0, 1200)),
        output_tokens=rng.choice((1, 20)),
        replica=rng.choice(("r0", "r0", "r1", "")),
        attempts=rng.choice((1, 2)),
        outcome=rng.choice(("", "replica_failed")),
        streamed=rng.choice((True, False)),
    )


def slow_requests() -> Iterator[str]:
    """Where the time of a request went, in words, and who was ahead of it."""
    for seed in range(40):
        rng = Random(seed)
        everything = [_request(rng, n) for n in range(12)]
        one = everything[0]
        for reader in ("", "ns/a"):
            yield f"{seed} {reader} {text(ahead_of(one, everything, reader))}"
        yield f"{seed} {' '.join(why(one))}"


def limits_now() -> Iterator[str]:
    """What is used of a tenant's limits at a router that has only a part of them, and when all of it is free again."""
    for seed in range(25):
        rng = Random(seed)
        one, other = LimitParts("one"), LimitParts("other")
        assert one.end_census(ask := one.begin_census(), [other.answer(ask, 0.0)], 0.0)
        given = TenantLimits(
            requests_per_minute=rng.choice((0, 30)), tokens_per_minute=rng.choice((0, 600)), max_concurrent=rng.choice((0, 4)),
        )  # fmt: skip
        client = client_of(TenantConfig(namespace="ns", name="t", limits=given), "c")
        admission, there = (
            Admission(LimitsConfig(max_concurrent=50), parts) for parts in (one, other)
        )
        now_s = 1.0
        for tokens in (5, 20, 40)[: rng.choice((1, 3))]:
            with suppress(Refusal):
                admission.enter(client, tokens, now_s)
        with suppress(Refusal):
            there.enter(client, 1, now_s)
        names = [name for name, _ in one.parts()]
        now_s += rng.choice((0.5, 4.0))
        other.receive(one.answer(other.ask(now_s, dict.fromkeys(names, 3.0)), now_s), now_s)
        yield f"{seed} {text(given)} {text(list(one.parts()))} => {text(list(admission.used(now_s)))}"


def estimates() -> Iterator[str]:
    """Estimated tokens of text and media, after engines counted some requests."""
    picture, sound = Media("image_url", 1, 1024.0, 16_384), Media("audio", 1, 30.0, 8000)
    for seed in range(25):
        rng, known, lines = Random(seed), Estimates(), []
        for _ in range(12):
            size = rng.choice((10, 2000, 40_000))
            media = rng.choice(((), (), (picture,), (sound,), (picture, sound)))
            one = Inference(b"", b"", size, None, None, media=media)
            guess, counted = known.of(one), rng.choice((3, 700, 30_000))
            known.taught(one, counted)
            lines.append(f"{size}+{len(media)}:{guess}/{counted}")
        yield f"{seed} {' '.join(lines)}"


def shards() -> Iterator[str]:
    """The number of shards for tenants of some sizes, evenly spread or not."""
    sizes = (10, SHARD_BYTES // 3, SHARD_BYTES - 1, SHARD_BYTES + 1, MAX_SHARD_BYTES)
    for given in draws(
        3, 60, each=sizes, tenants=(1, 2, 3, 9, 70), step=(1, 2, 8), before=(1, 4, 64)
    ):
        tenants = [(n * given["step"], given["each"]) for n in range(given["tenants"])]
        yield row(given, shard_count(tenants, given["before"]))


def revocations() -> Iterator[str]:
    """Revocations that come, are merged and end, and which credentials they refuse."""
    for seed in range(20):
        rng = Random(seed)
        found, lines = RevocationList(), []
        for now_s in range(0, 60, 5):
            subject = rng.choice(("k1", "ns/a", "ns/a/x", "ns/b/y"))
            given = Revocation(subject, now_s - rng.choice((0, 10)), now_s + rng.choice((0, 8, 30)))
            added = found.merge([given], now_s)
            gone = found.expire(now_s) if rng.randrange(2) else []
            refused = [
                f"{identity}@{issued_s}"
                for identity in ("ns/a/x", "ns/a/z", "ns/b/y")
                for issued_s in (now_s - 10, now_s)
                if found.revokes_identity(identity, issued_s)
            ]
            lines.append(f"{found.version} {len(added)}+ {len(gone)}- {text(refused)}")
        lasting = RevocationMessage(tuple(found)).lasting(rng.choice((5, 3600)))
        key = SignedKey(
            signer="s", id="k1", namespace="ns", tenant="b", client="y", issued_s=20, expires_s=99
        )
        yield f"{seed} {'; '.join(lines)} {text(lasting)} {found.revokes(key)}"


TABLES = {
    "fairshare-cells": cells,
    "fairshare-services": services,
    "router-cells": seen_cells,
    "contract-gateways": members,
    "operator-gateways": behind,
    "operator-fills": fills,
    "router-slow-requests": slow_requests,
    "router-limits-now": limits_now,
    "router-estimates": estimates,
    "contract-shards": shards,
    "contract-revocations": revocations,
}
