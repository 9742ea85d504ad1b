"""What a schema cannot say and the API server still checks: the rules of `validate` in CEL.

Each rule bears the name of the function in `validate` that finds the same fault; what stands in
`LEFT_TO_SPEC_VALID` is found by the operator only. Transition rules (`oldSelf`) have no such function: only the
API server sees an object before and after.

Needs Kubernetes 1.31 or newer (`isCIDR`, `quantity`, `sets`, `fieldPath`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from evenkeel_contract.constraints import Cidr, Url
from evenkeel_contract.quantities import Duration, Quantity
from evenkeel_contract.spec.engine import Cache, Engine, Rollout
from evenkeel_contract.spec.router import FileState, Router, RouterLimits, State
from evenkeel_contract.spec.scaling import Autoscaling
from evenkeel_contract.spec.service import Exposure, LabelSelectorRequirement, ServiceSpec
from evenkeel_contract.spec.tenant import TenantSpec
from evenkeel_contract.validate import NO_FLAG_SHORTER_THAN, OWNED_FLAGS


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One entry of `x-kubernetes-validations`."""

    mirrors: str
    """The function in `validate`, the mark, or the scalar that says the same; `transition` for none."""
    rule: str
    """CEL: true where all is well; `self` is the value that the rule is attached to."""
    message: str
    """Names the field and the fix."""
    field: str | None = None
    """The field to blame, below the value; None: the value itself."""
    message_expression: str | None = None
    """CEL that yields a message with the value in it."""

    def to_plain(self) -> dict[str, str]:
        """As the API server reads it."""
        plain = {"rule": self.rule, "message": self.message}
        if self.message_expression is not None:
            plain["messageExpression"] = self.message_expression
        if self.field is not None:
            plain["fieldPath"] = f".{self.field}"
        return plain


LEFT_TO_SPEC_VALID: Final[Mapping[str, str]] = {
    "alert_labels_are_no_labels": "looks at every name of a map without bounds: beyond CEL's budget",
    "keys_share_a_secret": "compares every pair of up to 1000 keys: beyond CEL's budget",
}

_FLAG: Final = "self.split('=')[0]"
_OWNED: Final = "[" + ", ".join(f"'{flag}'" for flag in OWNED_FLAGS) + "]"

SCALAR_RULES: Final[Mapping[type, Sequence[Rule]]] = {
    Duration: (
        Rule(
            mirrors="Duration",
            rule="duration(self) > duration('0s') && duration(self) <= duration('876000h')",
            message="must be above 0 and at most 876000h (100 years)",
        ),
    ),
    Quantity: (
        Rule(
            mirrors="Quantity",
            rule="quantity(string(self)).isGreaterThan(quantity('0')) && "
            "quantity(string(self)).isLessThan(quantity('9223372036854775807'))",
            message="must be above 0 and below 2^63",
        ),
    ),
    Cidr: (
        Rule(
            mirrors="Cidr",
            rule="isIP(self) || (isCIDR(self) && cidr(self) == cidr(self).masked())",
            message="must be a network like 10.0.0.0/8, without bits beyond its prefix",
        ),
    ),
    Url: (
        Rule(
            mirrors="Url",
            rule="isURL(self) && url(self).getScheme() in ['http', 'https'] && "
            # Go's hosts may hold nearly anything; `getHostname().matches` would have no cost bound.
            "self.matches('^[a-zA-Z]+://([^/?#@]*@)?([a-zA-Z0-9._-]+|[[][0-9a-fA-F:.]+[]])"
            "(:[0-9]*)?([/?][^#]*)?$') && (url(self).getPort() == '' || "
            "(int(url(self).getPort()) > 0 && int(url(self).getPort()) < 65536))",
            message="must be an address like http://host:port or https://host:port",
        ),
    ),
}
"""Of values of a class, or with a mark."""

ITEM_RULES: Final[Mapping[tuple[type, str], Sequence[Rule]]] = {
    (Engine, "args"): (
        Rule(
            mirrors="arguments_are_owned",
            rule="self.startsWith('--')",
            message="is no flag; write --flag=value as one entry",
        ),
        Rule(
            mirrors="arguments_are_owned",
            rule=f"!({_FLAG} in {_OWNED}) && ({_FLAG}.size() < {NO_FLAG_SHORTER_THAN} || "
            f"!{_OWNED}.exists(flag, flag.startsWith({_FLAG})))",
            message="is set by Evenkeel from the rest of the spec; remove it",
            message_expression=f"{_FLAG} + ' is set by Evenkeel from the rest of the spec; remove it'",
        ),
    ),
}
"""Of each entry of a list."""

OBJECT_RULES: Final[Mapping[type, Sequence[Rule]]] = {
    ServiceSpec: (
        Rule(
            mirrors="replicas_and_autoscaling_are_both_given",
            rule="!(has(self.engine.replicas) && has(self.autoscaling))",
            message="engine.replicas cannot stand beside autoscaling; remove one of the two",
            field="engine.replicas",
        ),
        Rule(
            mirrors="cache_cannot_be_shared",
            rule="!has(self.model.cache) || "
            "self.model.cache.accessModes.exists(m, m in ['ReadWriteMany', 'ReadOnlyMany']) || "
            "(has(self.autoscaling) ? self.autoscaling.maxReplicas < 2 : "
            "(!has(self.engine.replicas) || self.engine.replicas < 2))",
            message="model.cache.accessModes needs ReadWriteMany for more than one replica "
            "(engine.replicas, autoscaling.maxReplicas): they may run on several nodes",
            field="model.cache.accessModes",
        ),
    ),
    Cache: (
        Rule(
            mirrors="transition",
            rule="has(self.storageClassName) == has(oldSelf.storageClassName) && "
            "(!has(self.storageClassName) || self.storageClassName == oldSelf.storageClassName)",
            message="storageClassName cannot change while the volume exists; remove model.cache, "
            "apply, then add it with the new class",
            field="storageClassName",
        ),
        Rule(
            mirrors="transition",
            rule="self.accessModes == oldSelf.accessModes",
            message="accessModes cannot change while the volume exists; remove model.cache, "
            "apply, then add it with the new modes",
            field="accessModes",
        ),
        Rule(
            mirrors="transition",
            rule="quantity(string(self.size)).compareTo(quantity(string(oldSelf.size))) >= 0",
            message="size cannot shrink; remove model.cache, apply, then add it with the new size",
            field="size",
        ),
    ),
    Rollout: (
        Rule(
            mirrors="rollout_cannot_move",
            rule="!(string(self.maxSurge) in ['0', '0%'] && "
            "string(self.maxUnavailable) in ['0', '0%'])",
            message="maxSurge must be above 0 where maxUnavailable is 0: no replica could ever be "
            "exchanged",
            field="maxSurge",
        ),
    ),
    Router: (
        Rule(
            mirrors="file_store_has_several_routers",
            rule="self.state.store != 'File' || !has(self.replicas) || self.replicas == 1",
            message="replicas must be 1 with state.store File; Peers and Redis allow more",
            field="replicas",
        ),
    ),
    State: (
        Rule(
            mirrors="store_and_its_settings_differ",
            rule="!has(self.file) || self.store == 'File'",
            message="file has no use with another store; remove it or set store: File",
            field="file",
        ),
        Rule(
            mirrors="store_and_its_settings_differ",
            rule="!has(self.redis) || self.store == 'Redis'",
            message="redis has no use with another store; remove it or set store: Redis",
            field="redis",
        ),
        Rule(
            mirrors="store_and_its_settings_differ",
            rule="self.store != 'Redis' || has(self.redis)",
            message="redis is required with store Redis: give redis.urlSecretRef",
            field="redis",
        ),
    ),
    FileState: (
        Rule(
            mirrors="transition",
            rule="quantity(string(self.size)).compareTo(quantity(string(oldSelf.size))) >= 0",
            message="size cannot shrink: the volume exists; keep the size or choose another store",
            field="size",
        ),
    ),
    RouterLimits: (
        Rule(
            mirrors="limits_are_beyond_reason",
            rule="quantity(string(self.maxBodySize)).compareTo(quantity('1Gi')) <= 0",
            message="maxBodySize must be at most 1Gi: routers keep a request in memory",
            field="maxBodySize",
        ),
        *(
            Rule(
                mirrors="limits_are_beyond_reason",
                rule=f"duration(self.{name}) <= duration('168h')",
                message=f"{name} must be at most 168h",
                field=name,
            )
            for name in ("queueTimeout", "firstTokenTimeout", "activationTimeout")
        ),
    ),
    Autoscaling: (
        Rule(
            mirrors="scaling_bounds_are_crossed",
            rule="self.minReplicas <= self.maxReplicas",
            message="minReplicas is above maxReplicas; lower it or raise maxReplicas",
            field="minReplicas",
        ),
        Rule(
            mirrors="cap_per_client_is_out_of_range",
            rule="!(string(self.maxReplicasPerClient) in ['0', '0%'])",
            message="maxReplicasPerClient must be above 0: a client's requests would never start "
            "a replica",
            field="maxReplicasPerClient",
        ),
        Rule(
            mirrors="cap_per_client_is_out_of_range",
            rule="type(self.maxReplicasPerClient) == string || "
            "int(self.maxReplicasPerClient) <= self.maxReplicas",
            message="maxReplicasPerClient is above maxReplicas; lower it or give a percentage",
            field="maxReplicasPerClient",
        ),
    ),
    Exposure: (
        Rule(
            mirrors="exposed_twice",
            rule="!(has(self.ingress) && has(self.httpRoute))",
            message="httpRoute cannot stand beside ingress; remove one of the two",
            field="httpRoute",
        ),
    ),
    LabelSelectorRequirement: (
        Rule(
            mirrors="selector_values_do_not_fit",
            rule="!(self.operator in ['In', 'NotIn']) || (has(self.values) && size(self.values) > 0)",
            message="values is required with operators In and NotIn",
            field="values",
        ),
        Rule(
            mirrors="selector_values_do_not_fit",
            rule="self.operator in ['In', 'NotIn'] || !has(self.values) || size(self.values) == 0",
            message="values must be empty with operators Exists and DoesNotExist",
            field="values",
        ),
    ),
    TenantSpec: (
        Rule(
            mirrors="keys_name_unknown_clients",
            # Beyond 500 × 500 the comparison would spend the budget of a whole object: SpecValid says it.
            rule="!has(self.apiKeys) || size(self.apiKeys) == 0 || (has(self.clients) && "
            "(size(self.clients) * size(self.apiKeys) > 250000 || "
            "sets.contains(self.clients.map(c, c.name), self.apiKeys.map(k, k.client))))",
            message="apiKeys: every client must be in clients; add it there or correct its name",
            field="apiKeys",
        ),
    ),
}
"""Of objects of a class."""
