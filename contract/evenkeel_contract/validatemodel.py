"""Rules across the fields of `spec.model`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

from evenkeel_contract.spec.model import BUCKETS, DOWNLOADS, AccessMode, CacheFill
from evenkeel_contract.spec.resources import FairInferenceService
from evenkeel_contract.values import Fault

_SHARED: Final = frozenset({AccessMode.READ_WRITE_MANY, AccessMode.READ_ONLY_MANY})
_CACHE: Final = "spec.model.cache"


def object_store_is_not_used(service: FairInferenceService) -> Iterator[Fault]:
    model = service.spec.model
    if model.object_store is not None and model.scheme not in BUCKETS:
        yield Fault(
            "spec.model.objectStore",
            f"has no effect with an {model.scheme}:// source; remove it, or use s3:// or gs://",
            about=("spec.model.source",),
        )


def object_store_of_another_kind(service: FairInferenceService) -> Iterator[Fault]:
    model = service.spec.model
    store = model.object_store
    if store is None or model.scheme != "gs":
        return
    for name, value in (("endpoint", store.endpoint), ("region", store.region)):
        if value is not None:
            yield Fault(
                f"spec.model.objectStore.{name}",
                "has no effect with a gs:// source; remove it",
                about=("spec.model.source",),
            )


def credentials_and_anonymous(service: FairInferenceService) -> Iterator[Fault]:
    store = service.spec.model.object_store
    if store is not None and store.anonymous and store.secret_ref is not None:
        yield Fault(
            "spec.model.objectStore.anonymous",
            "is set together with secretRef; remove one of the two",
            about=("spec.model.objectStore.secretRef",),
        )


def cache_has_no_volume(service: FairInferenceService) -> Iterator[Fault]:
    cache = service.spec.model.cache
    if cache is None:
        return
    if cache.claim_name is None and cache.size is None:
        message = "is required without claimName; set size or claimName"
        yield Fault(f"{_CACHE}.size", message, about=(f"{_CACHE}.claimName",))
    if cache.claim_name is not None:
        given = {"size": cache.size, "storageClassName": cache.storage_class_name}
        for name in (name for name, value in given.items() if value is not None):
            yield Fault(
                f"{_CACHE}.claimName",
                f"is set together with {name}; remove one of the two",
                about=(f"{_CACHE}.{name}",),
            )


def cache_cannot_be_filled(service: FairInferenceService) -> Iterator[Fault]:
    model = service.spec.model
    cache = model.cache
    if cache is None:
        return
    path, about = f"{_CACHE}.fill", ("spec.model.source",)
    if cache.fill is CacheFill.JOB and model.scheme not in DOWNLOADS:
        message = f"must not be Job with a {model.scheme}:// source, which needs no download; remove cache"
        yield Fault(path, message, about=about)
    elif cache.fill is CacheFill.REPLICAS and model.scheme in BUCKETS:
        message = f"must be Job with an {model.scheme}:// source; remove fill"
        yield Fault(path, message, about=about)
    if (
        model.filled_by_job
        and cache.claim_name is None
        and set(cache.access_modes) == {AccessMode.READ_ONLY_MANY}
    ):
        message = "must include ReadWriteMany or ReadWriteOnce, since a Job writes the files"
        yield Fault(f"{_CACHE}.accessModes", message, about=(path, *about))


def cache_cannot_be_shared(service: FairInferenceService) -> Iterator[Fault]:
    cache = service.spec.model.cache
    if cache is None or not _SHARED.isdisjoint(cache.access_modes):
        return
    scaling = service.spec.autoscaling
    most = scaling.max_replicas if scaling else (service.spec.engine.replicas or 1)
    if most > 1:
        source = "spec.autoscaling.maxReplicas" if scaling else "spec.engine.replicas"
        yield Fault(
            f"{_CACHE}.accessModes",
            f"must include ReadWriteMany or ReadOnlyMany for {most} replicas ({source}), since they may run on several nodes",
            about=(source,),
        )


MODEL_RULES: Final[Sequence[Callable[[FairInferenceService], Iterable[Fault]]]] = (
    object_store_is_not_used,
    object_store_of_another_kind,
    credentials_and_anonymous,
    cache_has_no_volume,
    cache_cannot_be_filled,
    cache_cannot_be_shared,
)
