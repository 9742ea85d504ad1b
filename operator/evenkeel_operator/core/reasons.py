"""The reasons of conditions and events: one CamelCase word each, for programs. A note adds the message for people."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Note:
    """A reason with its message, for a condition or an event."""

    reason: str
    message: str


# Ready, EnginesReady, RouterReady
ALL_READY: Final = "AllReady"  # every desired pod is ready
SERVING: Final = "Serving"  # at least one engine and one router are ready
STARTING: Final = "Starting"  # pods exist, and not all are ready yet
NOT_CREATED: Final = "NotCreated"  # no object exists yet
NO_REPLICAS: Final = "NoReplicas"  # the desired number is 0
IDLE: Final = "Idle"  # 0 replicas until a request arrives
ACTIVATING: Final = "Activating"  # the first engine starts, and requests wait for it
ENGINES_NOT_READY: Final = "EnginesNotReady"  # no engine is ready; EnginesReady has the cause
ROUTER_NOT_READY: Final = "RouterNotReady"  # no router is ready; RouterReady has the cause

# Why pods are not ready
UNSCHEDULABLE: Final = "Unschedulable"  # no node has enough room or GPUs
IMAGE_CANNOT_BE_PULLED: Final = "ImageCannotBePulled"  # the message has the error of the kubelet
CANNOT_START: Final = "CannotStart"  # a Secret, volume or ResourceClaimTemplate of a pod is missing
CRASHING: Final = "Crashing"  # a container exited, and is not ready again yet
NOT_READY: Final = "NotReady"  # a pod was ready, and no longer is
NOT_IN_ROTATION: Final = "NotInRotation"  # a pod's containers are ready, and no router uses it yet
PODS_REFUSED: Final = "PodsRefused"  # a quota or an admission webhook refuses new pods
ROLLOUT_STUCK: Final = (
    "RolloutStuck"  # new pods crash, cannot start or cannot be created, or the Deployment is paused
)

# Progressing
ROLLING_OUT: Final = "RollingOut"  # new pods replace old ones
ROLLOUT_BLOCKED: Final = "RolloutBlocked"  # new pods fit on no node, or no router takes them
STABLE: Final = "Stable"  # no rollout is in progress

# Degraded
HEALTHY: Final = "Healthy"  # all objects match the spec
OLD_SPEC_RUNS: Final = "OldSpecRuns"  # the newest spec is invalid
FEWER_REPLICAS: Final = "FewerReplicas"  # fewer replicas are ready than desired
NAME_TAKEN: Final = "NameTaken"  # a foreign object has a name that the service needs
HOST_TAKEN: Final = "HostTaken"  # the host, or its path, belongs to another service
BEHIND_GATEWAY: Final = (
    "BehindGateway"  # a gateway serves the service, so its exposure or federation has no effect
)
API_MISSING: Final = "ApiMissing"  # the spec needs an API that the cluster lacks
CONFIG_TOO_LARGE: Final = "ConfigTooLarge"  # some tenants do not fit into the configuration
CONFIG_NEARLY_FULL: Final = "ConfigNearlyFull"  # tenants use 80 % of a limit of the configuration
SECRET_MISSING: Final = "SecretMissing"  # a Secret that the spec names does not exist
SECRET_NOT_LABELLED: Final = "SecretNotLabelled"  # a Secret lacks the label evenkeel.dev/use=true
TARGET_NOT_LABELLED: Final = (
    "TargetNotLabelled"  # the object of scaleTargetRef lacks the label evenkeel.dev/use=true
)
TENANTS_NOT_SHARED: Final = (
    "TenantsNotShared"  # no tenant of tenancy.namespace is shared with the service's namespace
)
POOL_MISSING: Final = "PoolMissing"  # an InferencePool that the spec names does not exist
FOREIGN_SCALER: Final = (
    "ForeignScaler"  # a HorizontalPodAutoscaler or another service scales the same object
)
SECOND_OPERATOR: Final = "SecondOperator"  # another operator serves the service with other settings
CLIENT_KEYS_MISSING: Final = "ClientKeysMissing"  # requests reach an engine without a client key
STORE_FAILS: Final = "StoreFails"  # a router cannot use the store of the ledger
REFUSED: Final = "Refused"  # the API server refuses an object
RIGHT_MISSING: Final = "RightMissing"  # the operator lacks a right that the message names
WEBHOOK_FAILS: Final = "WebhookFails"  # an admission webhook that the message names does not answer
API_SERVER_ERROR: Final = (
    "ApiServerError"  # the API server fails a call; the message has its answer
)

# ModelCached
CACHED: Final = "Cached"  # the volume has all files of the model
DOWNLOADING: Final = "Downloading"  # a Job downloads the model; the message has the progress
DOWNLOAD_FAILS: Final = "DownloadFails"  # the message has the error; the download is repeated
MODEL_NOT_CACHED: Final = "ModelNotCached"  # engines start when the volume has all files

# PluginInactive
POLICY_ACTIVE: Final = "PolicyActive"  # no engine reports that its policy is inactive
MISMATCH: Final = "Mismatch"  # routers order the queue of an engine that does not fit the plug-in

# SpecValid
VALID: Final = "Valid"  # the newest spec is in use
INVALID: Final = "Invalid"  # the message lists every fault with its path

# ScalingActive
NOT_CONFIGURED: Final = "NotConfigured"  # spec.autoscaling is not set
SCALING: Final = "Scaling"  # True: the number follows demand
LEARNING: Final = "LearningCapacity"  # True: capacity is unknown, so demand alone adds no replicas
AT_MAXIMUM: Final = "AtMaximum"  # True: the recommendation exceeds maxReplicas
NO_DATA_YET: Final = "NoDataYet"  # this operator has not queried Prometheus yet
NO_DATA: Final = "NoData"  # Prometheus has no series of this service's routers
DATA_STALE: Final = "DataStale"  # the newest sample is too old
DATA_PARTIAL: Final = "DataPartial"  # Prometheus warns that its answer is incomplete
NOT_A_NUMBER: Final = "NotANumber"  # Prometheus answers NaN or infinity for demand
UNREACHABLE: Final = "PrometheusUnreachable"  # Prometheus does not answer
NO_ANSWER: Final = "PrometheusError"  # the answer is an error, or another server's
NOT_ALLOWED: Final = "PrometheusNotAllowed"  # the chart's allowPrometheus lacks this address

# status.scaling; the reasons of a False ScalingActive too
DEMAND: Final = "Demand"  # the number follows the clients' demand
QUEUE_TIME: Final = "QueueTime"  # targets.queueTime is exceeded
TTFT: Final = "TtftP95"  # targets.ttftP95 is exceeded
IN_USE: Final = "InUse"  # requests are served, so at least one replica stays
ACTIVATED: Final = "Activated"  # requests wait for the first replica
AT_MINIMUM: Final = "AtMinimum"  # demand needs fewer replicas than minReplicas
STABILIZING: Final = "Stabilizing"  # the windows of spec.autoscaling.behavior hold the number
RATE_LIMITED: Final = "RateLimited"  # the policies of spec.autoscaling.behavior limit the change

# InferenceTenant's Ready
KEYS_KNOWN: Final = "KeysKnown"  # routers accept all keys of the tenant
KEYS_MISSING: Final = "KeysMissing"  # a Secret with a key is missing
KEYS_CLASH: Final = "KeysClash"  # an older tenant has the same key

# FairInferenceGateway's ModelsReady and Ready
SERVICE_MISSING: Final = "ServiceMissing"  # a service that the gateway names does not exist
SERVICE_TAKEN: Final = "ServiceTaken"  # another gateway serves the service already
MODEL_CLASH: Final = "ModelClash"  # two services of the gateway have the same model name
FALLBACK_UNKNOWN: Final = "FallbackUnknown"  # a fallback is no other model of the gateway
NO_MODELS: Final = "NoModels"  # the gateway has no model that it can serve

# Events
SCALED: Final = "Scaled"  # the built-in scaler changed the number of replicas
FOREIGN_FIELD: Final = "ForeignField"  # another manager added a field that is not the operator's
REVERTED: Final = "Reverted"  # a foreign change of a field that the operator owns was reverted

RENAMED: Final = {"AsPromised": HEALTHY, "ApiAbsent": API_MISSING}
"""Reasons that version 0.1 wrote into status, and their names now: a new name alone is no change to report."""
