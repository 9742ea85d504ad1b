"""Strategic merge of a pod template, as `kubectl patch` does it: maps by key, lists of things by their name.

Place in the flow: manifests/pods → **merge**. A null takes a field away. Lists that Kubernetes does not merge
by a key (arguments, tolerations) are replaced as a whole, but for tolerations, which add up.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

# List → the field that tells its entries apart; where several could, the first that all entries have.
MERGE_KEYS: Final[Mapping[str, tuple[str, ...]]] = {
    "containers": ("name",),
    "initContainers": ("name",),
    "volumes": ("name",),
    "env": ("name",),
    "volumeMounts": ("mountPath",),
    "volumeDevices": ("devicePath",),
    "ports": ("containerPort",),
    "imagePullSecrets": ("name",),
    "hostAliases": ("ip",),
    "topologySpreadConstraints": ("topologyKey",),
    "resourceClaims": ("name",),
    "readinessGates": ("conditionType",),
}
APPENDED: Final = frozenset({"tolerations", "envFrom"})
# Their entries are unions (a value or a source of one): one of each laid together would be refused.
WHOLE: Final = frozenset({"env", "volumes", "volumeMounts", "volumeDevices"})


def merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """`over` laid on `base`; neither is changed."""
    merged = dict(base)
    for key, value in over.items():
        if value is None:
            merged.pop(key, None)
        elif isinstance(value, Mapping) and isinstance(merged.get(key), Mapping):
            merged[key] = merge(merged[key], value)
        elif isinstance(value, list) and isinstance(merged.get(key), list):
            merged[key] = _merge_list(key, merged[key], value)
        elif isinstance(value, list):
            merged[key] = _merge_list(key, [], value)
        elif isinstance(value, Mapping):
            merged[key] = merge({}, value)
        else:
            merged[key] = value
    return merged


def _merge_list(name: str, base: Sequence[Any], over: Sequence[Any]) -> list[Any]:
    if name in APPENDED:
        return [*base, *over]
    key = _key_of(name, [*base, *over])
    if key is None:
        return list(over)
    merged = {entry[key]: entry for entry in base}
    for entry in over:
        below = {} if name in WHOLE else merged.get(entry[key], {})
        merged[entry[key]] = merge(below, entry)
    return list(merged.values())


def _key_of(name: str, entries: Sequence[Any]) -> str | None:
    for key in MERGE_KEYS.get(name, ()):
        if all(isinstance(e, Mapping) and isinstance(e.get(key), str | int) for e in entries):
            return key
    return None
