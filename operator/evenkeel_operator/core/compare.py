"""Where a live object differs from what is wanted, in the fields that are wanted.

Place in the pass: manifests + live objects → **compare** → plan. Fields that others own are not looked at:
what a server defaults, what a controller writes, what a person added.

The surprising thing: this is no comparison of equals. `1000m` of CPU comes back as `1`, and an empty map as
nothing; lists of named things are compared by name, since others may add to them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from evenkeel_contract.faults import show
from evenkeel_contract.quantities import Quantity

# Associative lists of Kubernetes (`x-kubernetes-list-map-keys`) that our objects hold.
LIST_KEYS: Final[Mapping[str, tuple[str, ...]]] = {
    "containers": ("name",),
    "initContainers": ("name",),
    "volumes": ("name",),
    "env": ("name",),
    "volumeMounts": ("mountPath",),
    "volumeDevices": ("devicePath",),
    "ports": ("containerPort", "port"),
    "imagePullSecrets": ("name",),
    "hostAliases": ("ip",),
    "topologySpreadConstraints": ("topologyKey",),
    "ownerReferences": ("uid",),
    "readinessGates": ("conditionType",),
}
_QUANTITIES: Final = frozenset({"requests", "limits", "capacity"})
_SINGLE_QUANTITIES: Final = frozenset({"sizeLimit", "storage", "divisor"})


@dataclass(frozen=True, slots=True)
class Difference:
    """One field that is not as wanted."""

    path: str
    wanted: str
    found: str

    def __str__(self) -> str:
        return f"{self.path}: {self.found} is not {self.wanted}"


def differences(wanted: Any, found: Any, path: str = "") -> Iterator[Difference]:
    """Every field of `wanted` that `found` lacks or has otherwise."""
    if isinstance(wanted, Mapping):
        yield from _in_mapping(wanted, found, path)
    elif isinstance(wanted, list):
        yield from _in_list(wanted, found, path)
    elif wanted != found and not _same_quantity(wanted, found, path):
        yield Difference(path, _shown(wanted, path), _shown(found, path))


def _in_mapping(wanted: Mapping[str, Any], found: Any, path: str) -> Iterator[Difference]:
    if not isinstance(found, Mapping):
        yield Difference(path, "a mapping", show(found))
        return
    for key, value in wanted.items():
        below = f"{path}.{key}" if path else key
        if key in found:
            yield from differences(value, found[key], below)
        elif not _is_empty(value):
            yield Difference(below, _shown(value, below), "absent")


def _in_list(wanted: Sequence[Any], found: Any, path: str) -> Iterator[Difference]:
    if not isinstance(found, list):
        yield Difference(path, "a list", show(found))
        return
    key = _key_of(path, [*wanted, *found])
    if key is None:
        if len(wanted) != len(found):
            count = f"{len(wanted)} entries"
            yield Difference(path, count, f"a list of {len(found)}")
            return
        for index, (ours, theirs) in enumerate(zip(wanted, found, strict=True)):
            yield from differences(ours, theirs, f"{path}[{index}]")
        return
    by_key = {entry[key]: entry for entry in found}
    for entry in wanted:
        below = f"{path}[{entry[key]}]"
        if entry[key] in by_key:
            yield from differences(entry, by_key[entry[key]], below)
        else:
            yield Difference(below, "there", "absent")


def _key_of(path: str, entries: Sequence[Any]) -> str | None:
    name = path.rpartition(".")[2]
    for key in LIST_KEYS.get(name, ()):
        values = [entry.get(key) if isinstance(entry, Mapping) else None for entry in entries]
        if all(isinstance(value, str | int) for value in values):
            return key
    return None


def _is_empty(value: Any) -> bool:
    """What a server leaves out when it writes an object."""
    return value is None or value in ({}, [], "")


def _same_quantity(wanted: Any, found: Any, path: str) -> bool:
    parts = path.split(".")
    in_resources = len(parts) > 1 and parts[-2] in _QUANTITIES
    # A name of a resource holds dots itself: requests.nvidia.com/gpu.
    in_resources = in_resources or any(part in _QUANTITIES for part in parts[-4:-1])
    if not in_resources and parts[-1] not in _SINGLE_QUANTITIES:
        return False
    try:
        return Quantity.from_plain(wanted).value == Quantity.from_plain(found).value
    except ValueError:
        return False


def _shown(value: Any, path: str) -> str:
    """Never the contents of a Secret."""
    return "…" if path.startswith(("data.", "data")) else show(value)
