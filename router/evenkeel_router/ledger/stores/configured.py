"""Which store the configuration asks for.

With store Peers there is none: routers pull what they need from each other.
"""

from __future__ import annotations

from pathlib import Path

from evenkeel_contract.routerconfig import RouterConfig, StateStore

from evenkeel_router.ledger.stores.clock import Clock
from evenkeel_router.ledger.stores.contract import LedgerStore
from evenkeel_router.ledger.stores.file import FileStore
from evenkeel_router.ledger.stores.redis import RedisStore


def store_of(config: RouterConfig, now: Clock) -> LedgerStore | None:
    """A store that has touched nothing yet."""
    state = config.state
    if state.store is StateStore.FILE and state.file is not None:
        return FileStore(Path(state.file))
    if state.store is StateStore.REDIS and state.redis_url is not None:
        service = f"{config.namespace}/{config.service}"
        return RedisStore(state.redis_url, service=service, clock=now)
    return None
