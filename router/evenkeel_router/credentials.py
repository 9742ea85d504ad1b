"""What runs beside the requests for credentials that are in no list: their revocations, and the keys of issuers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from aiohttp import ClientSession
from evenkeel_contract.pools import clusters_of
from evenkeel_contract.routerconfig import RouterConfig

from evenkeel_router.ledger.contacts import Peer
from evenkeel_router.ledger.key_sets import KeySetReader
from evenkeel_router.ledger.revocation_exchange import (
    FileStore,
    RevocationExchange,
    RevocationStore,
)
from evenkeel_router.request.intake import Intake
from evenkeel_router.settings import Settings

if TYPE_CHECKING:
    from evenkeel_kube.client import KubeClient


def revocation_exchange(
    settings: Settings,
    intake: Intake,
    peers: Callable[[], Sequence[Peer] | None],
    session: ClientSession,
    *,
    router: str,
    api: KubeClient | None,
) -> RevocationExchange:
    """The exchange of a router. `router`: its incarnation; `api`: the API of its cluster."""
    return RevocationExchange(
        intake.revocations,
        session,
        router=router,
        peers=peers,
        token=lambda: settings.config.state.peer_token,
        interval_s=lambda: settings.config.state.exchange_interval_s,
        store=lambda: _store(settings.config, api),
        changed=intake.revoked,
    )


def key_set_reader(settings: Settings, intake: Intake, session: ClientSession) -> KeySetReader:
    """What reads the keys of the issuers of the configuration in force."""

    def urls() -> frozenset[str]:
        issuers = settings.config.tenancy.jwt or ()
        return frozenset(one.jwks_URL for one in issuers if one.jwks_URL is not None)

    return KeySetReader(intake.key_sets, session, urls=urls, changed=intake.forget)


def _store(config: RouterConfig, api: KubeClient | None) -> RevocationStore | None:
    """What keeps revocations while no router runs; None if nothing is configured for it."""
    if config.state.revocations is not None:
        return FileStore(Path(config.state.revocations))
    names = [one.revocations for one in clusters_of(config) if one.revocations is not None]
    if api is not None and names:
        from evenkeel_router.cluster.revocation_store import ConfigMapStore  # with the API's client

        return ConfigMapStore(api, config.namespace, names[0])
    return None
