"""Write Events, which `kubectl describe` shows under a resource."""

from __future__ import annotations

import logging
import uuid
from datetime import datetime
from typing import Final

from evenkeel_kube.client import KubeClient
from evenkeel_kube.errors import ClusterError

from evenkeel_operator.core.objects import Object
from evenkeel_operator.manifests.context import MANAGER

_log = logging.getLogger(__name__)
_MAX_MESSAGE: Final = 1024  # characters, the limit of the API server


async def emit(
    client: KubeClient, about: Object, *, reason: str, message: str, bad: bool, now: datetime
) -> None:
    """Write one event. A failure is only logged: nothing depends on it."""
    metadata = about["metadata"]
    stamp = now.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    event = {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {
            "name": f"{metadata['name']}.{uuid.uuid4().hex[:16]}",
            "namespace": metadata["namespace"],
        },
        "involvedObject": {
            "apiVersion": about["apiVersion"],
            "kind": about["kind"],
            "namespace": metadata["namespace"],
            "name": metadata["name"],
            "uid": metadata["uid"],
        },
        "type": "Warning" if bad else "Normal",
        "reason": reason,
        "message": message if len(message) <= _MAX_MESSAGE else message[: _MAX_MESSAGE - 1] + "…",
        "action": "Reconcile",
        "eventTime": stamp,
        "reportingComponent": MANAGER,
        "reportingInstance": MANAGER,
    }
    try:
        await client.create(event)
    except ClusterError as error:
        _log.warning("cannot write event %s of %s: %s", reason, metadata["name"], error)
