"""All objects of a service, in the order in which they are applied."""

from __future__ import annotations

from evenkeel_operator.manifests.access import (
    engine_account,
    router_account,
    router_role,
    router_role_binding,
)
from evenkeel_operator.manifests.context import BuildContext, Manifest
from evenkeel_operator.manifests.engine import engine_deployment, engine_service
from evenkeel_operator.manifests.exposure import http_route, ingress
from evenkeel_operator.manifests.monitoring import pod_monitors, prometheus_rule
from evenkeel_operator.manifests.network import (
    engine_budget,
    engine_policy,
    router_budget,
    router_policy,
)
from evenkeel_operator.manifests.router import (
    router_deployment,
    router_peers_service,
    router_secret,
    router_service,
)
from evenkeel_operator.manifests.storage import cache_claim, state_claim


def build_all(context: BuildContext, *, replicas: int) -> tuple[Manifest, ...]:
    """All objects except the generated keys (`core/credentials`). Equal input gives equal objects."""
    wanted = (
        # Objects that pods need at their start, …
        engine_account(context),
        router_account(context),
        router_role(context),
        router_role_binding(context),
        router_secret(context),
        cache_claim(context),
        state_claim(context),
        # … network policies and disruption budgets, …
        engine_policy(context),
        router_policy(context),
        engine_budget(context, replicas=replicas),
        router_budget(context),
        # … Services, …
        engine_service(context),
        router_peers_service(context),
        router_service(context),
        # … the pods, engines first, since they take longer to start, …
        engine_deployment(context, replicas=replicas),
        router_deployment(context),
        # … and access from outside.
        ingress(context),
        http_route(context),
        *pod_monitors(context),
        prometheus_rule(context),
    )
    return tuple(found for found in wanted if found is not None)
