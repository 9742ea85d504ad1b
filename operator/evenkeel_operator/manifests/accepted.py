"""The ConfigMap that remembers which spec runs (`core/accepted`)."""

from __future__ import annotations

from evenkeel_contract.names import ENGINE_COMPONENT, accepted_name

from evenkeel_operator.core.accepted import Accepted, accepted_data
from evenkeel_operator.manifests.metadata import manifest
from evenkeel_operator.manifests.subject import Manifest, Owner


def accepted_map(owner: Owner, accepted: Accepted) -> Manifest:
    """Written before all else: whoever finds it knows what the rest is to be."""
    found = manifest(
        owner,
        api="v1",
        kind="ConfigMap",
        name=accepted_name(owner.name),
        component=ENGINE_COMPONENT,
    )
    found["data"] = accepted_data(accepted)
    return found
