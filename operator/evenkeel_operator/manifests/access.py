"""ServiceAccounts and rights of the pods: none for engines, read-only ones for routers.

EndpointSlices and pods have generated names, so RBAC cannot limit them by name: routers may read all of their
namespace. Of Secrets they may read only their own.
"""

from __future__ import annotations

from evenkeel_contract.names import ENGINE_COMPONENT, ROUTER_COMPONENT, engine_name, router_name

from evenkeel_operator.manifests.context import BuildContext, Manifest, manifest

_RBAC = "rbac.authorization.k8s.io"


def engine_account(context: BuildContext) -> Manifest:
    """An identity without any right."""
    return _account(context, engine_name(context.name), ENGINE_COMPONENT)


def router_account(context: BuildContext) -> Manifest:
    """The identity that `router_role` is bound to."""
    return _account(context, router_name(context.name), ROUTER_COMPONENT)


def router_role(context: BuildContext) -> Manifest:
    """What routers need to watch their configuration, the engines, and their peers."""
    found = _head(context, f"{_RBAC}/v1", "Role")
    found["rules"] = [
        {
            "apiGroups": [""],
            "resources": ["secrets"],
            "resourceNames": [router_name(context.name)],
            "verbs": ["get", "list", "watch"],
        },
        {
            "apiGroups": ["discovery.k8s.io"],
            "resources": ["endpointslices"],
            "verbs": ["get", "list", "watch"],
        },
        {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch"]},
    ]
    return found


def router_role_binding(context: BuildContext) -> Manifest:
    """The role, for the routers of this service only."""
    found = _head(context, f"{_RBAC}/v1", "RoleBinding")
    name = router_name(context.name)
    found["roleRef"] = {"apiGroup": _RBAC, "kind": "Role", "name": name}
    found["subjects"] = [
        {"kind": "ServiceAccount", "name": name, "namespace": context.namespace},
    ]
    return found


def _account(context: BuildContext, name: str, component: str) -> Manifest:
    found = manifest(context.owner, api="v1", kind="ServiceAccount", name=name, component=component)
    found["automountServiceAccountToken"] = False  # pods that need a token mount it explicitly
    return found


def _head(context: BuildContext, api: str, kind: str) -> Manifest:
    name = router_name(context.name)
    return manifest(context.owner, api=api, kind=kind, name=name, component=ROUTER_COMPONENT)
