"""The model of a FairInferenceService: where its files are, and how replicas get them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Annotated, Final

from evenkeel_contract.spec.credentials import SecretRef
from evenkeel_contract.spec.parts import DnsName, SecretKeyRef, Text
from evenkeel_contract.values import Length, Pattern, Quantity, Range, UniqueBy, Url

_HUB: Final = r"hf://[\w.-]+/[\w.-]+"
_REVISION: Final = r"(@[\w.-]+)?"
_CLAIM: Final = r"pvc://[a-z0-9.-]+(/[^\x00-\x20\x7f]*)?"
_FILE: Final = r"file:///[^\x00-\x20\x7f]*"
_BUCKET: Final = r"(s3|gs)://[a-z0-9][a-z0-9._-]{1,221}[a-z0-9](/[^\x00-\x20\x7f?#]*)?"
_IMAGE: Final = (
    r"oci://[a-z0-9.-]+(:[0-9]{1,5})?/[a-z0-9._/-]+(:[\w.-]{1,128})?(@sha256:[0-9a-f]{64})?"
    r"(#[\w.-]+(/[\w.-]+)*)?"
)
SOURCE: Final = Pattern(
    f"{_HUB}{_REVISION}|{_BUCKET}|{_IMAGE}|{_CLAIM}|{_FILE}",
    "hf://organisation/model, s3://bucket/prefix, gs://bucket/prefix, oci://registry/image:tag, pvc://claim/path or "
    "file:///path",
)
# Engines load adapters without a revision. A colon separates the model's name from the adapter's.
ADAPTER_SOURCE: Final = Pattern(
    f"{_HUB}|{_CLAIM}|{_FILE}",
    "hf://organisation/adapter, pvc://claim/path or file:///path, without a revision",
)
ADAPTER_NAME: Final = Pattern(
    r"[a-zA-Z0-9][-._/a-zA-Z0-9]*", "a name of letters, digits, '-', '_', '.' and '/'"
)
BUCKETS: Final = frozenset({"s3", "gs"})
"""Schemes of object stores. No engine of every version reads them, so Evenkeel downloads them."""
DOWNLOADS: Final = BUCKETS | {"hf"}
"""Schemes of sources that a Job can download."""


class AccessMode(Enum):
    """Access mode of a PersistentVolumeClaim."""

    READ_WRITE_MANY = "ReadWriteMany"
    READ_ONLY_MANY = "ReadOnlyMany"
    READ_WRITE_ONCE = "ReadWriteOnce"


class CacheFill(Enum):
    """Who downloads the model's files into the volume."""

    REPLICAS = "Replicas"  # the first replica that starts
    JOB = "Job"  # a Job, before any replica starts


@dataclass(frozen=True, slots=True, kw_only=True)
class Cache:
    """A volume that keeps the model's files, so that a new replica does not download them."""

    size: Quantity | None = None
    """Size of the volume. Required without `claimName`."""
    claim_name: DnsName | None = None
    """An existing PersistentVolumeClaim of the namespace, instead of `size`. It stays when the service is deleted."""
    storage_class_name: Annotated[str, Length(1, 253)] | None = None
    """Storage class of the volume. If not set, the cluster's default storage class is used."""
    access_modes: Annotated[tuple[AccessMode, ...], Length(1, 3)] = (AccessMode.READ_WRITE_MANY,)
    """Access modes of the volume. More than one replica needs ReadWriteMany or ReadOnlyMany."""
    fill: CacheFill | None = None
    """Who downloads the files. Job: a Job, once for each source; replicas start when it is complete, and mount the volume read-only.
    Replicas: each replica that finds no files. If not set, it is Job for `s3://` and `gs://`, and Replicas for `hf://`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectStore:
    """How the bucket of an `s3://` or `gs://` source is read."""

    secret_ref: SecretRef | None = None
    """Secret with the credentials. For `s3://` it has the entries AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, and may have AWS_SESSION_TOKEN.
    For `gs://` it has the entry credentials.json, the key of a service account. If not set, the identity of the pod is used."""
    endpoint: Annotated[str, Url(), Length(1, 2048)] | None = None
    """Address of a store that is compatible with S3, such as `https://minio.storage:9000`. If not set, it is that of AWS."""
    region: Annotated[str, Pattern(r"[a-z0-9-]{1,64}", "a region such as eu-west-1")] | None = None
    """Region of an S3 bucket. If not set, it is us-east-1."""
    anonymous: bool = False
    """Reads a public bucket without credentials."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Adapter:
    """A LoRA adapter of the model."""

    name: Annotated[str, ADAPTER_NAME, Length(1, 253)]
    """Name that clients send as the model, alone or as `model:name`."""
    source: Annotated[str, ADAPTER_SOURCE, Length(1, 1024)]
    """Location of the adapter's files: `hf://organisation/adapter`, `pvc://claim/path` or `file:///path`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """The model that the service answers with."""

    source: Annotated[str, SOURCE, Length(1, 1024)]
    """Location of the model's files: `hf://organisation/model`, `s3://bucket/prefix`, `gs://bucket/prefix`,
    `oci://registry/image:tag`, `pvc://claim/path` or `file:///path`. An `hf://` source may end with `@` and a branch, tag or commit. An
    `oci://` source may end with `#` and a folder of the image; it needs Kubernetes 1.35, or feature gate ImageVolume."""
    served_name: Text | None = None
    """Model name that clients send in requests. If not set, it is the last part of `source`."""
    token_secret_ref: SecretKeyRef | None = None
    """Secret entry with the Hugging Face token. Needed only for a gated or private `hf://` source."""
    object_store: ObjectStore | None = None
    """How the bucket of an `s3://` or `gs://` source is read."""
    cache: Cache | None = None
    """Volume for the model's files. If not set, each replica downloads them into its own container."""
    adapters: Annotated[tuple[Adapter, ...], UniqueBy(("name",)), Length(0, 128)] = ()
    """LoRA adapters that each replica serves in addition to the model."""
    adapters_per_batch: Annotated[int, Range(1, 128)] = 8
    """Maximum number of adapters that the requests of one batch may use. Requests for the model without an adapter count as one adapter."""

    @property
    def name(self) -> str:
        """Model name that clients send in requests."""
        if self.served_name:
            return self.served_name
        location = self.source.partition("://")[2].rstrip("/")
        if self.scheme == "oci":
            location = location.partition("#")[0].partition("@")[0]
            return location.rsplit("/", 1)[-1].partition(":")[0]
        return location.rsplit("/", 1)[-1].split("@")[0]

    @property
    def scheme(self) -> str:
        """What stands before `://` in the source."""
        return self.source.partition("://")[0]

    @property
    def filled_by_job(self) -> bool:
        """Whether a Job downloads the files into the cache, and replicas wait for it."""
        if self.cache is None or self.scheme not in DOWNLOADS:
            return False
        return self.scheme in BUCKETS or self.cache.fill is CacheFill.JOB

    @property
    def is_downloaded(self) -> bool:
        """Whether Evenkeel downloads the files, and not the engine."""
        return self.scheme in BUCKETS or self.filled_by_job
