"""The reasons of conditions and events: one CamelCase word each, for programs; never renamed."""

from __future__ import annotations

from typing import Final

# Ready, EnginesReady, RouterReady
ALL_READY: Final = "AllReady"  # every pod that is wanted takes requests
SERVING: Final = "Serving"  # Ready: at least one engine and one router do
STARTING: Final = "Starting"  # pods are there, not (all) ready yet
NOT_CREATED: Final = "NotCreated"  # nothing was made yet
NO_REPLICAS: Final = "NoReplicas"  # none is wanted
IDLE: Final = "Idle"  # none is wanted until a request wants one
ACTIVATING: Final = "Activating"  # the first one is starting, and requests wait for it
ENGINES_NOT_READY: Final = "EnginesNotReady"
ROUTER_NOT_READY: Final = "RouterNotReady"

# Why pods are not ready
UNSCHEDULABLE: Final = "Unschedulable"  # no node has room, or GPUs
IMAGE_CANNOT_BE_PULLED: Final = "ImageCannotBePulled"
CANNOT_START: Final = "CannotStart"  # a Secret or volume that a container needs is missing
CRASHING: Final = "Crashing"
NOT_IN_ROTATION: Final = "NotInRotation"  # its containers are ready, and no router sends there yet
PODS_REFUSED: Final = "PodsRefused"  # by a quota or an admission webhook
ROLLOUT_STUCK: Final = "RolloutStuck"

# Progressing
ROLLING_OUT: Final = "RollingOut"
ROLLOUT_BLOCKED: Final = "RolloutBlocked"  # new pods find no room beside the old ones, or no router
STABLE: Final = "Stable"

# Degraded
AS_PROMISED: Final = "AsPromised"
OLD_SPEC_RUNS: Final = "OldSpecRuns"  # the wanted spec is not good
FEWER_REPLICAS: Final = "FewerReplicas"
NAME_TAKEN: Final = "NameTaken"  # an object of somebody else's has a name that is ours
API_ABSENT: Final = "ApiAbsent"  # something was asked for that the cluster has no API for
CONFIG_TOO_LARGE: Final = "ConfigTooLarge"  # for one Secret
SECRET_MISSING: Final = "SecretMissing"
FOREIGN_SCALER: Final = "ForeignScaler"  # somebody scales a Deployment of ours
REFUSED: Final = "Refused"  # by the API server

# SpecValid
VALID: Final = "Valid"
INVALID: Final = "Invalid"

# ScalingActive
NOT_CONFIGURED: Final = "NotConfigured"  # spec.autoscaling is absent
SCALING: Final = "Scaling"  # True: the number follows demand
LEARNING: Final = (
    "LearningCapacity"  # True: nobody knows yet what a replica can do; demand alone adds none
)
AT_MAXIMUM: Final = "AtMaximum"  # True: more are wanted than maxReplicas
NO_DATA_YET: Final = "NoDataYet"  # this operator has not asked Prometheus yet
NO_DATA: Final = "NoData"  # Prometheus has nothing of this service's routers
DATA_STALE: Final = "DataStale"  # nothing recent
DATA_PARTIAL: Final = "DataPartial"  # Prometheus itself warns that something is missing
UNREACHABLE: Final = "PrometheusUnreachable"
NO_ANSWER: Final = "PrometheusError"  # it answers, with something else than figures
NOT_ALLOWED: Final = "PrometheusNotAllowed"  # by the operator's --allow-prometheus

# status.scaling; the reasons of a False ScalingActive too
DEMAND: Final = "Demand"  # clients' demand, each cut at its cap, over usable capacity
QUEUE_TIME: Final = "QueueTime"  # targets.queueTime is exceeded
TTFT: Final = "TtftP95"  # targets.ttftP95 is exceeded
IN_USE: Final = "InUse"  # somebody is served: not 0
ACTIVATED: Final = "Activated"  # requests wait for the first replica
AT_MINIMUM: Final = "AtMinimum"  # minReplicas
STABILIZING: Final = "Stabilizing"  # behavior's windows differ on which way to go
RATE_LIMITED: Final = "RateLimited"  # behavior's policies allow no larger change yet

# InferenceTenant's Ready
KEYS_KNOWN: Final = "KeysKnown"
KEYS_MISSING: Final = "KeysMissing"
KEYS_CLASH: Final = "KeysClash"

# Events
SCALED: Final = "Scaled"  # the built-in scaler wants another number
REVERTED: Final = "Reverted"  # a foreign change of what the operator owns was put back
KEYS_ROTATED: Final = "KeysRotated"
