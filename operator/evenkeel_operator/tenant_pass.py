"""The pass over one InferenceTenant. It creates no objects; it reports in status whether routers accept the keys."""

from __future__ import annotations

from collections.abc import Iterable

from evenkeel_contract.spec.resources import FairInferenceService
from evenkeel_contract.validate import parse_service

from evenkeel_operator.cluster.store import SERVICE, TENANT, Key
from evenkeel_operator.core.objects import Object, without_status
from evenkeel_operator.core.tenants import NO_FINDINGS, tenant_status
from evenkeel_operator.core.workload import TIME_FORMAT
from evenkeel_operator.reconcile import RESYNC_S, Dependencies
from evenkeel_operator.reporting import Failures, Reporter


class TenantPass:
    """Passes over InferenceTenants."""

    def __init__(self, dependencies: Dependencies) -> None:
        given = self._deps = dependencies
        self._failures = Failures(
            Reporter(given.store, given.observer, given.applier, clock=given.clock)
        )
        self._parsed: dict[str, dict[tuple[str, int], FairInferenceService | None]] = {}
        """Namespace → uid and generation → the service: reading hundreds for every tenant costs most of a pass."""

    async def __call__(self, key: Key) -> float | None:
        """One pass. Returns the seconds until the next one without an event. Raises `ClusterError`, which is in the status then."""
        return await self._failures.watched(key, self._pass(key))

    async def _pass(self, key: Key) -> float | None:
        dependencies = self._deps
        if key.namespace in dependencies.store.terminating:
            return None
        # 1. Observe: the tenants of the namespace, their keys, its services.
        roster = await dependencies.observer.roster(key.namespace)
        raw = dependencies.store.named(TENANT, key.namespace).get(key.name)
        own = roster.tenants.get(key.name)
        if raw is None or own is None:  # deleted, or being deleted
            return None
        await dependencies.observer.all_of(SERVICE, key.namespace)  # lists them, if need be
        users = dependencies.store.using_tenants_of(key.namespace)
        services = self._parse(key.namespace, users)

        # 2. Status: faults, keys that are missing or claimed twice, services.
        status = tenant_status(
            raw,
            tenant=own.resource,
            faults=own.faults,
            found=roster.findings.get(key.name, NO_FINDINGS),
            services=services,
            now=dependencies.clock().strftime(TIME_FORMAT),
        )
        await dependencies.applier.write_status(key, raw, status)
        return RESYNC_S

    def _parse(self, namespace: str, raw: Iterable[Object]) -> list[FairInferenceService]:
        known, found = self._parsed.get(namespace, {}), {}
        for item in raw:
            metadata = item["metadata"]
            where = (str(metadata["uid"]), int(metadata.get("generation", 0)))
            found[where] = (
                known[where] if where in known else parse_service(without_status(item))[0]
            )
        self._parsed[namespace] = found
        return [service for service in found.values() if service is not None]
