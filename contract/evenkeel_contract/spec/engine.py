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
    """What runs in a replica."""

    SGLANG = "SGLang"
    SIMULATOR = "Simulator"  # answers like SGLang in the time a cost model says; needs no GPU


class ReplicaPolicyName(Enum):
    """How a replica orders its waiting requests (design R1)."""

    DLPM = "DLPM"
    VTC = "VTC"
    VTC_PREDICT = "VTCPredict"  # VTC that charges output in advance, by the client's last lengths
    DRR = "DRR"  # deficit round robin: turns in order of joining, a quantum each
    LCF = "LCF"  # for comparisons: newcomers are owed all that others got before
    LPM = "LPM"
    FCFS = "FCFS"


class AccessMode(Enum):
    """How a volume may be mounted."""

    READ_WRITE_MANY = "ReadWriteMany"
    READ_ONLY_MANY = "ReadOnlyMany"
    READ_WRITE_ONCE = "ReadWriteOnce"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cache:
    """A volume that keeps the model's files, so that a replica starts without fetching them."""

    size: Quantity
    """How large the volume is."""
    storage_class_name: Annotated[str, Length(1, 253)] | None = None
    """The storage class; absent: the cluster's default."""
    access_modes: Annotated[tuple[AccessMode, ...], Length(1, 3)] = (AccessMode.READ_WRITE_MANY,)
    """More than one replica needs ReadWriteMany or ReadOnlyMany."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """What is served."""

    source: Annotated[str, SOURCE, Length(1, 1024)]
    """Where the model's files are: hf://organisation/model, pvc://claim/path or file:///path."""
    served_name: Text | None = None
    """The name in requests' `model`; absent: the last part of `source`."""
    token_secret_ref: SecretKeyRef | None = None
    """The token that fetching from `hf://` needs, if any."""
    cache: Cache | None = None
    """Absent: every replica fetches the files into its own container."""

    @property
    def name(self) -> str:
        """The name in requests' `model`."""
        return self.served_name or self.source.rstrip("/").rsplit("/", 1)[-1].split("@")[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """What each replica computes on."""

    resource_name: Annotated[str, Length(1, 253)] = "nvidia.com/gpu"
    """The extended resource that a replica asks for."""
    count: Positive = 1
    """Per replica; the model is split over them (tensor parallelism)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollout:
    """How replicas are exchanged for new ones."""

    max_surge: CountOrPercent = CountOrPercent.from_plain(1)
    """Replicas above the wanted number while a rollout runs."""
    max_unavailable: CountOrPercent = CountOrPercent.from_plain(0)
    """Replicas below the wanted number while a rollout runs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """The replicas."""

    runtime: Runtime = Runtime.SGLANG
    """What runs in a replica."""
    image: Text | None = None
    """Container image; absent: the operator's default, pinned when the service was made."""
    replicas: Count | None = None
    """How many; absent with `autoscaling` absent too: 1. At most one of the two may be given."""
    gpu: Gpu = field(default_factory=Gpu)
    """What each replica computes on; ignored by runtime Simulator."""
    args: Annotated[tuple[Text, ...], Length(0, 128)] = ()
    """Further flags of the engine, each as one entry `--flag=value`; flags that Evenkeel sets itself
    are refused."""
    rollout: Rollout = field(default_factory=Rollout)
    """How replicas are exchanged for new ones."""
    template: PodTemplate = field(default_factory=PodTemplate)
    """What to lay over the generated pods."""
