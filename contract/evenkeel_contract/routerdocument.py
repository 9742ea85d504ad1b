"""The RouterConfig as a document: written, read, and checked as a whole."""

from __future__ import annotations

from collections.abc import Iterator
from ipaddress import ip_address
from typing import Final

import msgspec

from evenkeel_contract.decode import salvage, to_plain
from evenkeel_contract.federationconfig import federation_faults
from evenkeel_contract.identityheaders import NAMES_NO_TENANT, NO_PROXY, names_no_tenant
from evenkeel_contract.messages import UNREADABLE
from evenkeel_contract.names import ROUTER_FIELDS
from evenkeel_contract.pools import check_pools, clusters_of
from evenkeel_contract.routerconfig import (
    SIMULATOR_TOKENIZER,
    ListenConfig,
    PoolConfig,
    PrefixConfig,
    ReplicaConfig,
    RouterConfig,
    StateConfig,
    StateStore,
    TenancyConfig,
)
from evenkeel_contract.signedkeys import OUTLIVES_MAXIMUM, SELF_SERVICE_NEEDS_TOKENS
from evenkeel_contract.tokenissuers import issuer_faults
from evenkeel_contract.values import Fault, did_you_mean, show, without_echoes

THE_ROUTERS: Final = "names a field that routers set themselves; remove it"
MAX_CONFIG_BYTES: Final = 64 * 1024 * 1024


def dump_router_config(config: RouterConfig) -> bytes:
    """The JSON document. Equal configurations give equal bytes, so that a watcher can compare them."""
    return msgspec.json.format(msgspec.json.encode(to_plain(config)), indent=2) + b"\n"


def parse_router_config(data: bytes) -> tuple[RouterConfig | None, tuple[Fault, ...]]:
    """Read the JSON document: a configuration and no faults, or None and every fault. Never raises."""
    if len(data) > MAX_CONFIG_BYTES:
        return None, (Fault("", f"is longer than {MAX_CONFIG_BYTES} bytes"),)
    try:
        plain = msgspec.json.decode(data)
    except UNREADABLE as error:
        return None, (Fault("", f"is not JSON: {error}"),)
    config, faults = salvage(RouterConfig, plain)
    faults += tuple(without_echoes(check_router_config(config), faults))
    return (None if faults else config), faults


def check_router_config(config: RouterConfig) -> Iterator[Fault]:
    """The rules across fields of a configuration."""
    yield from _ports(config.listen)
    yield from _open_admin(config)
    if config.cluster is not None and config.replicas:
        yield Fault("replicas", "is set together with cluster; remove one of the two")
    yield from _store(config.state)
    yield from check_pools(config)
    yield from federation_faults(config.federation)
    yield from _of_service(config, "")
    for index, pool in enumerate(config.pools):
        yield from _of_service(pool, f"pools[{index}].")
    yield from _identity_headers(config.tenancy)
    yield from _revocations(config)
    yield from _self_service(config.tenancy)
    for index, name, message in issuer_faults(config.tenancy.jwt or ()):
        yield Fault(f"tenancy.jwt[{index}].{name}", message)
    first: dict[str, str] = {}
    for t, tenant in enumerate(config.tenancy.tenants):
        path = f"tenancy.tenants[{t}]"
        names = [client.name for client in tenant.clients]
        for k, key in enumerate(tenant.api_keys):
            where = f"{path}.apiKeys[{k}]"
            if key.client not in names:
                message = f"{show(key.client)} is not in {path}.clients"
                yield Fault(
                    f"{where}.client",
                    message + did_you_mean(key.client, names),
                    about=(f"{path}.clients",),
                )
            seen = first.setdefault(key.sha256, where)
            if seen != where:  # a request with this key would have two identities
                yield Fault(
                    f"{where}.sha256", f"is the same as in {seen}", about=(f"{seen}.sha256",)
                )


def _of_service(given: RouterConfig | PoolConfig, path: str) -> Iterator[Fault]:
    """The rules of one service; `path` is where its fields are."""
    for index, name in enumerate(given.allow_fields):
        if name in ROUTER_FIELDS:
            yield Fault(f"{path}allowFields[{index}]", THE_ROUTERS)
    yield from _events(given.replicas, path)
    yield from _tokenizer(given.prefix, path)


def _identity_headers(tenancy: TenancyConfig) -> Iterator[Fault]:
    path = "tenancy.identityHeaders"
    if tenancy.identity_headers and not tenancy.trusted_proxies:
        yield Fault(path, NO_PROXY, about=("tenancy.trustedProxies",))
    for index, entry in enumerate(tenancy.identity_headers or ()):
        if names_no_tenant(entry):
            yield Fault(f"{path}[{index}]", NAMES_NO_TENANT)


def _revocations(config: RouterConfig) -> Iterator[Fault]:
    if config.tenancy.signed_keys and not clusters_of(config) and config.state.revocations is None:
        yield Fault(
            "state.revocations",
            "is required with tenancy.signedKeys, so that revoked keys stay revoked after a restart; set the path of a file",
            about=("tenancy.signedKeys", "cluster"),
        )


def _self_service(tenancy: TenancyConfig) -> Iterator[Fault]:
    signed = tenancy.signed_keys
    if signed is None or signed.self_service is None:
        return
    path = "tenancy.signedKeys.selfService"
    if not tenancy.jwt:
        yield Fault(path, SELF_SERVICE_NEEDS_TOKENS, about=("tenancy.jwt",))
    if signed.self_service.lifetime_s > signed.max_lifetime_s:
        message = OUTLIVES_MAXIMUM.format(longest=f"maxLifetimeS ({signed.max_lifetime_s})")
        yield Fault(f"{path}.lifetimeS", message, about=("tenancy.signedKeys.maxLifetimeS",))


def _ports(listen: ListenConfig) -> Iterator[Fault]:
    taken: dict[int, str] = {}
    for name in ("traffic", "probe", "admin"):
        port = getattr(listen, f"{name}_port")
        other = taken.setdefault(port, name)
        if port and other != name:
            path = f"listen.{name}Port"
            yield Fault(
                path,
                f"{port} is also {other}Port; use different ports",
                about=(f"listen.{other}Port",),
            )


def _open_admin(config: RouterConfig) -> Iterator[Fault]:
    if config.admin_token_sha256 is None and not _is_loopback(config.listen.host):
        yield Fault(
            "adminTokenSha256",
            f"is required if listen.host ({show(config.listen.host)}) is not a loopback address; "
            "choose a secret token, and set this field to its SHA-256",
            about=("listen.host",),
        )


def _events(replicas: tuple[ReplicaConfig, ...], base: str) -> Iterator[Fault]:
    for r, replica in enumerate(replicas):
        given, lacking = ("kvEvents", "kvReplay") if replica.kv_events else ("kvReplay", "kvEvents")
        if (replica.kv_events is None) != (replica.kv_replay is None):
            path = f"{base}replicas[{r}]"
            yield Fault(
                f"{path}.{lacking}", f"is required with {given}", about=(f"{path}.{given}",)
            )


def _store(state: StateConfig) -> Iterator[Fault]:
    if state.store is StateStore.FILE and state.file is None:
        yield Fault("state.file", "is required with store File", about=("state.store",))
    url = state.redis_url
    if state.store is StateStore.REDIS and url is None:
        yield Fault("state.redisUrl", "is required with store Redis", about=("state.store",))
    if url is not None and not url.startswith(("redis://", "rediss://", "unix://")):
        # Without the value, which may contain a password.
        yield Fault("state.redisUrl", "is not an address like redis://:password@host:6379/0")


def _tokenizer(prefix: PrefixConfig, base: str) -> Iterator[Fault]:
    given = prefix.tokenizer
    if given is not None and given != SIMULATOR_TOKENIZER and not given.startswith("/"):
        message = f"must be an absolute path or {SIMULATOR_TOKENIZER!r}, not {show(given)}"
        yield Fault(f"{base}prefix.tokenizer", message)


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
