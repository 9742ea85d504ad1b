"""kopf's part: the watches. Every event of every kind calls the same function.

Only `on.event` is used, as kopf's author advises for level-based operators: kopf then keeps no progress in objects,
adds no finalizers and writes nothing. docs/design/kubernetes-client.md explains the rest.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final

import kopf
from evenkeel_contract.names import GROUP, SERVICE_LABEL, VERSION

from evenkeel_operator.cluster.store import NODE, POD, SCALER, SERVICE, TENANT
from evenkeel_operator.core.objects import KINDS, Object

OnEvent = Callable[[str | None, str, Object], None]
"""Event (None: initial listing), kind, object."""
OnEnd = Callable[[], Awaitable[None]]

# Shorter than the server's timeout, so that a dead connection is detected.
WATCH_S: Final = 300


def registry(on_event: OnEvent, on_end: OnEnd) -> kopf.OperatorRegistry:
    """Handlers for both resources, for Secrets, autoscalers, nodes and pods, and for everything that is made.

    `on_end` is called when watching ends and must stop all other tasks. kopf would wait 5 s for them.
    """
    found = kopf.OperatorRegistry()
    kopf.on.login(registry=found)(kopf.login_via_client)

    async def ends(**_: Any) -> None:
        await on_end()

    kopf.on.cleanup(registry=found)(ends)
    watched = {SERVICE: (GROUP, VERSION, "fairinferenceservices")}
    watched[TENANT] = (GROUP, VERSION, "inferencetenants")
    watched[SCALER] = ("autoscaling", "v2", "horizontalpodautoscalers")
    watched[NODE] = ("", "v1", "nodes")
    watched[POD] = ("", "v1", "pods")
    for kind, where in KINDS.items():
        group, _, version = where.api.rpartition("/")
        watched[kind] = (group, version, where.plural)
    for kind, (group, version, plural) in watched.items():
        kopf.on.event(group, version, plural, registry=found)(_handler(kind, on_event))
    return found


def _handler(kind: str, on_event: OnEvent) -> Any:
    async def seen(event: Any, **_: Any) -> None:
        on_event(event["type"], kind, event["object"])

    seen.__name__ = f"saw_{kind.lower()}"
    return seen


def settings() -> kopf.OperatorSettings:
    """kopf writes nothing, and watches only objects with the service's label."""
    found = kopf.OperatorSettings()
    found.posting.enabled = False
    found.peering.standalone = True
    found.watching.server_timeout = WATCH_S
    found.queueing.worker_limit = None
    for kind, where in KINDS.items():
        if kind != "Secret":  # tenants' Secrets have labels of their owners
            group, _, version = where.api.rpartition("/")
            found.watching.label_selectors[group, version, where.plural] = SERVICE_LABEL
    found.watching.label_selectors["", "v1", "pods"] = SERVICE_LABEL
    return found
