"""The pass over one FairInferenceGateway (docs/design/gateway.md).

    observe → spec → members → desired → apply → status

The routers' configuration is made of those that the passes over the services wrote, so a service reaches the gateway once its own
spec is in use. With an invalid spec the objects stay as they are. A gateway whose services are all missing keeps its routers as they
are, too: they cannot run without a service.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from evenkeel_contract.gateway import (
    Member,
    gateway_config,
    members_of,
    parse_gateway,
    unknown_fallbacks,
)
from evenkeel_contract.names import credentials_name, revocations_name, router_peers_name
from evenkeel_contract.render import CredentialSecrets, tenants_namespace
from evenkeel_contract.routerconfig import ListenConfig, PoolConfig, RouterConfig, StateConfig
from evenkeel_contract.spec.gateway import FairInferenceGateway
from evenkeel_contract.validate import parse_service
from evenkeel_contract.values import Fault

from evenkeel_operator.cluster.apply import ApplyResult
from evenkeel_operator.cluster.observed import ObservedGateway
from evenkeel_operator.cluster.store import GATEWAY, Key
from evenkeel_operator.core import reasons
from evenkeel_operator.core.events import events_for
from evenkeel_operator.core.gateways import (
    GatewayFindings,
    gateway_status,
    lacking_models,
    taken,
)
from evenkeel_operator.core.neighbours import host_taken
from evenkeel_operator.core.objects import Manifest, annotations_of, without_status
from evenkeel_operator.core.reasons import Note
from evenkeel_operator.core.records import (
    ROTATE_ANNOTATION,
    Credentials,
    next_credentials,
    read_credentials,
)
from evenkeel_operator.core.roster import Roster
from evenkeel_operator.core.sharding import Layout, LiveConfig, Planner
from evenkeel_operator.core.workload import TIME_FORMAT
from evenkeel_operator.desired import (
    credential_notes,
    granted,
    keep_credentials,
    room_notes,
    tenants_note,
)
from evenkeel_operator.manifests.context import DEFAULT_DRAIN_S
from evenkeel_operator.manifests.gateway import build_gateway, gateway_context
from evenkeel_operator.reconcile import RESYNC_S, UNSETTLED_S, Dependencies, tenants_of
from evenkeel_operator.reporting import Failures, Reporter
from evenkeel_operator.revocation import Revocation


@dataclass(frozen=True, slots=True, kw_only=True)
class _Built:
    """What a pass decided."""

    members: tuple[Member, ...] = ()
    lacking: tuple[Note, ...] = ()
    notes: tuple[Note, ...] = ()
    host_taken: bool = False
    objects: tuple[tuple[Manifest, ...], Layout] | None = None
    """The manifests, and the contents of their Secrets with tenants. Without them, the objects stay as they are."""


class GatewayPass:
    """Passes over FairInferenceGateways."""

    def __init__(self, dependencies: Dependencies) -> None:
        given = self._deps = dependencies
        self._reporter = Reporter(given.store, given.observer, given.applier, clock=given.clock)
        self._failures = Failures(self._reporter)
        self._listed_s: dict[Key, float] = {}
        self._planners: dict[Key, Planner] = {}
        self._revocation = Revocation(given.store, given.observer, given.applier)

    async def __call__(self, key: Key) -> float | None:
        """One pass. Returns the seconds until the next one without an event. Raises `ClusterError`, which is in the status then."""
        return await self._failures.watched(key, self._pass(key))

    async def _pass(self, key: Key) -> float | None:
        given = self._deps
        if key.namespace in given.store.terminating:
            self._forget(key)
            return None
        # 1. Revoke: routers lose what they must not accept, whatever fails later.
        notes = await self._revocation.attend(key)

        # 2. Observe: the gateway, its objects, the services of its namespace and their configurations.
        found = await given.observer.gateway(key, relist=self._is_listing_due(key))
        if found is None or found.seen.is_leaving:
            self._forget(key)
            return None if found is None else RESYNC_S

        # 3. The spec. While it is invalid, the objects stay as they are.
        gateway, faults = parse_gateway(without_status(found.seen.raw))

        # 4. Desired: the services that can be served, and all objects.
        built = _Built() if gateway is None else await self._build(found, gateway)

        # 5. Apply: writes nothing if nothing differs.
        result = ApplyResult()
        if built.objects is not None:
            manifests, layout = built.objects
            given.observer.live_configs.laid_out(key, layout)
            result = await given.applier.carry_out(found.seen, manifests, layout)
        result.notes += notes

        # 6. Status, and events for what changed.
        settled = await self._report(found, gateway, faults, built=built, result=result)
        rest_s = RESYNC_S if settled else UNSETTLED_S
        return rest_s if result.again_s is None else min(rest_s, result.again_s)

    async def _build(self, found: ObservedGateway, gateway: FairInferenceGateway) -> _Built:
        given, seen = self._deps, found.seen
        services = [parse_service(without_status(one))[0] for one in found.services]
        members = members_of(gateway, [one for one in services if one is not None])
        elsewhere = taken(seen.raw, members, found.gateways)
        names = [member.service.metadata.name for member in members.found]
        starting = [one for one in names if one not in elsewhere and one not in found.configs]
        lacking = lacking_models(members, elsewhere=elsewhere, starting=starting)
        served = tuple(
            member
            for member in members.found
            if member.service.metadata.name not in elsewhere
            and member.service.metadata.name in found.configs
        )
        if not served:
            return _Built(lacking=lacking)
        credentials = await self._credentials(found)
        roster, refusal = await tenants_of(given.observer, seen, tenants_namespace(gateway))
        secrets = await given.observer.values.credentials(gateway)
        planner = self._planners.setdefault(seen.key, Planner())
        layout = planner.lay_out(
            self._config(found, gateway, served, credentials, roster=roster, secrets=secrets),
            granted(gateway, roster, seen.live),
            seen.live,
            age_of=roster.age_of,
            base=seen.key.base,
        )
        own = {(seen.key.namespace, member.service.metadata.name) for member in served}
        others = [  # a service behind the gateway gives its host up
            one
            for one in given.store.exposed_anywhere()
            if one.get("kind") == GATEWAY
            or (one["metadata"]["namespace"], one["metadata"]["name"]) not in own
        ]
        clash = host_taken(seen.raw, others, default_class=given.observer.default_class)
        notes = [
            *refusal,
            *tenants_note(gateway, roster),
            *room_notes(layout),
            *credential_notes(secrets[1]),
            *([] if clash is None else [clash]),
        ]
        notes += [
            Note(
                reasons.FALLBACK_UNKNOWN,
                f"spec.models: {name} is no other model of the gateway, so {model} does not fall back to it.",
            )
            for model, name in unknown_fallbacks(served)
        ]
        context = gateway_context(
            gateway,
            uid=seen.uid,
            layout=layout,
            defaults=given.defaults,
            apis=given.observer.apis - seen.forbidden,
        )
        return _Built(
            members=served,
            lacking=lacking,
            notes=tuple(notes),
            host_taken=clash is not None,
            objects=(build_gateway(context, credentials, host_taken=clash is not None), layout),
        )

    def _config(
        self,
        found: ObservedGateway,
        gateway: FairInferenceGateway,
        members: tuple[Member, ...],
        credentials: Credentials,
        *,
        roster: Roster,
        secrets: tuple[CredentialSecrets, tuple[Note, ...]],
    ) -> RouterConfig:
        seen = found.seen
        peers = router_peers_name(seen.key.base)
        signed = gateway.spec.tenancy.signed_keys
        revocations = None if signed is None else revocations_name(seen.key.base)
        configs = {
            name: replace(
                config,
                cluster=config.cluster
                and replace(config.cluster, peers=peers, revocations=revocations),
            )
            for name, config in found.configs.items()
        }
        config = gateway_config(
            gateway,
            members,
            configs=configs,
            tenants=[one.resource for one in roster.tenants.values() if one.resource is not None],
            key_hashes=None,
            credentials=secrets[0],
            listen=ListenConfig(host=self._deps.defaults.router_host),
            admin_token_sha256=credentials.admin_token_sha256,
            state=StateConfig(peer_token=credentials.admin_token),
        )
        drain_s = max((one.drain_timeout_s for one in found.configs.values()), default=0.0)
        return replace(
            config,
            tenancy=keep_credentials(
                config.tenancy, gateway.spec.tenancy, before=seen.live.core, notes=secrets[1]
            ),
            pools=_with_invalid(config.pools, seen.live, roster),
            drain_timeout_s=max(drain_s, DEFAULT_DRAIN_S),
            runbooks=self._deps.defaults.monitoring.runbooks_url,
        )

    async def _credentials(self, found: ObservedGateway) -> Credentials:
        seen, key = found.seen, found.seen.key
        stored = seen.credentials
        if stored is None:  # the cache may be stale
            name = credentials_name(key.base)
            stored = read_credentials(await self._deps.client.get("Secret", key.namespace, name))
        rotation = annotations_of(seen.raw).get(ROTATE_ANNOTATION, "")
        return next_credentials(
            stored, rotation=rotation, old_keys_are_in_use=False, fresh=self._deps.fresh
        )

    async def _report(
        self,
        found: ObservedGateway,
        gateway: FairInferenceGateway | None,
        faults: tuple[Fault, ...],
        *,
        built: _Built,
        result: ApplyResult,
    ) -> bool:
        """Write the status; whether all routers are ready."""
        given, seen = self._deps, found.seen
        wanted = 0 if gateway is None else gateway.spec.router.as_router().count
        findings = GatewayFindings(
            faults=faults,
            members=built.members,
            lacking=built.lacking,
            routers=await self._reporter.routers(seen, wanted),
            notes=(*result.notes, *built.notes),
        )
        now = given.clock()
        status = gateway_status(
            seen.raw,
            findings,
            running=gateway,
            host_taken=built.host_taken,
            now=now.strftime(TIME_FORMAT),
        )
        if await given.applier.write_status(seen.key, seen.raw, status):
            for news in events_for(seen.raw, status):
                await given.applier.emit({**seen.raw, "kind": GATEWAY}, news, now=now)
        return findings.routers.settled

    def _is_listing_due(self, key: Key) -> bool:
        now_s = self._deps.monotonic_s()
        due = key not in self._listed_s or now_s - self._listed_s[key] >= RESYNC_S
        if due:
            self._listed_s[key] = now_s
        return due

    def _forget(self, key: Key) -> None:
        self._deps.store.forget(key)
        self._deps.applier.forget(key)
        self._deps.observer.live_configs.forget(key)
        self._listed_s.pop(key, None)
        self._planners.pop(key, None)
        self._revocation.forget(key)


def _with_invalid(
    pools: tuple[PoolConfig, ...], live: LiveConfig, roster: Roster
) -> tuple[PoolConfig, ...]:
    """The pools with the tenants whose spec is invalid: they use the models that they used before."""
    invalid = {name for name, one in roster.tenants.items() if one.resource is None}
    if not invalid or live.core is None:
        return pools
    before = {pool.service: pool.tenants for pool in live.core.pools}
    found = []
    for pool in pools:
        if pool.tenants is not None and pool.service in before:
            had = before[pool.service]
            kept = invalid if had is None else invalid.intersection(had)
            pool = replace(pool, tenants=tuple(sorted({*pool.tenants, *kept})))
        found.append(pool)
    return tuple(found)
