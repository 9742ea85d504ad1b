"""APIs that a cluster may lack, the Prometheus operator's and the Gateway API's: their definitions, for a time.

Their controllers do not run. So objects are accepted, found and restored, but not scraped or routed.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from e2e.kubectl import Kubectl
from e2e.rig.definitions import FILES


def are_there(kubectl: Kubectl) -> bool:
    """Whether the cluster already has one of them, which then belongs to another owner."""
    there = kubectl("get", "crd", "-o", "name")
    return any(name in there for name in FILES)


@contextmanager
def optional_apis(kubectl: Kubectl, files: dict[str, Path]) -> Iterator[None]:
    """The APIs, for the time of the context."""
    try:
        for path in files.values():
            kubectl("apply", "--server-side", "-f", path)
        kubectl(
            "wait", "--for=condition=Established", "--timeout=30s", *(f"crd/{n}" for n in files)
        )
        yield
    finally:
        kubectl("delete", "crd", "--ignore-not-found", *files)
