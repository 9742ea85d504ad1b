"""The objects of a FairInferenceGateway: routers that know several services."""

from __future__ import annotations

from base64 import b64encode

from evenkeel_contract.names import ROUTER_COMPONENT, credentials_name, gateway_base
from evenkeel_contract.spec.gateway import FairInferenceGateway
from evenkeel_contract.spec.model import Model
from evenkeel_contract.spec.parts import Metadata
from evenkeel_contract.spec.resources import FairInferenceService, ServiceSpec

from evenkeel_operator.core.objects import Manifest
from evenkeel_operator.core.records import (
    CURRENT_ANNOTATION,
    KEY_PREFIX,
    ROTATE_ANNOTATION,
    TOKEN_ENTRY,
    Credentials,
    Defaults,
)
from evenkeel_operator.core.sharding import Layout
from evenkeel_operator.manifests.context import BuildContext, manifest, service_account
from evenkeel_operator.manifests.monitoring import gateway_monitor
from evenkeel_operator.manifests.router import (
    has_signed_keys,
    http_route,
    ingress,
    revocations_config_map,
    router_budget,
    router_deployment,
    router_peers_service,
    router_policy,
    router_role,
    router_role_binding,
    router_secret,
    router_service,
    tenant_secrets,
)


def gateway_context(
    gateway: FairInferenceGateway,
    *,
    uid: str,
    layout: Layout,
    defaults: Defaults,
    apis: frozenset[str],
) -> BuildContext:
    """The routers of a gateway are built as those of a service without engines, under the gateway's own names."""
    spec = ServiceSpec(
        model=Model(source="file:///none"),  # no builder of routers reads it
        router=gateway.spec.router.as_router(),
        exposure=gateway.spec.exposure,
        tenancy=gateway.spec.tenancy,
    )
    metadata = gateway.metadata
    service = FairInferenceService(
        api_version=gateway.api_version,
        kind=gateway.kind,
        metadata=Metadata(name=gateway_base(metadata.name), namespace=metadata.namespace),
        spec=spec,
    )
    return BuildContext(
        service=service,
        uid=uid,
        engine_image="",
        engine_key_id="",
        layout=layout,
        defaults=defaults,
        apis=apis,
        gateway=metadata.name,
        kind=gateway.kind,
    )


def build_gateway(
    context: BuildContext, credentials: Credentials, *, host_taken: bool
) -> tuple[Manifest, ...]:
    """All objects of a gateway, in the order in which they are applied. Equal input gives equal objects."""
    wanted = (
        token_secret(context, credentials),
        service_account(context, ROUTER_COMPONENT),
        router_role(context),
        router_role_binding(context),
        *tenant_secrets(context),
        router_secret(context),
        revocations_config_map(context) if has_signed_keys(context.service) else None,
        router_policy(context),
        router_budget(context),
        router_peers_service(context),
        router_service(context),
        router_deployment(context),
        None if host_taken else ingress(context),
        None if host_taken else http_route(context),
        gateway_monitor(context),
    )
    return tuple(found for found in wanted if found is not None)


def token_secret(context: BuildContext, credentials: Credentials) -> Manifest:
    """The admin token of the routers. The key beside it is that of no engine: it says that the Secret is complete."""
    current = credentials.current
    found = manifest(
        context,
        "Secret",
        ROUTER_COMPONENT,
        name=credentials_name(context.name),
        annotations={
            CURRENT_ANNOTATION: current.id,
            ROTATE_ANNOTATION: credentials.rotation,
        },
    )
    found["type"] = "Opaque"
    entries = {TOKEN_ENTRY: credentials.admin_token, f"{KEY_PREFIX}{current.id}": current.key}
    found["data"] = {name: b64encode(value.encode()).decode() for name, value in entries.items()}
    return found
