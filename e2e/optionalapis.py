"""APIs that a cluster may lack, the Prometheus operator's and the Gateway API's: their definitions, for a time.

Their controllers do not run. So objects are accepted, found and restored, but not scraped or routed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from e2e.kubectl import Kubectl
from e2e.rig.definitions import FILES


def are_there(kubectl: Kubectl) -> bool:
    """Whether the cluster already has one of them, which then belongs to another owner."""
    there = kubectl("get", "crd", "-o", "name")
    return any(name in there for name in FILES)


def create(kubectl: Kubectl, files: Mapping[str, Path]) -> None:
    """Create the APIs, and wait until they can be used."""
    for path in files.values():
        kubectl("apply", "--server-side", "-f", path)
    if files:
        names = (f"crd/{name}" for name in files)
        kubectl("wait", "--for=condition=Established", "--timeout=30s", *names)


def delete(kubectl: Kubectl, names: Iterable[str]) -> None:
    """Delete APIs by the names of their definitions, and wait until they are gone."""
    for name in names:
        kubectl("delete", "crd", "--ignore-not-found", name)


@contextmanager
def optional_apis(kubectl: Kubectl, files: Mapping[str, Path]) -> Iterator[None]:
    """The APIs, for the time of the context."""
    try:
        create(kubectl, files)
        yield
    finally:
        delete(kubectl, files)
