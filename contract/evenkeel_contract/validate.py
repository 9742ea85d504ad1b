"""Reads both resources and checks the rules across their fields.

Each rule is a function named after the fault that it finds. It reads a salvaged resource, yields faults with their
paths and never raises. The operator reports them in condition SpecValid; `evenkeel up` prints them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final, TypeVar

from evenkeel_contract.decode import salvage
from evenkeel_contract.engineflags import (
    BYPASSING_FLAGS,
    BYPASSING_VARIABLES,
    OWNED_FLAGS,
    canonical,
    one_of,
)
from evenkeel_contract.federationconfig import LEAST_INTERVAL_S, MAX_INTERVAL_S, own_name_faults
from evenkeel_contract.names import ROUTER_FIELDS
from evenkeel_contract.routerconfig import StateStore
from evenkeel_contract.spec.gateway import FairInferenceGateway
from evenkeel_contract.spec.parts import Runtime
from evenkeel_contract.spec.resources import FairInferenceService, InferenceTenant, LabelSelector
from evenkeel_contract.validatemodel import MODEL_RULES
from evenkeel_contract.validateshared import EXPOSURE_RULES, TENANCY_RULES
from evenkeel_contract.values import Fault, Quantity, did_you_mean, show, without_echoes

_Resource = TypeVar("_Resource")

OWNED_ALERT_LABELS: Final = ("alertname", "namespace", "service", "severity")
"""Labels that identify and route an alert."""


def parse_service(data: object) -> tuple[FairInferenceService | None, tuple[Fault, ...]]:
    """Read a FairInferenceService: the resource, or None and every fault. Never raises."""
    service, faults = salvage_service(data)
    return (None if faults else service), faults


def parse_tenant(data: object) -> tuple[InferenceTenant | None, tuple[Fault, ...]]:
    """Read an InferenceTenant: the resource, or None and every fault. Never raises."""
    tenant, faults = salvage_tenant(data)
    return (None if faults else tenant), faults


def salvage_service(data: object) -> tuple[FairInferenceService, tuple[Fault, ...]]:
    """Like `parse_service`, but always returns a resource, for rules between resources.

    Invalid fields have replacement values; filter the faults of further rules with `without_echoes`.
    """
    return salvage_by(FairInferenceService, data, SERVICE_RULES)


def salvage_tenant(data: object) -> tuple[InferenceTenant, tuple[Fault, ...]]:
    """Like `salvage_service`, for an InferenceTenant."""
    return salvage_by(InferenceTenant, data, TENANT_RULES)


def salvage_by(
    cls: type[_Resource], data: object, rules: Sequence[Callable[[_Resource], Iterable[Fault]]]
) -> tuple[_Resource, tuple[Fault, ...]]:
    """A resource and its faults, those of `rules` included."""
    resource, faults = salvage(cls, data)
    found = [fault for rule in rules for fault in rule(resource)]
    return resource, faults + tuple(without_echoes(found, faults))


def name_begins_with_a_digit(
    service: FairInferenceService | FairInferenceGateway,
) -> Iterator[Fault]:
    name = service.metadata.name
    if name[:1].isdigit():
        yield Fault(
            "metadata.name",
            f"{show(name)} must begin with a letter, since Services are named after it; "
            "create the service under another name",
        )


def adapters_have_the_name_of_the_model(service: FairInferenceService) -> Iterator[Fault]:
    model = service.spec.model
    for index, adapter in enumerate(model.adapters):
        if adapter.name == model.name:
            yield Fault(
                f"spec.model.adapters[{index}].name",
                f"{show(adapter.name)} is also the model's name; choose another name",
                about=("spec.model.servedName", "spec.model.source"),
            )


def runtime_and_external_differ(service: FairInferenceService) -> Iterator[Fault]:
    engine = service.spec.engine
    is_external = engine.runtime is Runtime.EXTERNAL
    if is_external and engine.external is None:
        yield Fault(
            "spec.engine.external",
            "is required with runtime External; set its selector and port",
            about=("spec.engine.runtime",),
        )
    if not is_external and engine.external is not None:
        yield Fault(
            "spec.engine.external",
            f"needs runtime: External, not {engine.runtime.value}; remove external or set runtime: External",
            about=("spec.engine.runtime",),
        )


def external_selector_is_empty(service: FairInferenceService) -> Iterator[Fault]:
    external = service.spec.engine.external
    if external is not None and external.selector is not None and not external.labels:
        yield Fault(
            "spec.engine.external.selector.matchLabels",
            "must have at least one label, else all pods of the namespace would be engines",
        )


def external_pods_are_named_twice_or_not_at_all(service: FairInferenceService) -> Iterator[Fault]:
    external = service.spec.engine.external
    if external is None:
        return
    path = "spec.engine.external"
    own = {"selector": external.selector, "port": external.port}
    if external.inference_pool is None:
        for name, value in own.items():
            if value is None:
                message = "is required without inferencePool; set selector and port"
                yield Fault(f"{path}.{name}", message, about=(f"{path}.inferencePool",))
    elif any(value is not None for value in own.values()):
        yield Fault(
            f"{path}.inferencePool",
            "is set together with selector or port; remove it, or remove both of them",
            about=tuple(f"{path}.{name}" for name in own),
        )


def external_pods_are_described(service: FairInferenceService) -> Iterator[Fault]:
    spec = service.spec
    if spec.engine.runtime is not Runtime.EXTERNAL:
        return
    described = {
        "spec.model.objectStore": spec.model.object_store,
        "spec.model.cache": spec.model.cache,
        "spec.engine.image": spec.engine.image,
        "spec.engine.replicas": spec.engine.replicas,
        "spec.engine.args": spec.engine.args or None,
    }
    for path, value in described.items():
        if value is not None:
            yield Fault(
                path,
                "has no effect with runtime External, since another owner makes the pods; remove it",
                about=("spec.engine.runtime",),
            )


def external_template_is_given(service: FairInferenceService) -> Iterator[Fault]:
    template = service.spec.engine.template
    if service.spec.engine.runtime is Runtime.EXTERNAL and (template.metadata or template.spec):
        yield Fault(
            "spec.engine.template",
            "has no effect with runtime External, since another owner makes the pods; remove it",
            about=("spec.engine.runtime",),
        )


def external_pods_cannot_be_scaled(service: FairInferenceService) -> Iterator[Fault]:
    spec = service.spec
    external = spec.engine.external
    if (
        spec.engine.runtime is Runtime.EXTERNAL
        and spec.autoscaling is not None
        and (external is None or external.scale_target_ref is None)
    ):
        yield Fault(
            "spec.autoscaling",
            "needs spec.engine.external.scaleTargetRef with runtime External; set it, or remove autoscaling",
            about=("spec.engine.external", "spec.engine.runtime"),
        )


def replicas_and_autoscaling_are_both_given(service: FairInferenceService) -> Iterator[Fault]:
    spec = service.spec
    if spec.engine.replicas is not None and spec.autoscaling is not None:
        yield Fault(
            "spec.engine.replicas",
            "is set together with spec.autoscaling; remove one of the two",
            about=("spec.autoscaling",),
        )


def scaling_bounds_are_crossed(service: FairInferenceService) -> Iterator[Fault]:
    scaling = service.spec.autoscaling
    if scaling is not None and scaling.min_replicas > scaling.max_replicas:
        yield Fault(
            "spec.autoscaling.minReplicas",
            f"{scaling.min_replicas} is above maxReplicas {scaling.max_replicas}; lower it or raise maxReplicas",
            about=("spec.autoscaling.maxReplicas",),
        )


def cap_per_client_is_out_of_range(service: FairInferenceService) -> Iterator[Fault]:
    scaling = service.spec.autoscaling
    if scaling is None:
        return
    cap = scaling.max_replicas_per_client
    path = "spec.autoscaling.maxReplicasPerClient"
    if cap.count == 0 or cap.percent == 0:
        yield Fault(path, "must be above 0, else a client's requests cannot start a replica")
    elif cap.count is not None and cap.count > scaling.max_replicas:
        yield Fault(
            path,
            f"{cap.count} is above maxReplicas {scaling.max_replicas}; lower it or use a percentage",
            about=("spec.autoscaling.maxReplicas",),
        )


def rollout_cannot_move(service: FairInferenceService) -> Iterator[Fault]:
    rollout = service.spec.engine.rollout
    if rollout.max_surge.of(100) == 0 and rollout.max_unavailable.of(100) == 0:
        yield Fault(
            "spec.engine.rollout.maxSurge",
            "must be above 0 if maxUnavailable is 0, else a rollout could not replace any replica",
            about=("spec.engine.rollout.maxUnavailable",),
        )


def arguments_are_owned(service: FairInferenceService) -> Iterator[Fault]:
    for index, argument in enumerate(service.spec.engine.args):
        path = f"spec.engine.args[{index}]"
        flag = canonical(argument.split("=", 1)[0])
        if not flag.startswith("--"):
            yield Fault(
                path, f"must be a flag, not {show(argument)}; write --flag=value as one entry"
            )
        elif owned := one_of(OWNED_FLAGS, flag):
            yield Fault(path, f"{owned} is set by Evenkeel from the rest of the spec; remove it")
        elif bypassing := one_of(BYPASSING_FLAGS, flag):
            yield Fault(path, f"{bypassing} lets requests bypass the replica policy; remove it")


def template_bypasses_the_policy(service: FairInferenceService) -> Iterator[Fault]:
    containers = service.spec.engine.template.spec.get("containers")
    for index, container in enumerate(containers if isinstance(containers, list) else ()):
        listed = container.get("env") if isinstance(container, Mapping) else None
        for number, entry in enumerate(listed if isinstance(listed, list) else ()):
            name = entry.get("name") if isinstance(entry, Mapping) else None
            if name in BYPASSING_VARIABLES:
                path = f"spec.engine.template.spec.containers[{index}].env[{number}]"
                yield Fault(path, f"{name} lets requests bypass the replica policy; remove it")


def file_store_has_several_routers(service: FairInferenceService) -> Iterator[Fault]:
    router = service.spec.router
    if router.state.store is StateStore.FILE and router.count > 1:
        yield Fault(
            "spec.router.replicas",
            f"must be 1 with state.store File, not {router.count}; use Peers or Redis for more routers",
            about=("spec.router.state.store",),
        )


def store_and_its_settings_differ(service: FairInferenceService) -> Iterator[Fault]:
    state = service.spec.router.state
    for name, store in (("file", StateStore.FILE), ("redis", StateStore.REDIS)):
        if getattr(state, name) is not None and state.store is not store:
            yield Fault(
                f"spec.router.state.{name}",
                f"needs store: {store.value}, not {state.store.value}; remove {name} or set store: {store.value}",
                about=("spec.router.state.store",),
            )
    if state.store is StateStore.REDIS and state.redis is None:
        yield Fault(
            "spec.router.state.redis",
            "is required with store Redis; set redis.urlSecretRef",
            about=("spec.router.state.store",),
        )


def body_is_beyond_reason(size: Quantity) -> Iterator[Fault]:
    """Faults of `spec.router.limits.maxBodySize`."""
    if size.whole > 1024**3:
        path = "spec.router.limits.maxBodySize"
        yield Fault(path, "must be at most 1Gi, since routers keep a request in memory")


def limits_are_beyond_reason(service: FairInferenceService) -> Iterator[Fault]:
    limits, qoe = service.spec.router.limits, service.spec.router.qoe
    yield from body_is_beyond_reason(limits.max_body_size)
    times = {
        "limits.queueTimeout": limits.queue_timeout,
        "limits.firstTokenTimeout": limits.first_token_timeout,
        "limits.activationTimeout": limits.activation_timeout,
        "limits.answerTimeout": limits.answer_timeout,
        "limits.keepAliveTimeout": limits.keep_alive_timeout,
    }
    if limits.heartbeat is not None:
        times["limits.heartbeat"] = limits.heartbeat
    if qoe is not None:
        times |= {"qoe.expectedTtft": qoe.expected_ttft, "qoe.expectedItl": qoe.expected_itl}
    for name, time in times.items():
        if time.seconds > 7 * 24 * 3600:
            yield Fault(f"spec.router.{name}", f"must be at most 168h, not {time.text}")


def routers_field_is_allowed(service: FairInferenceService) -> Iterator[Fault]:
    named = [name for name in service.spec.router.allow_fields if name in ROUTER_FIELDS]
    if named:
        message = f"names a field that routers set themselves; remove it: {', '.join(named)}"
        yield Fault("spec.router.allowFields", message)


def selector_values_do_not_fit(service: FairInferenceService) -> Iterator[Fault]:
    yield from values_do_not_fit("spec.tenancy.selector", service.spec.tenancy.selector)


def values_do_not_fit(where: str, selector: LabelSelector) -> Iterator[Fault]:
    """Faults of a selector at a path."""
    for index, term in enumerate(selector.match_expressions):
        path = f"{where}.matchExpressions[{index}].values"
        takes = term.operator.value in ("In", "NotIn")
        if takes and not term.values:
            yield Fault(path, f"is required with operator {term.operator.value}; add at least one")
        if not takes and term.values:
            yield Fault(path, f"must be empty with operator {term.operator.value}; remove them")


def alert_labels_are_no_labels(service: FairInferenceService) -> Iterator[Fault]:
    for name in service.spec.slo.alert_labels:
        path = f"spec.slo.alertLabels[{show(name)}]"
        if re.fullmatch(r"(?!__)[a-zA-Z_][a-zA-Z0-9_]*", name, re.ASCII) is None:
            yield Fault(
                path,
                "must be a Prometheus label name: letters, digits and _, not starting with a digit",
            )
        if name in OWNED_ALERT_LABELS:
            yield Fault(path, "is set by Evenkeel; choose another name")


def cells_name_this_cell(service: FairInferenceService) -> Iterator[Fault]:
    federation = service.spec.federation
    if federation is not None:
        names = [cell.name for cell in federation.cells]
        yield from own_name_faults(federation.cell, names, "spec.federation")


def exchange_is_too_fast_or_too_slow(service: FairInferenceService) -> Iterator[Fault]:
    federation = service.spec.federation
    if federation is None:
        return
    interval = federation.interval
    if not LEAST_INTERVAL_S <= interval.seconds <= MAX_INTERVAL_S:
        yield Fault("spec.federation.interval", f"must be from 100ms to 10m, not {interval.text}")


SERVICE_RULES: Final[Sequence[Callable[[FairInferenceService], Iterable[Fault]]]] = (
    # In the order of the document's fields, so that faults appear from top to bottom.
    name_begins_with_a_digit,
    *MODEL_RULES,
    runtime_and_external_differ,
    external_selector_is_empty,
    external_pods_are_named_twice_or_not_at_all,
    external_pods_are_described,
    external_template_is_given,
    external_pods_cannot_be_scaled,
    adapters_have_the_name_of_the_model,
    replicas_and_autoscaling_are_both_given,
    arguments_are_owned,
    template_bypasses_the_policy,
    rollout_cannot_move,
    file_store_has_several_routers,
    store_and_its_settings_differ,
    limits_are_beyond_reason,
    routers_field_is_allowed,
    scaling_bounds_are_crossed,
    cap_per_client_is_out_of_range,
    *EXPOSURE_RULES,
    alert_labels_are_no_labels,
    selector_values_do_not_fit,
    *TENANCY_RULES,
    cells_name_this_cell,
    exchange_is_too_fast_or_too_slow,
)


def keys_name_unknown_clients(tenant: InferenceTenant) -> Iterator[Fault]:
    names = [client.name for client in tenant.spec.clients]
    for index, key in enumerate(tenant.spec.api_keys):
        if key.client not in names:
            guess = did_you_mean(key.client, names)
            yield Fault(
                f"spec.apiKeys[{index}].client",
                f"{show(key.client)} is not in spec.clients{guess or '; add it there'}",
                about=("spec.clients",),
            )


def keys_share_a_secret(tenant: InferenceTenant) -> Iterator[Fault]:
    first: dict[tuple[str, str], int] = {}
    for index, key in enumerate(tenant.spec.api_keys):
        ref = (key.secret_ref.name, key.secret_ref.key)
        seen = first.setdefault(ref, index)
        if seen != index:
            yield Fault(
                f"spec.apiKeys[{index}].secretRef",
                f"is the same as in spec.apiKeys[{seen}]; a key can identify only one client",
                about=(f"spec.apiKeys[{seen}].secretRef",),
            )


TENANT_RULES: Final[Sequence[Callable[[InferenceTenant], Iterable[Fault]]]] = (
    keys_name_unknown_clients,
    keys_share_a_secret,
)
