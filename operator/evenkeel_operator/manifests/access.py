"""Who the pods are, and what they may ask the API server: engines nothing, routers their own and no more.

The surprising thing: EndpointSlices and pods cannot be scoped by name, since those are generated; routers may
read them in their namespace. The one Secret that they may read is theirs.
"""

from __future__ import annotations

from evenkeel_contract.names import ENGINE_COMPONENT, ROUTER_COMPONENT, engine_name, router_name

from evenkeel_operator.manifests.metadata import manifest
from evenkeel_operator.manifests.subject import Manifest, Subject

_RBAC = "rbac.authorization.k8s.io"


def engine_account(subject: Subject) -> Manifest:
    """An identity without any right: what a pod does not have, nobody can take from it."""
    return _account(subject, engine_name(subject.name), ENGINE_COMPONENT)


def router_account(subject: Subject) -> Manifest:
    """The identity that `router_role` is bound to."""
    return _account(subject, router_name(subject.name), ROUTER_COMPONENT)


def router_role(subject: Subject) -> Manifest:
    """What routers need to watch their configuration, the engines, and their peers."""
    found = _head(subject, f"{_RBAC}/v1", "Role")
    found["rules"] = [
        {
            "apiGroups": [""],
            "resources": ["secrets"],
            "resourceNames": [router_name(subject.name)],
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


def router_role_binding(subject: Subject) -> Manifest:
    """The role, for the routers of this service only."""
    found = _head(subject, f"{_RBAC}/v1", "RoleBinding")
    name = router_name(subject.name)
    found["roleRef"] = {"apiGroup": _RBAC, "kind": "Role", "name": name}
    found["subjects"] = [
        {"kind": "ServiceAccount", "name": name, "namespace": subject.namespace},
    ]
    return found


def _account(subject: Subject, name: str, component: str) -> Manifest:
    found = manifest(subject.owner, api="v1", kind="ServiceAccount", name=name, component=component)
    found["automountServiceAccountToken"] = False  # pods that want one say so
    return found


def _head(subject: Subject, api: str, kind: str) -> Manifest:
    name = router_name(subject.name)
    return manifest(subject.owner, api=api, kind=kind, name=name, component=ROUTER_COMPONENT)
