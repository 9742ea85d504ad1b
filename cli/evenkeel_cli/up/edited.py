"""What an edit of a file changed, for the line that says it is applied. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from evenkeel_contract.decode import to_plain

from evenkeel_cli.manifest import Manifest

SHOWN = 4
"""Changes that are named."""


def edited(before: Manifest, after: Manifest) -> str:
    """The fields that differ, with their values; secrets without."""
    changes = [*_changes("", _plain(before), _plain(after))]
    if before.secrets != after.secrets:
        changes.append("keys")
    rest = len(changes) - SHOWN
    shown = [*changes[:SHOWN], *([f"and {rest} more"] if rest > 0 else [])]
    return ", ".join(shown) or "nothing that the fleet uses"


def _plain(manifest: Manifest) -> dict[str, object]:
    """The service under no name, the tenants under theirs; parts of lists by their names. Behind a gateway each service has a name."""
    tenants = {f"tenant {one.metadata.name}": to_plain(one.spec) for one in manifest.tenants}
    if manifest.gateway is None:
        return {"spec": to_plain(manifest.service.spec), **tenants}
    services = {f"service {one.metadata.name}": to_plain(one.spec) for one in manifest.services}
    return {"gateway": to_plain(manifest.gateway.spec), **services, **tenants}


def _changes(path: str, before: object, after: object) -> Iterator[str]:
    if before == after:
        return
    before, after = _by_name(before), _by_name(after)
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        for name in dict.fromkeys((*before, *after)):
            inner = f"{path}.{name}" if path else str(name)
            if name not in after:
                yield f"{inner} removed"
            elif name not in before:
                value = after[name]
                yield f"{inner} added" if isinstance(value, Mapping | list) else f"{inner} {value}"
            else:
                yield from _changes(inner, before[name], after[name])
    elif isinstance(before, Mapping | list) or isinstance(after, Mapping | list):
        yield path
    else:
        yield f"{path} {before} → {after}"


def _by_name(value: object) -> object:
    """A list of named things as a mapping."""
    if (
        isinstance(value, list)
        and value
        and all(isinstance(one, dict) and "name" in one for one in value)
    ):
        return {one["name"]: {k: v for k, v in one.items() if k != "name"} for one in value}
    return value
