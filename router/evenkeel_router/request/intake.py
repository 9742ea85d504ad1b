"""What every request passes on its way in: the directory of clients, admission, and memory for bodies."""

from __future__ import annotations

import time
from collections.abc import Generator, Mapping, Sequence
from copy import copy
from dataclasses import replace
from math import inf
from typing import Final

from evenkeel_contract.revocations import Revocation, RevocationList
from evenkeel_contract.routerconfig import RouterConfig, VolatileLines

from evenkeel_router.api.cors import Cors
from evenkeel_router.api.identity import Directory, Verifier
from evenkeel_router.api.inference import Limits
from evenkeel_router.api.local_directory import LocalDirectory
from evenkeel_router.api.own_keys import KeyUses
from evenkeel_router.api.tenant_change import TenantChange
from evenkeel_router.api.token_keys import KeySets
from evenkeel_router.ledger.limit_parts import LimitParts
from evenkeel_router.request import own_answers
from evenkeel_router.request.abandoned import Abandoned
from evenkeel_router.request.admission import Admission, BodyMemory
from evenkeel_router.request.attempt import Attempt
from evenkeel_router.request.audit import Audit
from evenkeel_router.request.request_state import RequestState
from evenkeel_router.transport.client_request import Request

MAX_BUFFERED_BYTES: Final = 1024 * 1024 * 1024


class _PoolRequests(set[RequestState]):
    """The active requests of one of several services, which are also those of the router."""

    def __init__(self, of_router: set[RequestState]) -> None:
        super().__init__()
        self._of_router = of_router

    def add(self, request_state: RequestState) -> None:
        """A request begins."""
        super().add(request_state)
        self._of_router.add(request_state)

    def discard(self, request_state: object) -> None:
        """A request is over."""
        super().discard(request_state)
        self._of_router.discard(request_state)


class Intake:
    """One router's intake. A changed configuration does not touch requests in flight."""

    def __init__(self, config: RouterConfig, limit_parts: LimitParts) -> None:
        self.limit_parts = limit_parts
        self.admission = Admission(config.limits, limit_parts)
        self.body_memory = BodyMemory(MAX_BUFFERED_BYTES)
        self.active_requests: set[RequestState] = set()
        """Requests between admission and their end."""
        self.unanswered: set[Attempt] = set()
        """Attempts of active requests at replicas, whose client was sent nothing yet."""
        self.content_s: dict[str, float] = {}
        """URL of a replica → when it last sent content to a client, seconds of the loop's clock, within a quarter of a second."""
        self.abandoned = Abandoned()
        """Requests whose clients left without a token."""
        self.draining = False
        """Whether the router ends, so that every answer closes its connection."""
        self.refuses_from_s = inf
        """Requests of connections that were opened later are refused, seconds of the loop's clock."""
        self.started_unix = time.time()
        self.revocations = RevocationList()
        self.key_sets = KeySets()
        self.key_uses = KeyUses()
        self.audit = Audit(time.monotonic)
        self.configured_directory = self.directory = self._directory(config)
        """The directory with the configured weights; and the one in force, with those of `local_weights`."""
        self.local_weights: Mapping[str, float] = {}
        """Tenant → its weight in this cell (R21) or in one of several services (R22), where it is not the configured one."""
        self.apply(config)

    def let_in(self, request: Request) -> None:
        """While the router ends, its answers close connections; raises `Refusal` where one was opened late."""
        request.keep_alive = False
        if request.connection.opened_s >= self.refuses_from_s:
            raise own_answers.shutting_down()

    def revoked(self, added: Sequence[Revocation], by: str) -> None:
        """Revocations are new here: credentials that were verified before are verified again."""
        self.forget()
        self.audit.revoked(added, by)

    def forget(self) -> None:
        """Verify each credential again."""
        self.directory.forget()
        self.configured_directory.forget()  # it is in force again where the weights are the configured ones

    def _tokens(self, config: RouterConfig) -> Verifier | None:
        """What verifies tokens; None if no issuer is configured: then the cryptography is not loaded."""
        if not config.tenancy.jwt:
            return None
        from evenkeel_router.api.tokens import Tokens

        return Tokens(
            config.tenancy.jwt, self.key_sets, self.revocations, namespace=config.namespace
        ).verified

    def apply(self, config: RouterConfig) -> None:
        """Use a configuration, except for the directory (`directories`)."""
        self.limits = limits_of(config)
        self.cors = Cors(config.cors_origins) if config.cors_origins else None
        """Headers for pages of other origins; None if no origin is allowed."""
        self.admission.limits = config.limits
        self.heartbeat_s = config.limits.heartbeat_s
        """Interval of signs of life; None: there are none."""

    def _directory(self, config: RouterConfig) -> Directory:
        # All routers of a service have the same admin token, so they derive the same salts.
        return Directory(
            config.tenancy,
            namespace=config.namespace,
            salt_key=config.admin_token_sha256 or "",
            revocations=self.revocations,
            tokens=self._tokens(config),
            uses=self.key_uses,
            clock=time.time,
        )

    def directories(
        self, config: RouterConfig, before: RouterConfig, change: TenantChange
    ) -> Generator[None, None, Directory]:
        """The directory of a changed configuration, in steps."""
        if _identifies(config) == _identifies(before):
            return (yield from self.configured_directory.changed(change))
        empty = self._directory(replace(config, tenancy=replace(config.tenancy, tenants=())))
        return (yield from empty.changed(TenantChange((), config.tenancy.tenants)))

    def of_pool(self, config: RouterConfig) -> Intake:
        """The intake of one of several services: its requests have limits of their own, and all else is that of this one."""
        own = copy(self)
        # Attempts are at its own replicas, whose names another service may have, too.
        own.unanswered = set()
        own.active_requests = _PoolRequests(self.active_requests)
        own.limits, own.heartbeat_s = limits_of(config), config.limits.heartbeat_s
        return own

    def follow(self, shared: Intake, config: RouterConfig) -> None:
        """Use a changed configuration in the intake of one of several services."""
        self.use(shared.configured_directory)
        self.cors = shared.cors
        self.limits, self.heartbeat_s = limits_of(config), config.limits.heartbeat_s

    def use(self, directory: Directory) -> None:
        """Use a changed directory."""
        self.configured_directory = directory
        self.reweigh(self.local_weights)

    def reweigh(self, local_weights: Mapping[str, float]) -> None:
        """Use other weights of tenants than the configured ones."""
        self.local_weights, directory = local_weights, self.configured_directory
        self.directory = LocalDirectory(directory, local_weights) if local_weights else directory


def limits_of(config: RouterConfig) -> Limits:
    """What a body may ask for."""
    return Limits(
        config.model,
        config.limits.max_output_tokens,
        frozenset(config.adapters),
        frozenset(config.model_aliases),
        frozenset(config.allow_fields),
        config.prefix.volatile_lines is VolatileLines.KEEP,
    )


def _identifies(config: RouterConfig) -> tuple[object, ...]:
    """What decides on clients, beside the tenants."""
    tenancy = replace(config.tenancy, tenants=())
    return config.namespace, config.admin_token_sha256, tenancy
