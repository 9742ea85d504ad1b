"""The rules of `validate` in CEL, for checks that a schema cannot express.

Each rule names the function in `validate` that finds the same fault. The operator alone finds the faults in
`LEFT_TO_SPEC_VALID`. Transition rules (`oldSelf`) have no such function: only the API server sees both versions.

Needs Kubernetes 1.31 or newer (`isCIDR`, `quantity`, `sets`, `fieldPath`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from evenkeel_contract.crd.model_rules import MODEL_RULES
from evenkeel_contract.crd.rule import SHORT_DURATION, Rule, on_field
from evenkeel_contract.crd.scalars import unless_no_quantity
from evenkeel_contract.crd.tenancy_rules import TENANCY_RULES
from evenkeel_contract.engineflags import BYPASSING_FLAGS, NO_FLAG_SHORTER_THAN, OWNED_FLAGS
from evenkeel_contract.names import ROUTER_FIELDS
from evenkeel_contract.spec.autoscaling import Autoscaling
from evenkeel_contract.spec.exposure import Exposure
from evenkeel_contract.spec.federation import Federation
from evenkeel_contract.spec.gateway import GatewayLimits, GatewayModel, GatewaySpec
from evenkeel_contract.spec.parts import (
    Engine,
    External,
    FileState,
    PodSelector,
    Qoe,
    Rollout,
    Router,
    RouterLimits,
    State,
)
from evenkeel_contract.spec.resources import (
    LabelSelectorRequirement,
    ServiceSpec,
    TenantSpec,
)

LEFT_TO_SPEC_VALID: Final[Mapping[str, str]] = {
    "exposure_takes_what_is_ours": "checks every name of unbounded maps, which exceeds CEL's cost budget",
    "exposure_annotations_are_code": "checks every entry of unbounded maps, which exceeds CEL's cost budget",
    "alert_labels_are_no_labels": "checks every name of an unbounded map, which exceeds CEL's cost budget",
    "keys_share_a_secret": "compares every pair of up to 1000 keys, which exceeds CEL's cost budget",
    "template_bypasses_the_policy": "reads a field without a schema, which CEL cannot",
    "external_template_is_given": "reads a field without a schema, which CEL cannot",
}

IN_THE_SCHEMA: Final = {
    "name_begins_with_a_digit": "the pattern of metadata.name; CEL would refuse each update of an older object",
}


def _within_a_week(
    name: str, *, given: bool = True, mirrors: str = "limits_are_beyond_reason"
) -> Rule:
    """`given`: whether the field always has a value."""
    rule = "" if given else f"!has(self.{name}) || "
    rule += f"!self.{name}.matches({SHORT_DURATION}) || duration(self.{name}) <= duration('168h')"
    return on_field(name, "must be at most 168h", mirrors=mirrors, rule=rule)


def _body_size(mirrors: str) -> Rule:
    return on_field(
        "maxBodySize",
        "must be at most 1Gi, since routers keep a request in memory",
        mirrors=mirrors,
        rule=unless_no_quantity(
            "self.maxBodySize",
            "quantity(string(self.maxBodySize)).compareTo(quantity('1Gi')) <= 0",
        ),
    )


_FLAG: Final = "self.split('=')[0]"


def _one_of(flags: Sequence[str]) -> str:
    """The condition that an entry of `engine.args` is one of `flags` or abbreviates one."""
    names = "[" + ", ".join(f"'{flag}'" for flag in flags) + "]"
    return (
        f"{_FLAG} in {names} || ({_FLAG}.size() >= {NO_FLAG_SHORTER_THAN} && "
        f"{names}.exists(flag, flag.startsWith({_FLAG})))"
    )


def _may_not_shrink(remedy: str) -> Rule:
    """The size of a volume."""
    grown = "quantity(string(self.size)).compareTo(quantity(string(oldSelf.size))) >= 0"
    rule = unless_no_quantity("self.size", grown)
    return on_field("size", f"cannot shrink{remedy}", mirrors="transition", rule=rule)


ITEM_RULES: Final[Mapping[tuple[type, str], Sequence[Rule]]] = {
    (Engine, "args"): (
        Rule(
            mirrors="arguments_are_owned",
            rule="self.startsWith('--')",
            message="must be a flag; write --flag=value as one entry",
        ),
        Rule(
            mirrors="arguments_are_owned",
            rule=f"!({_one_of(OWNED_FLAGS)})",
            message="is set by Evenkeel from the rest of the spec; remove it",
            message_expression=f"{_FLAG} + ' is set by Evenkeel from the rest of the spec; remove it'",
        ),
        Rule(
            mirrors="arguments_are_owned",
            rule=f"!({_one_of(BYPASSING_FLAGS)})",
            message="lets requests bypass the replica policy; remove it",
            message_expression=f"{_FLAG} + ' lets requests bypass the replica policy; remove it'",
        ),
    ),
}
"""Rules for each entry of a list."""

OBJECT_RULES: Final[Mapping[type, Sequence[Rule]]] = {
    ServiceSpec: (
        on_field(
            "engine.replicas",
            "is set together with autoscaling; remove one of the two",
            mirrors="replicas_and_autoscaling_are_both_given",
            rule="!(has(self.engine.replicas) && has(self.autoscaling))",
        ),
        on_field(
            "model.cache.accessModes",
            "must include ReadWriteMany or ReadOnlyMany for more than one "
            "replica (engine.replicas, autoscaling.maxReplicas), since they may run on several nodes",
            mirrors="cache_cannot_be_shared",
            rule="!has(self.model.cache) || "
            "self.model.cache.accessModes.exists(m, m in ['ReadWriteMany', 'ReadOnlyMany']) || "
            "(has(self.autoscaling) ? self.autoscaling.maxReplicas < 2 : "
            "(!has(self.engine.replicas) || self.engine.replicas < 2))",
        ),
        on_field(
            "autoscaling",
            "needs engine.external.scaleTargetRef with runtime External; set it, or remove "
            "autoscaling",
            mirrors="external_pods_cannot_be_scaled",
            rule="self.engine.runtime != 'External' || !has(self.autoscaling) || "
            "(has(self.engine.external) && has(self.engine.external.scaleTargetRef))",
        ),
        *(
            on_field(
                f"model.{name}",
                "has no effect with runtime External, since another owner makes the pods; remove it",
                mirrors="external_pods_are_described",
                rule=f"self.engine.runtime != 'External' || !has(self.model.{name})",
            )
            for name in ("objectStore", "cache")
        ),
    ),
    Engine: (
        on_field(
            "external",
            "is required with runtime External; set its selector and port",
            mirrors="runtime_and_external_differ",
            rule="self.runtime != 'External' || has(self.external)",
        ),
        on_field(
            "external",
            "needs runtime: External; remove external or set runtime: External",
            mirrors="runtime_and_external_differ",
            rule="self.runtime == 'External' || !has(self.external)",
        ),
        *(
            on_field(
                name,
                "has no effect with runtime External, since another owner makes the pods; remove it",
                mirrors="external_pods_are_described",
                rule=f"self.runtime != 'External' || {absent}",
            )
            for name, absent in (
                ("image", "!has(self.image)"),
                ("replicas", "!has(self.replicas)"),
                ("args", "!has(self.args) || size(self.args) == 0"),
            )
        ),
    ),
    External: (
        *(
            on_field(
                name,
                "is required without inferencePool; set selector and port",
                mirrors="external_pods_are_named_twice_or_not_at_all",
                rule=f"has(self.inferencePool) || has(self.{name})",
            )
            for name in ("selector", "port")
        ),
        Rule(
            mirrors="external_pods_are_named_twice_or_not_at_all",
            rule="!has(self.inferencePool) || (!has(self.selector) && !has(self.port))",
            message="inferencePool is set together with selector or port; remove it, or remove both of them",
            field="inferencePool",
        ),
    ),
    PodSelector: (
        on_field(
            "matchLabels",
            "must have at least one label, else all pods of the namespace would be engines",
            mirrors="external_selector_is_empty",
            rule="size(self.matchLabels) > 0",
        ),
    ),
    **MODEL_RULES,
    Rollout: (
        on_field(
            "maxSurge",
            "must be above 0 if maxUnavailable is 0, else a rollout could not replace any replica",
            mirrors="rollout_cannot_move",
            rule="!(string(self.maxSurge) in ['0', '0%'] && "
            "string(self.maxUnavailable) in ['0', '0%'])",
        ),
    ),
    Router: (
        on_field(
            "replicas",
            "must be 1 with state.store File; use Peers or Redis for more routers",
            mirrors="file_store_has_several_routers",
            rule="self.state.store != 'File' || !has(self.replicas) || self.replicas == 1",
        ),
        on_field(
            "allowFields",
            "names a field that routers set themselves; remove it",
            mirrors="routers_field_is_allowed",
            rule=f"!has(self.allowFields) || !self.allowFields.exists(name, name in {list(ROUTER_FIELDS)})",
        ),
    ),
    State: (
        on_field(
            "file",
            "needs store: File; remove file or set store: File",
            mirrors="store_and_its_settings_differ",
            rule="!has(self.file) || self.store == 'File'",
        ),
        on_field(
            "redis",
            "needs store: Redis; remove redis or set store: Redis",
            mirrors="store_and_its_settings_differ",
            rule="!has(self.redis) || self.store == 'Redis'",
        ),
        on_field(
            "redis",
            "is required with store Redis; set redis.urlSecretRef",
            mirrors="store_and_its_settings_differ",
            rule="self.store != 'Redis' || has(self.redis)",
        ),
    ),
    FileState: (
        _may_not_shrink(" while the volume exists; keep the size or choose another store"),
    ),
    RouterLimits: (
        _body_size("limits_are_beyond_reason"),
        *map(
            _within_a_week,
            (
                "queueTimeout",
                "firstTokenTimeout",
                "activationTimeout",
                "answerTimeout",
                "keepAliveTimeout",
            ),
        ),
        _within_a_week("heartbeat", given=False),
    ),
    Qoe: tuple(map(_within_a_week, ("expectedTtft", "expectedItl"))),
    Autoscaling: (
        on_field(
            "minReplicas",
            "is above maxReplicas; lower it or raise maxReplicas",
            mirrors="scaling_bounds_are_crossed",
            rule="self.minReplicas <= self.maxReplicas",
        ),
        on_field(
            "maxReplicasPerClient",
            "must be above 0, else a client's requests cannot start a replica",
            mirrors="cap_per_client_is_out_of_range",
            rule="!(string(self.maxReplicasPerClient) in ['0', '0%'])",
        ),
        on_field(
            "maxReplicasPerClient",
            "is above maxReplicas; lower it or use a percentage",
            mirrors="cap_per_client_is_out_of_range",
            rule="type(self.maxReplicasPerClient) == string || "
            "int(self.maxReplicasPerClient) <= self.maxReplicas",
        ),
    ),
    Exposure: (
        on_field(
            "httpRoute",
            "is set together with ingress; remove one of the two",
            mirrors="exposed_twice",
            rule="!(has(self.ingress) && has(self.httpRoute))",
        ),
    ),
    LabelSelectorRequirement: (
        on_field(
            "values",
            "is required with operators In and NotIn; add at least one",
            mirrors="selector_values_do_not_fit",
            rule="!(self.operator in ['In', 'NotIn']) || (has(self.values) && size(self.values) > 0)",
        ),
        on_field(
            "values",
            "must be empty with operators Exists and DoesNotExist; remove them",
            mirrors="selector_values_do_not_fit",
            rule="self.operator in ['In', 'NotIn'] || !has(self.values) || size(self.values) == 0",
        ),
    ),
    GatewayModel: (
        on_field(
            "serviceRef",
            "is required without serviceSelector; name a service",
            mirrors="model_names_no_service_or_two",
            rule="has(self.serviceRef) || has(self.serviceSelector)",
        ),
        on_field(
            "serviceSelector",
            "is set together with serviceRef; remove one of the two",
            mirrors="model_names_no_service_or_two",
            rule="!(has(self.serviceRef) && has(self.serviceSelector))",
        ),
        on_field(
            "name",
            "needs serviceRef, since a selector may select several services; remove it",
            mirrors="selected_models_are_renamed",
            rule="!(has(self.serviceSelector) && has(self.name))",
        ),
        on_field(
            "aliases",
            "needs name; set the model name that clients send",
            mirrors="selected_models_are_renamed",
            rule="!has(self.aliases) || size(self.aliases) == 0 || has(self.name)",
        ),
    ),
    GatewaySpec: (
        Rule(
            mirrors="models_share_a_name",
            rule="self.models.all(m, !has(m.name) || self.models.exists_one(o, has(o.name) && o.name == m.name))",
            message="models: each name means one model; give each model a name of its own",
            field="models",
        ),
    ),
    GatewayLimits: (
        _body_size("gateway_limits_are_beyond_reason"),
        _within_a_week("keepAliveTimeout", mirrors="gateway_limits_are_beyond_reason"),
    ),
    **TENANCY_RULES,
    Federation: (
        Rule(
            mirrors="cells_name_this_cell",
            rule="self.cells.all(one, one.name != self.cell)",
            message="cells: one has the name of this cell; list the other cells only",
            field="cells",
        ),
        on_field(
            "interval",
            "must be from 100ms to 10m",
            mirrors="exchange_is_too_fast_or_too_slow",
            rule=f"!self.interval.matches({SHORT_DURATION}) || "
            "(duration(self.interval) >= duration('100ms') && "
            "duration(self.interval) <= duration('10m'))",
        ),
    ),
    TenantSpec: (
        Rule(
            mirrors="keys_name_unknown_clients",
            # Beyond 500 × 500 the comparison would use the CEL budget of a whole object; SpecValid reports it.
            rule="!has(self.apiKeys) || size(self.apiKeys) == 0 || (has(self.clients) && "
            "(size(self.clients) * size(self.apiKeys) > 250000 || "
            "sets.contains(self.clients.map(c, c.name), self.apiKeys.map(k, k.client))))",
            message="apiKeys: each client must be in clients; add the client there or correct its name",
            field="apiKeys",
        ),
    ),
}
"""Rules for objects of a class."""
