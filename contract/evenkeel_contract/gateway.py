"""Reads a FairInferenceGateway and checks the rules across its fields; its models, and the RouterConfig of its routers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Final

from evenkeel_contract.render import CredentialSecrets, KeyHashes, selects, serves, tenancy_of
from evenkeel_contract.routerconfig import (
    LimitsConfig,
    ListenConfig,
    PoolConfig,
    RouterConfig,
    ShareAcross,
    StateConfig,
)
from evenkeel_contract.spec.gateway import FairInferenceGateway
from evenkeel_contract.spec.resources import FairInferenceService, InferenceTenant
from evenkeel_contract.validate import (
    body_is_beyond_reason,
    name_begins_with_a_digit,
    salvage_by,
    values_do_not_fit,
)
from evenkeel_contract.validateshared import EXPOSURE_RULES, TENANCY_RULES
from evenkeel_contract.values import Fault, show


def parse_gateway(data: object) -> tuple[FairInferenceGateway | None, tuple[Fault, ...]]:
    """Read a FairInferenceGateway: the resource, or None and every fault. Never raises."""
    gateway, faults = salvage_gateway(data)
    return (None if faults else gateway), faults


def salvage_gateway(data: object) -> tuple[FairInferenceGateway, tuple[Fault, ...]]:
    """Like `parse_gateway`, but always returns a resource, for rules between resources."""
    return salvage_by(FairInferenceGateway, data, GATEWAY_RULES)


@dataclass(frozen=True, slots=True)
class Member:
    """A service behind a gateway."""

    service: FairInferenceService
    names: tuple[str, ...]
    """Names that clients send; empty: those that the service has itself."""
    fallback: tuple[str, ...] = ()
    """Names of models that serve in its place."""

    @property
    def offered(self) -> tuple[str, ...]:
        """What clients send as `model`."""
        return self.names or (self.service.spec.model.name,)


@dataclass(frozen=True, slots=True)
class Members:
    """The services behind a gateway, and what could not be served."""

    found: tuple[Member, ...]
    missing: tuple[tuple[int, str], ...]
    """(index in `spec.models`, name of a service that does not exist)."""
    clashing: tuple[tuple[str, str, str], ...]
    """(service, model name, the earlier service that has it)."""


def members_of(gateway: FairInferenceGateway, services: Iterable[FairInferenceService]) -> Members:
    """The services of `gateway` in the order of its models, then by name. Of two with one model name, the first is served."""
    namespace = gateway.metadata.namespace
    known = {one.metadata.name: one for one in services if one.metadata.namespace == namespace}
    found: dict[str, Member] = {}
    missing: list[tuple[int, str]] = []
    clashing: list[tuple[str, str, str]] = []
    owners: dict[str, str] = {}

    def add(member: Member) -> None:
        own = member.service.metadata.name
        if own in found:
            return
        taken = [(name, owners[name]) for name in member.offered if name in owners]
        if taken:
            clashing.append((own, *taken[0]))
            return
        found[own] = member
        owners.update(dict.fromkeys(member.offered, own))

    for index, model in enumerate(gateway.spec.models):
        if model.service_ref is not None:
            service = known.get(model.service_ref.name)
            if service is None:
                missing.append((index, model.service_ref.name))
                continue
            names = () if model.name is None else (model.name, *model.aliases)
            add(Member(service, names, model.fallback))
        elif model.service_selector is not None:
            for name in sorted(known):
                if selects(model.service_selector, known[name].metadata.labels):
                    add(Member(known[name], (), model.fallback))
    return Members(tuple(found.values()), tuple(missing), tuple(clashing))


def gateway_config(  # noqa: PLR0913 - each is one source of the configuration
    gateway: FairInferenceGateway,
    members: Sequence[Member],
    *,
    configs: Mapping[str, RouterConfig],
    tenants: Iterable[InferenceTenant],
    key_hashes: KeyHashes | None,
    credentials: CredentialSecrets,
    listen: ListenConfig,
    admin_token_sha256: str | None = None,
    state: StateConfig | None = None,
) -> RouterConfig:
    """The configuration of the routers of `gateway`. `configs`: service → the configuration that routers of it alone would have.
    `key_hashes`: None leaves the tenants out of the configuration."""
    spec, namespace = gateway.spec, gateway.metadata.namespace
    selected = [tenant for tenant in tenants if serves(gateway, tenant)]
    limits, cors = spec.router.limits, spec.exposure.cors
    return RouterConfig(
        namespace=namespace,
        service=gateway.metadata.name,
        model=gateway.metadata.name,
        pools=tuple(
            _pool(
                member,
                configs,
                selected,
                others=_names_of_others(member, members),
                shares=spec.share_across is ShareAcross.GATEWAY,
            )
            for member in members
        ),
        share_across=None if spec.share_across is ShareAcross.NONE else spec.share_across,
        listen=listen,
        limits=LimitsConfig(
            max_body_bytes=limits.max_body_size.whole,
            keep_alive_timeout_s=limits.keep_alive_timeout.seconds,
            max_concurrent_per_client=limits.max_concurrent_per_client,
        ),
        tenancy=(
            tenancy_of(spec.tenancy, (), {}, credentials)
            if key_hashes is None
            else tenancy_of(spec.tenancy, selected, key_hashes, credentials)
        ),
        state=state or StateConfig(),
        cors_origins=() if cors is None else cors.allow_origins,
        admin_token_sha256=admin_token_sha256,
        tracing=spec.router.tracing,
    )


_POOL_FIELDS: Final = tuple(
    found.name
    for found in fields(PoolConfig)
    if found.name in {own.name for own in fields(RouterConfig)}
)


def unknown_fallbacks(members: Sequence[Member]) -> Iterator[tuple[str, str]]:
    """(model, fallback) of each fallback that is no other model of the gateway; it is left out."""
    for member in members:
        others = _names_of_others(member, members)
        for name in member.fallback:
            if name not in others:
                yield member.offered[0], name


def _names_of_others(member: Member, members: Sequence[Member]) -> frozenset[str]:
    return frozenset(name for other in members if other is not member for name in other.offered)


def _pool(
    member: Member,
    configs: Mapping[str, RouterConfig],
    tenants: Sequence[InferenceTenant],
    *,
    others: frozenset[str],
    shares: bool,
) -> PoolConfig:
    config = configs[member.service.metadata.name]
    allowed = sorted(tenant.metadata.name for tenant in tenants if serves(member.service, tenant))
    own = {name: getattr(config, name) for name in _POOL_FIELDS}
    own["tenants"] = None if len(allowed) == len(tenants) else tuple(allowed)
    own["fallback"] = tuple(name for name in member.fallback if name in others)
    own["gpus"] = member.service.spec.engine.gpu.count if shares else None
    return PoolConfig(names=member.names, **own)


def model_names_no_service_or_two(gateway: FairInferenceGateway) -> Iterator[Fault]:
    for index, model in enumerate(gateway.spec.models):
        path = f"spec.models[{index}]"
        if model.service_ref is None and model.service_selector is None:
            yield Fault(f"{path}.serviceRef", "is required without serviceSelector; name a service")
        if model.service_ref is not None and model.service_selector is not None:
            yield Fault(
                f"{path}.serviceSelector",
                "is set together with serviceRef; remove one of the two",
                about=(f"{path}.serviceRef",),
            )


def selected_models_are_renamed(gateway: FairInferenceGateway) -> Iterator[Fault]:
    for index, model in enumerate(gateway.spec.models):
        path = f"spec.models[{index}]"
        if model.service_selector is not None and model.name is not None:
            message = "needs serviceRef, since a selector may select several services; remove it"
            yield Fault(f"{path}.name", message, about=(f"{path}.serviceSelector",))
        if model.aliases and model.name is None:
            message = "needs name; set the model name that clients send"
            yield Fault(f"{path}.aliases", message, about=(f"{path}.name",))


def models_share_a_name(gateway: FairInferenceGateway) -> Iterator[Fault]:
    first: dict[str, str] = {}
    for index, model in enumerate(gateway.spec.models):
        names = [] if model.name is None else [("name", model.name)]
        names += [(f"aliases[{a}]", alias) for a, alias in enumerate(model.aliases)]
        for where, name in names:
            path = f"spec.models[{index}].{where}"
            seen = first.setdefault(name, path)
            if seen != path:
                message = f"{show(name)} is also {seen}; each name means one model"
                yield Fault(path, message, about=(seen,))


def selector_values_do_not_fit(gateway: FairInferenceGateway) -> Iterator[Fault]:
    selectors = [("spec.tenancy.selector", gateway.spec.tenancy.selector)]
    for index, model in enumerate(gateway.spec.models):
        if model.service_selector is not None:
            selectors.append((f"spec.models[{index}].serviceSelector", model.service_selector))
    for path, selector in selectors:
        yield from values_do_not_fit(path, selector)


def gateway_limits_are_beyond_reason(gateway: FairInferenceGateway) -> Iterator[Fault]:
    limits = gateway.spec.router.limits
    yield from body_is_beyond_reason(limits.max_body_size)
    if limits.keep_alive_timeout.seconds > 7 * 24 * 3600:
        message = f"must be at most 168h, not {limits.keep_alive_timeout.text}"
        yield Fault("spec.router.limits.keepAliveTimeout", message)


GATEWAY_RULES: Final[Sequence[Callable[[FairInferenceGateway], Iterable[Fault]]]] = (
    name_begins_with_a_digit,
    model_names_no_service_or_two,
    selected_models_are_renamed,
    models_share_a_name,
    gateway_limits_are_beyond_reason,
    *EXPOSURE_RULES,
    selector_values_do_not_fit,
    *TENANCY_RULES,
)
