"""Several services behind one router: what each has of its own, and the rules between them (docs/design/gateway.md)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields, replace
from typing import Final

from evenkeel_contract.recordingconfig import RecordingConfig
from evenkeel_contract.routerconfig import (
    ClusterConfig,
    PoolConfig,
    RouterConfig,
    ShareAcross,
    StateConfig,
)
from evenkeel_contract.values import Fault, did_you_mean, show

_SHARED_FIELDS: Final = tuple(
    found.name
    for found in fields(PoolConfig)
    if found.name in {own.name for own in fields(RouterConfig)}
)


def config_of_pool(config: RouterConfig, pool: PoolConfig) -> RouterConfig:
    """The configuration of one service of a router, as a router of that service alone has it.

    Tenants, keys, peers and the admin token are the router's. A file of the ledger or of a recording has the service's name at its end.
    """
    own = {name: getattr(pool, name) for name in _SHARED_FIELDS}
    own["recording"] = _recording_of(pool)
    own["state"] = _state_of(config.state, pool)
    return replace(config, pools=(), federation=None, share_across=None, **own)


def configs_of(config: RouterConfig) -> tuple[RouterConfig, ...]:
    """The configuration of every service: of the only one, or of each pool."""
    return tuple(config_of_pool(config, pool) for pool in config.pools) or (config,)


def clusters_of(config: RouterConfig) -> tuple[ClusterConfig, ...]:
    """Where the fleets of a router on a cluster are discovered."""
    found = (config.cluster, *(pool.cluster for pool in config.pools))
    return tuple(one for one in found if one is not None)


def offered_names(pool: PoolConfig) -> tuple[str, ...]:
    """What clients send as `model`, the usual name first."""
    return pool.names or (pool.model, *pool.model_aliases)


def check_pools(config: RouterConfig) -> Iterator[Fault]:
    """The rules between the services of a router."""
    if config.pools and (config.replicas or config.cluster is not None):
        given = "replicas" if config.replicas else "cluster"
        yield Fault(given, "is set together with pools; each pool has its own")
    if config.pools and config.federation is not None:
        message = "a router of several services has no other cells; remove it, or give each service its own router"
        yield Fault("federation", message)
    if config.share_across is ShareAcross.GATEWAY and not config.pools:
        yield Fault("shareAcross", "is set for one model, which shares with no other; remove it")
    first: dict[str, str] = {}
    for p, pool in enumerate(config.pools):
        if pool.cluster is not None and pool.replicas:
            message = "is set together with cluster; remove one of the two"
            yield Fault(f"pools[{p}].replicas", message)
        for name in dict.fromkeys(offered_names(pool)):
            seen = first.setdefault(name, f"pools[{p}]")
            if seen != f"pools[{p}]":
                message = f"{show(name)} is also a name of {seen}; each model needs its own"
                yield Fault(f"pools[{p}].{'names' if pool.names else 'model'}", message)
    yield from _fallbacks(config, first)


def _fallbacks(config: RouterConfig, owners: Mapping[str, str]) -> Iterator[Fault]:
    """`owners`: name of a model → the path of its pool."""
    for p, pool in enumerate(config.pools):
        for f, name in enumerate(pool.fallback):
            path = f"pools[{p}].fallback[{f}]"
            if name not in owners:
                message = f"{show(name)} is no model of another pool{did_you_mean(name, owners)}"
                yield Fault(path, message)
            elif owners[name] == f"pools[{p}]":
                yield Fault(path, f"{show(name)} is the model itself; name another one")


def _state_of(state: StateConfig, pool: PoolConfig) -> StateConfig:
    return state if state.file is None else replace(state, file=f"{state.file}.{pool.service}")


def _recording_of(pool: PoolConfig) -> RecordingConfig | None:
    given = pool.recording
    return None if given is None else replace(given, file=f"{given.file}.{pool.service}")
