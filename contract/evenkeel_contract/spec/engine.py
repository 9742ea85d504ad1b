"""The model and the replicas that serve it: `spec.model` and `spec.engine`."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Annotated

from evenkeel_contract.constraints import Length, Pattern
from evenkeel_contract.quantities import CountOrPercent, Quantity
from evenkeel_contract.spec.common import Count, PodTemplate, Positive, SecretKeyRef, Text

SOURCE = Pattern(
    r"hf://[\w.-]+/[\w.-]+(@[\w.-]+)?|pvc://[a-z0-9.-]+(/[^\x00-\x20\x7f]*)?|file:///[^\x00-\x20\x7f]*",
    "hf://organisation/model, pvc://claim/path or file:///path",
)


class Runtime(Enum):
    """The server that a replica runs."""

    SGLANG = "SGLang"
    SIMULATOR = "Simulator"  # answers like SGLang, with times from a cost model; needs no GPU


class ReplicaPolicyName(Enum):
    """How a replica orders its waiting requests (design R1)."""

    DLPM = "DLPM"
    VTC = "VTC"
    VTC_PREDICT = "VTCPredict"  # VTC that charges predicted output at admission
    DRR = "DRR"  # deficit round robin: one quantum each turn, in order of joining
    LCF = "LCF"  # least counter first, for comparisons: a new client is owed all earlier service
    LPM = "LPM"
    FCFS = "FCFS"


class AccessMode(Enum):
    """Access mode of a PersistentVolumeClaim."""

    READ_WRITE_MANY = "ReadWriteMany"
    READ_ONLY_MANY = "ReadOnlyMany"
    READ_WRITE_ONCE = "ReadWriteOnce"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cache:
    """A volume that keeps the model's files, so that a new replica does not download them."""

    size: Quantity
    """Size of the volume."""
    storage_class_name: Annotated[str, Length(1, 253)] | None = None
    """Storage class of the volume. If not set, the cluster's default storage class is used."""
    access_modes: Annotated[tuple[AccessMode, ...], Length(1, 3)] = (AccessMode.READ_WRITE_MANY,)
    """Access modes of the volume. More than one replica needs ReadWriteMany or ReadOnlyMany."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """The model that the service answers with."""

    source: Annotated[str, SOURCE, Length(1, 1024)]
    """Location of the model's files: `hf://organisation/model`, `pvc://claim/path` or `file:///path`. An `hf://` source may end
    with `@` and a branch, tag or commit."""
    served_name: Text | None = None
    """Model name that clients send in requests. If not set, it is the last part of `source`."""
    token_secret_ref: SecretKeyRef | None = None
    """Secret entry with the Hugging Face token. Needed only for a gated or private `hf://` source."""
    cache: Cache | None = None
    """Volume for the model's files. If not set, each replica downloads them into its own container."""

    @property
    def name(self) -> str:
        """Model name that clients send in requests."""
        return self.served_name or self.source.rstrip("/").rsplit("/", 1)[-1].split("@")[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """GPUs of one replica."""

    resource_name: Annotated[str, Length(1, 253)] = "nvidia.com/gpu"
    """Extended resource that a replica requests."""
    count: Positive = 1
    """GPUs per replica. The model is split over them by tensor parallelism."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollout:
    """Pace of a rollout."""

    max_surge: CountOrPercent = CountOrPercent.from_plain(1)
    """Replicas that a rollout may add above the desired number, as a number or a percentage."""
    max_unavailable: CountOrPercent = CountOrPercent.from_plain(0)
    """Replicas that a rollout may remove below the desired number, as a number or a percentage."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """The engine replicas, one pod each."""

    runtime: Runtime = Runtime.SGLANG
    """Server that each replica runs. Simulator needs no GPU and generates no real text."""
    image: Text | None = None
    """Container image of the replicas. If not set, the operator's default image is used.

    The operator pins the default when it first sees the service and keeps it until annotation evenkeel.dev/upgrade is set."""
    replicas: Count | None = None
    """Number of replicas. Set either this field or `spec.autoscaling`. If neither is set, the service has 1 replica."""
    gpu: Gpu = field(default_factory=Gpu)
    """GPUs of each replica. Runtime Simulator ignores them."""
    args: Annotated[tuple[Text, ...], Length(0, 128)] = ()
    """Additional flags of the engine, each as one entry `--flag=value`. Flags that Evenkeel sets are refused."""
    rollout: Rollout = field(default_factory=Rollout)
    """Pace at which a rollout replaces replicas."""
    template: PodTemplate = field(default_factory=PodTemplate)
    """Changes to the generated engine pods, applied by a strategic merge."""
