"""Fields that other managers added to a generated object, by the API server's record of who set what (`managedFields`).

A changed field is reverted by the next apply. A field that the manifest does not have is no difference, so it would stay unnoticed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec

from evenkeel_operator.core.objects import Object

_CONTROLLERS: Final = frozenset({"kube-controller-manager", "kube-scheduler", "kubelet"})
# Labels and annotations of others are theirs, and the status is not part of a manifest.
_NOT_OURS: Final = frozenset({"f:metadata", "f:status", "f:apiVersion", "f:kind"})
_RESTART: Final = "kubectl.kubernetes.io/restartedAt"
"""`kubectl rollout restart` sets it: an action, not a change of the spec."""


def foreign_fields(item: Object, manager: str) -> tuple[str, ...]:
    """`manager: field` of each field that another manager set and `manager` did not, sorted."""
    ours, theirs = set[str](), list[tuple[str, str]]()
    for entry in item["metadata"].get("managedFields") or ():
        fields, name = entry.get("fieldsV1") or {}, str(entry.get("manager", ""))
        if name in _CONTROLLERS or entry.get("subresource"):
            continue
        content = {key: below for key, below in fields.items() if key not in _NOT_OURS}
        if name == manager:
            ours |= set(_leaves(content))
        else:
            theirs += ((name, leaf) for leaf in _leaves(content))
    found = (
        f"{name}: {leaf}" for name, leaf in theirs if leaf not in ours and _RESTART not in leaf
    )
    return tuple(sorted(found))


def _leaves(fields: Mapping[str, Any], path: str = "") -> Iterator[str]:
    """The paths of a set of fields, such as `spec.template.spec.containers[engine].image`."""
    for key, below in fields.items():
        kind, _, name = key.partition(":")
        if kind == "f":
            where = f"{path}.{name}" if path else name
        elif kind == "k":
            where = f"{path}[{','.join(str(one) for one in msgspec.json.decode(name).values())}]"
        elif kind == "v":
            where = f"{path}[{name}]"
        else:  # the entry itself, beside its fields
            continue
        # `.` beside other fields says that the entry exists; alone it is the whole entry.
        if any(one != "." for one in below):
            yield from _leaves(below, where)
        else:
            yield where
