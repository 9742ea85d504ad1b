"""The rules of `validatemodel` in CEL."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from evenkeel_contract.crd.rule import Rule, on_field
from evenkeel_contract.crd.scalars import unless_no_quantity
from evenkeel_contract.spec.model import BUCKETS, DOWNLOADS, Cache, Model, ObjectStore


def _is_one_of(schemes: frozenset[str]) -> str:
    """The condition that the source of a model has one of the schemes."""
    return f"self.source.split('://')[0] in {sorted(schemes)}"


_HAS_FILL: Final = "has(self.cache) && has(self.cache.fill)"
_GROWN: Final = "quantity(string(self.size)).compareTo(quantity(string(oldSelf.size))) >= 0"

MODEL_RULES: Final[Mapping[type, Sequence[Rule]]] = {
    Model: (
        Rule(
            mirrors="adapters_have_the_name_of_the_model",
            # Without servedName the name is a part of source; SpecValid reports that case.
            rule="!has(self.servedName) || !has(self.adapters) || "
            "self.adapters.all(a, a.name != self.servedName)",
            message="adapters: the name of an adapter must differ from servedName",
            field="adapters",
        ),
        on_field(
            "objectStore",
            "has no effect with this source; remove it, or use s3:// or gs://",
            mirrors="object_store_is_not_used",
            rule=f"!has(self.objectStore) || {_is_one_of(BUCKETS)}",
        ),
        *(
            on_field(
                "objectStore",
                f"has a field {name}, which has no effect with a gs:// source; remove it",
                mirrors="object_store_of_another_kind",
                rule=f"!has(self.objectStore) || !has(self.objectStore.{name}) || "
                "!self.source.startsWith('gs://')",
            )
            for name in ("endpoint", "region")
        ),
        on_field(
            "cache.fill",
            "must not be Job with this source, which needs no download; remove cache",
            mirrors="cache_cannot_be_filled",
            rule=f"!({_HAS_FILL} && self.cache.fill == 'Job') || {_is_one_of(DOWNLOADS)}",
        ),
        on_field(
            "cache.fill",
            "must be Job with this source; remove fill",
            mirrors="cache_cannot_be_filled",
            rule=f"!({_HAS_FILL} && self.cache.fill == 'Replicas') || !({_is_one_of(BUCKETS)})",
        ),
        on_field(
            "cache.accessModes",
            "must include ReadWriteMany or ReadWriteOnce, since a Job writes the files",
            mirrors="cache_cannot_be_filled",
            rule="!has(self.cache) || has(self.cache.claimName) || "
            "self.cache.accessModes.exists(m, m != 'ReadOnlyMany') || "
            f"!({_is_one_of(BUCKETS)} || ({_HAS_FILL} && self.cache.fill == 'Job'))",
        ),
    ),
    ObjectStore: (
        on_field(
            "anonymous",
            "is set together with secretRef; remove one of the two",
            mirrors="credentials_and_anonymous",
            rule="!(self.anonymous && has(self.secretRef))",
        ),
    ),
    Cache: (
        on_field(
            "size",
            "is required without claimName; set size or claimName",
            mirrors="cache_has_no_volume",
            rule="has(self.size) || has(self.claimName)",
        ),
        *(
            on_field(
                "claimName",
                f"is set together with {name}; remove one of the two",
                mirrors="cache_has_no_volume",
                rule=f"!has(self.claimName) || !has(self.{name})",
            )
            for name in ("size", "storageClassName")
        ),
        on_field(
            "storageClassName",
            "cannot change while the volume exists; remove model.cache, "
            "apply, then add it with the new class",
            mirrors="transition",
            rule="has(self.storageClassName) == has(oldSelf.storageClassName) && "
            "(!has(self.storageClassName) || self.storageClassName == oldSelf.storageClassName)",
        ),
        on_field(
            "accessModes",
            "cannot change while the volume exists; remove model.cache, "
            "apply, then add it with the new modes",
            mirrors="transition",
            rule="self.accessModes == oldSelf.accessModes",
        ),
        on_field(
            "size",
            "cannot shrink; remove model.cache, apply, then add it with the new size",
            mirrors="transition",
            rule="!has(self.size) || !has(oldSelf.size) || "
            f"{unless_no_quantity('self.size', _GROWN)}",
        ),
    ),
}
