"""Volumes: the model's files, scratch space under a read-only root, the ledger's file."""

from __future__ import annotations

from typing import Final

from evenkeel_contract.names import ENGINE_COMPONENT, ROUTER_COMPONENT, engine_name, router_name
from evenkeel_contract.spec import AccessMode, Runtime, StateStore

from evenkeel_operator.manifests.command import CACHE_PATH, CLAIM_PATH, claim_of
from evenkeel_operator.manifests.context import BuildContext, Manifest, manifest

STATE_PATH: Final = "/var/lib/evenkeel"
LEDGER_FILE: Final = f"{STATE_PATH}/ledger"
_DEFAULT_STATE_SIZE: Final = "1Gi"


def cache_claim(context: BuildContext) -> Manifest | None:
    """The volume for the model's files, if the spec sets one."""
    cache = context.spec.model.cache
    if cache is None:
        return None
    found = manifest(
        context.owner,
        api="v1",
        kind="PersistentVolumeClaim",
        name=engine_name(context.name),
        component=ENGINE_COMPONENT,
    )
    found["spec"] = {
        "accessModes": [mode.value for mode in cache.access_modes],
        "resources": {"requests": {"storage": str(cache.size.to_plain())}},
    }
    if cache.storage_class_name is not None:
        found["spec"]["storageClassName"] = cache.storage_class_name
    return found


def state_claim(context: BuildContext) -> Manifest | None:
    """The volume of store File."""
    state = context.spec.router.state
    if state.store is not StateStore.FILE:
        return None
    size = _DEFAULT_STATE_SIZE if state.file is None else str(state.file.size.to_plain())
    found = manifest(
        context.owner,
        api="v1",
        kind="PersistentVolumeClaim",
        name=router_name(context.name),
        component=ROUTER_COMPONENT,
    )
    found["spec"] = {
        "accessModes": ["ReadWriteOnce"],
        "resources": {"requests": {"storage": size}},
    }
    return found


def model_volumes(context: BuildContext) -> list[Manifest]:
    """The volumes of an engine's pod."""
    volumes: list[Manifest] = [{"name": "tmp", "emptyDir": {}}]
    if context.spec.engine.runtime is Runtime.SIMULATOR:
        return volumes
    # Tensor parallelism shares memory; a container's default of 64 MiB is not enough for NCCL.
    volumes.append({"name": "shm", "emptyDir": {"medium": "Memory"}})
    claim = claim_of(context.spec.model)
    if claim is not None:
        source = {"claimName": claim, "readOnly": True}
        volumes.append({"name": "claim", "persistentVolumeClaim": source})
    volumes.append({"name": "cache", **_cache_source(context)})
    return volumes


def model_mounts(context: BuildContext) -> list[Manifest]:
    """The mounts of an engine's container."""
    mounts: list[Manifest] = [{"name": "tmp", "mountPath": "/tmp"}]
    if context.spec.engine.runtime is Runtime.SIMULATOR:
        return mounts
    mounts.append({"name": "shm", "mountPath": "/dev/shm"})
    if claim_of(context.spec.model) is not None:
        mounts.append({"name": "claim", "mountPath": CLAIM_PATH, "readOnly": True})
    mounts.append({"name": "cache", "mountPath": CACHE_PATH})
    return mounts


def _cache_source(context: BuildContext) -> Manifest:
    cache = context.spec.model.cache
    if cache is None:
        return {"emptyDir": {}}
    claim: Manifest = {"claimName": engine_name(context.name)}
    if set(cache.access_modes) == {AccessMode.READ_ONLY_MANY}:
        claim["readOnly"] = True
    return {"persistentVolumeClaim": claim}
