"""Objects that the API server and the contract must judge alike: a good and a bad one for every CEL rule, read by unit tests and by e2e."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from tests.support.crd_documents import (
    AUTOSCALING,
    BUCKET,
    EXTERNAL,
    EXTERNAL_ENGINES,
    GATEWAY,
    GONE,
    POOLED,
    SCALED,
    SELECTED,
    SERVICE,
    TENANT,
    Changes,
    Document,
    changed,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """A good and a bad object for one rule."""

    path: str
    """Where the API server finds the bad one bad (its end)."""
    message: str
    """What the API server says of it (its beginning)."""
    base: Document
    good: Changes
    bad: Changes


def _keys(count: int, *, of: str) -> list[Document]:
    keys = (
        {"name": f"k{i}", "client": f"c{i}", "secretRef": {"name": "keys", "key": f"k{i}"}}
        for i in range(count - 1)
    )
    return [*keys, {"name": "last", "client": of, "secretRef": {"name": "keys", "key": "last"}}]


_REDIS: Final = {"urlSecretRef": {"name": "redis", "key": "url"}}

RULES: Final[Mapping[str, Pair]] = {
    "replicas beside autoscaling": Pair(
        path="spec.engine.replicas",
        message="engine.replicas is set together with autoscaling",
        base=SERVICE,
        good={"spec.engine.replicas": 0},
        bad={"spec.autoscaling": AUTOSCALING},
    ),
    "a volume for one node and several replicas": Pair(
        path="spec.model.cache.accessModes",
        message="model.cache.accessModes must include Read",
        base=SERVICE,
        good={"spec.model.cache.accessModes": ["ReadWriteOnce"], "spec.engine.replicas": 1},
        bad={"spec.model.cache.accessModes": ["ReadWriteOnce"]},
    ),
    "a volume for one node and autoscaling": Pair(
        path="spec.model.cache.accessModes",
        message="model.cache.accessModes must include Read",
        base=SCALED,
        good={
            "spec.model.cache.accessModes": ["ReadWriteOnce"],
            "spec.autoscaling.maxReplicas": 1,
        },
        bad={"spec.model.cache.accessModes": ["ReadWriteOnce"]},
    ),
    "a store for a source that is in none": Pair(
        path="spec.model.objectStore",
        message="objectStore has no effect with this source",
        base=BUCKET,
        good={},
        bad={"spec.model.source": "hf://org/model"},
    ),
    **{
        f"an S3 {name} for Google Cloud Storage": Pair(
            path="spec.model.objectStore",
            message=f"objectStore has a field {name}",
            base=BUCKET,
            good={
                "spec.model.source": "gs://models/llama",
                "spec.model.objectStore": {"secretRef": {"name": "keys"}},
            },
            bad={
                "spec.model.source": "gs://models/llama",
                "spec.model.objectStore": {name: value},
            },
        )
        for name, value in (("endpoint", "http://minio:9000"), ("region", "eu-central-1"))
    },
    "credentials for a public bucket": Pair(
        path="spec.model.objectStore.anonymous",
        message="anonymous is set together with secretRef",
        base=BUCKET,
        good={"spec.model.objectStore": {"anonymous": True}},
        bad={"spec.model.objectStore.anonymous": True},
    ),
    "a Job for what needs no download": Pair(
        path="spec.model.cache.fill",
        message="cache.fill must not be Job with this source",
        base=SERVICE,
        good={"spec.model.cache.fill": "Job"},
        bad={"spec.model.cache.fill": "Job", "spec.model.source": "pvc://claim/path"},
    ),
    "replicas that read a bucket": Pair(
        path="spec.model.cache.fill",
        message="cache.fill must be Job with this source",
        base=BUCKET,
        good={"spec.model.cache.fill": "Job"},
        bad={"spec.model.cache.fill": "Replicas"},
    ),
    "a volume that no Job can write": Pair(
        path="spec.model.cache.accessModes",
        message="cache.accessModes must include ReadWriteMany or ReadWriteOnce",
        base=SERVICE,
        good={"spec.model.cache.accessModes": ["ReadOnlyMany"]},
        bad={"spec.model.cache.accessModes": ["ReadOnlyMany"], "spec.model.cache.fill": "Job"},
    ),
    "a cache without a volume": Pair(
        path="spec.model.cache.size",
        message="size is required without claimName",
        base=BUCKET,
        good={},
        bad={"spec.model.cache.claimName": GONE},
    ),
    **{
        f"an existing volume with a {name}": Pair(
            path="spec.model.cache.claimName",
            message=f"claimName is set together with {name}",
            base=BUCKET,
            good={},
            bad={f"spec.model.cache.{name}": value},
        )
        for name, value in (("size", "1Gi"), ("storageClassName", "fast"))
    },
    "external engines without their place": Pair(
        path="spec.engine.external",
        message="external is required with runtime External",
        base=changed(EXTERNAL, {"spec.autoscaling": GONE}),
        good={},
        bad={"spec.engine.external": GONE},
    ),
    "a place of external engines with another runtime": Pair(
        path="spec.engine.external",
        message="external needs runtime: External",
        base=SERVICE,
        good={"spec.engine": {"runtime": "Simulator"}},
        bad={"spec.engine": {"runtime": "Simulator", "external": EXTERNAL_ENGINES}},
    ),
    "external engines by no label": Pair(
        path="spec.engine.external.selector.matchLabels",
        message="matchLabels must have at least one label",
        base=EXTERNAL,
        good={"spec.engine.external.selector.matchLabels": {"c": ""}},
        bad={"spec.engine.external.selector.matchLabels": {}},
    ),
    **{
        f"external engines without {name} and without a pool": Pair(
            path=f"spec.engine.external.{name}",
            message=f"{name} is required without inferencePool",
            base=EXTERNAL,
            good={},
            bad={f"spec.engine.external.{name}": GONE},
        )
        for name in ("selector", "port")
    },
    "external engines by a port and by a pool": Pair(
        path="spec.engine.external.inferencePool",
        message="inferencePool is set together with",
        base=POOLED,
        good={},
        bad={"spec.engine.external.port": 8000},
    ),
    **{
        f"{name} of external engines": Pair(
            path=f"spec.engine.{name}",
            message=f"{name} has no effect with runtime External",
            base=changed(EXTERNAL, {"spec.autoscaling": GONE}),
            good={},
            bad={f"spec.engine.{name}": value},
        )
        for name, value in (("image", "mine:1"), ("replicas", 2), ("args", ["--x"]))
    },
    "a bucket of external engines": Pair(
        path="spec.model.objectStore",
        message="model.objectStore has no effect with runtime External",
        base=changed(EXTERNAL, {"spec.model.source": "s3://models/llama"}),
        good={},
        bad={"spec.model.objectStore": {"anonymous": True}},
    ),
    "a cache of external engines": Pair(
        path="spec.model.cache",
        message="model.cache has no effect with runtime External",
        base=EXTERNAL,
        good={},
        bad={"spec.model.cache": {"size": "1Gi"}},
    ),
    "autoscaling of external engines without a target": Pair(
        path="spec.autoscaling",
        message="autoscaling needs engine.external.scaleTargetRef",
        base=EXTERNAL,
        good={"spec.autoscaling": GONE, "spec.engine.external.scaleTargetRef": GONE},
        bad={"spec.engine.external.scaleTargetRef": GONE},
    ),
    "an adapter with the name of the model": Pair(
        path="spec.model.adapters",
        message="adapters: the name of an adapter must differ from servedName",
        base=SERVICE,
        good={"spec.model.adapters.0.name": "llama-3.1-8b-support"},
        bad={"spec.model.adapters.0.name": "llama-3.1-8b"},
    ),
    "a flag that is owned": Pair(
        path="spec.engine.args[1]",
        message="--tp is set by Evenkeel from the rest",
        base=SERVICE,
        good={"spec.engine.args": ["--mem-fraction-static=0.5", "--chunked-prefill-size=4096"]},
        bad={"spec.engine.args": ["--mem-fraction-static=0.5", "--tp=2"]},
    ),
    "a flag that is owned, abbreviated": Pair(
        path="spec.engine.args[0]",
        message="--schedule-p is set by Evenkeel from the rest",
        base=SERVICE,
        good={"spec.engine.args": ["--schedule-conservativeness=1"]},
        bad={"spec.engine.args": ["--schedule-p=fcfs"]},
    ),
    "a flag that bypasses the policy": Pair(
        path="spec.engine.args[0]",
        message="--dp-size lets requests bypass the replica policy; remove it",
        base=SERVICE,
        good={"spec.engine.args": ["--stream-interval=1"]},
        bad={"spec.engine.args": ["--dp-size=2"]},
    ),
    "an argument that is no flag": Pair(
        path="spec.engine.args[0]",
        message="must be a flag; write --flag=value as one entry",
        base=SERVICE,
        good={"spec.engine.args": ["--x"]},
        bad={"spec.engine.args": ["x"]},
    ),
    "a rollout that cannot move": Pair(
        path="spec.engine.rollout.maxSurge",
        message="maxSurge must be above 0 if",
        base=SERVICE,
        good={"spec.engine.rollout": {"maxSurge": "0%", "maxUnavailable": 1}},
        bad={"spec.engine.rollout": {"maxSurge": "0%", "maxUnavailable": 0}},
    ),
    "a rollout that cannot move, half of it by default": Pair(
        path="spec.engine.rollout.maxSurge",
        message="maxSurge must be above 0 if",
        base=SERVICE,
        good={"spec.engine.rollout": {"maxUnavailable": 0}},
        bad={"spec.engine.rollout": {"maxSurge": 0}},
    ),
    "a File store with two routers": Pair(
        path="spec.router.replicas",
        message="replicas must be 1 with state.store File",
        base=SERVICE,
        good={"spec.router.replicas": GONE},
        bad={"spec.router.replicas": 2},
    ),
    "a file without the File store": Pair(
        path="spec.router.state.file",
        message="file needs store: File",
        base=SERVICE,
        good={"spec.router.state": {"store": "Peers"}},
        bad={"spec.router.state": {"file": {}}},
    ),
    "a redis without the Redis store": Pair(
        path="spec.router.state.redis",
        message="redis needs store: Redis",
        base=SERVICE,
        good={"spec.router.state": {"store": "Redis", "redis": _REDIS}},
        bad={"spec.router.state": {"store": "Peers", "redis": _REDIS}},
    ),
    "a Redis store without an address": Pair(
        path="spec.router.state.redis",
        message="redis is required with store Redis",
        base=SERVICE,
        good={"spec.router.state": {"store": "Redis", "redis": _REDIS}},
        bad={"spec.router.state": {"store": "Redis"}},
    ),
    "a field that routers set": Pair(
        path="spec.router.allowFields",
        message="allowFields names a field that routers set themselves",
        base=SERVICE,
        good={"spec.router.allowFields": ["priority"]},
        bad={"spec.router.allowFields": ["priority", "cache_salt"]},
    ),
    "a body beyond memory": Pair(
        path="spec.router.limits.maxBodySize",
        message="maxBodySize must be at most 1Gi",
        base=SERVICE,
        good={"spec.router.limits.maxBodySize": "1Gi"},
        bad={"spec.router.limits.maxBodySize": 1073741825},
    ),
    **{
        f"a {name} of more than a week": Pair(
            path=f"spec.router.{name}",
            message=f"{name.partition('.')[2]} must be at most 168h",
            base=SERVICE,
            good={f"spec.router.{name}": "168h"},
            bad={f"spec.router.{name}": "168h1ms"},
        )
        for name in (
            "limits.queueTimeout",
            "limits.firstTokenTimeout",
            "limits.activationTimeout",
            "limits.answerTimeout",
            "limits.keepAliveTimeout",
            "limits.heartbeat",
            "qoe.expectedTtft",
            "qoe.expectedItl",
        )
    },
    "crossed bounds": Pair(
        path="spec.autoscaling.minReplicas",
        message="minReplicas is above maxReplicas",
        base=SCALED,
        good={"spec.autoscaling.minReplicas": 16},
        bad={"spec.autoscaling.minReplicas": 17},
    ),
    "a cap of nothing": Pair(
        path="spec.autoscaling.maxReplicasPerClient",
        message="maxReplicasPerClient must be",
        base=SCALED,
        good={"spec.autoscaling.maxReplicasPerClient": "1%"},
        bad={"spec.autoscaling.maxReplicasPerClient": "0%"},
    ),
    "a cap above the maximum": Pair(
        path="spec.autoscaling.maxReplicasPerClient",
        message="maxReplicasPerClient is above",
        base=SCALED,
        good={"spec.autoscaling.maxReplicasPerClient": 16},
        bad={"spec.autoscaling.maxReplicasPerClient": 17},
    ),
    "two exposures": Pair(
        path="spec.exposure.httpRoute",
        message="httpRoute is set together with ingress",
        base=SERVICE,
        good={"spec.exposure": {"httpRoute": {"parentRefs": [{"name": "gw"}]}}},
        bad={"spec.exposure.httpRoute": {"parentRefs": [{"name": "gw"}]}},
    ),
    "a selector without values": Pair(
        path="matchExpressions[0].values",
        message="values is required with operators In",
        base=SERVICE,
        good={"spec.tenancy.selector.matchExpressions.0": {"key": "a", "operator": "Exists"}},
        bad={"spec.tenancy.selector.matchExpressions.0": {"key": "a", "operator": "In"}},
    ),
    "a selector with values of no use": Pair(
        path="matchExpressions[0].values",
        message="values must be empty with operators",
        base=SERVICE,
        good={"spec.tenancy.selector.matchExpressions.0.operator": "NotIn"},
        bad={"spec.tenancy.selector.matchExpressions.0.operator": "Exists"},
    ),
    "a duration of nothing": Pair(
        path="spec.slo.ttft.threshold",
        message="must be above 0 and at most 876000h",
        base=SERVICE,
        good={"spec.slo.ttft.threshold": "876000h"},
        bad={"spec.slo.ttft.threshold": "0h0s"},
    ),
    "a duration that is too long": Pair(
        path="spec.slo.ttft.threshold",
        message="must be above 0 and at most 876000h",
        base=SERVICE,
        good={"spec.slo.ttft.threshold": "0.5s"},
        bad={"spec.slo.ttft.threshold": "876000h1s"},
    ),
    "a size of nothing": Pair(
        path="spec.model.cache.size",
        message="must be above 0 and below 2^63",
        base=SERVICE,
        good={"spec.model.cache.size": "1e3"},
        bad={"spec.model.cache.size": "0Gi"},
    ),
    "a size as a negative number": Pair(
        path="spec.model.cache.size",
        message="must be above 0 and below 2^63",
        base=SERVICE,
        good={"spec.model.cache.size": 107374182400},
        bad={"spec.model.cache.size": -1},
    ),
    "a size beyond 63 bits": Pair(
        path="spec.model.cache.size",
        message="must be above 0 and below 2^63",
        base=SERVICE,
        good={"spec.model.cache.size": "7Ei"},
        bad={"spec.model.cache.size": "8Ei"},
    ),
    "a network with host bits": Pair(
        path="spec.tenancy.trustedProxies[1]",
        message="must be a network like 10.0.0.0/8",
        base=SERVICE,
        good={"spec.tenancy.trustedProxies": ["::/0", "fd00::1", "192.168.0.1"]},
        bad={"spec.tenancy.trustedProxies": ["10.0.0.1", "10.0.0.1/8"]},
    ),
    "identity headers without a proxy": Pair(
        path="spec.tenancy.identityHeaders",
        message="needs trustedProxies",
        base=SERVICE,
        good={"spec.tenancy.identityHeaders": [], "spec.tenancy.trustedProxies": []},
        bad={"spec.tenancy.trustedProxies": []},
    ),
    "an identity header without a tenant": Pair(
        path="spec.tenancy.identityHeaders[0]",
        message="names no tenant",
        base=SERVICE,
        good={"spec.tenancy.identityHeaders": [{"client": "x-user", "defaultTenant": "web"}]},
        bad={"spec.tenancy.identityHeaders": [{"client": "x-user"}]},
    ),
    "an issuer without keys": Pair(
        path="spec.tenancy.jwt[0].jwksURL",
        message="needs exactly one source",
        base=SERVICE,
        good={
            "spec.tenancy.jwt.0.jwksURL": GONE,
            "spec.tenancy.jwt.0.secretRef": {"name": "issuer", "key": "jwks"},
        },
        bad={"spec.tenancy.jwt.0.jwksURL": GONE},
    ),
    "an issuer with keys twice": Pair(
        path="spec.tenancy.jwt[0].jwksURL",
        message="needs exactly one source",
        base=SERVICE,
        good={},
        bad={"spec.tenancy.jwt.0.secretRef": {"name": "issuer", "key": "jwks"}},
    ),
    "an issuer without a tenant": Pair(
        path="spec.tenancy.jwt[0].tenantClaim",
        message="needs tenantClaim or tenantOf",
        base=SERVICE,
        good={"spec.tenancy.jwt.0.tenantClaim": GONE},
        bad={"spec.tenancy.jwt.0.tenantClaim": GONE, "spec.tenancy.jwt.0.tenantOf": []},
    ),
    "a leeway of more than ten minutes": Pair(
        path="spec.tenancy.jwt[0].leeway",
        message="must be at most 10m",
        base=SERVICE,
        good={"spec.tenancy.jwt.0.leeway": "10m"},
        bad={"spec.tenancy.jwt.0.leeway": "10m1s"},
    ),
    "signed keys that live too long": Pair(
        path="spec.tenancy.signedKeys.maxLifetime",
        message="must be from 1m to 87840h",
        base=SERVICE,
        good={"spec.tenancy.signedKeys.maxLifetime": "87840h"},
        bad={"spec.tenancy.signedKeys.maxLifetime": "87841h"},
    ),
    "signed keys that live too short": Pair(
        path="spec.tenancy.signedKeys.maxLifetime",
        message="must be from 1m to 87840h",
        base=SERVICE,
        good={
            "spec.tenancy.signedKeys.maxLifetime": "1m",
            "spec.tenancy.signedKeys.selfService": GONE,
        },
        bad={
            "spec.tenancy.signedKeys.maxLifetime": "59s",
            "spec.tenancy.signedKeys.selfService": GONE,
        },
    ),
    "keys of clients that live too short": Pair(
        path="spec.tenancy.signedKeys.selfService.lifetime",
        message="must be at least 1h",
        base=SERVICE,
        good={"spec.tenancy.signedKeys.selfService.lifetime": "1h"},
        bad={"spec.tenancy.signedKeys.selfService.lifetime": "59m"},
    ),
    "keys of clients that outlive all others": Pair(
        path="spec.tenancy.signedKeys.selfService.lifetime",
        message="must be at most maxLifetime",
        base=SERVICE,
        good={"spec.tenancy.signedKeys.selfService.lifetime": "2160h"},
        bad={"spec.tenancy.signedKeys.selfService.lifetime": "2161h"},
    ),
    "keys of clients without an issuer": Pair(
        path="spec.tenancy.signedKeys.selfService",
        message="needs tenancy.jwt",
        base=SERVICE,
        good={"spec.tenancy.signedKeys.selfService": GONE, "spec.tenancy.jwt": GONE},
        bad={"spec.tenancy.jwt": GONE},
    ),
    "a cell with the name of this one": Pair(
        path="spec.federation.cells",
        message="cells: one has the name of this cell",
        base=SERVICE,
        good={"spec.federation.cells.0.name": "bergen"},
        bad={"spec.federation.cells.0.name": "paris"},
    ),
    "figures of cells that come too fast": Pair(
        path="spec.federation.interval",
        message="interval must be from 100ms to 10m",
        base=SERVICE,
        good={"spec.federation.interval": "100ms"},
        bad={"spec.federation.interval": "99ms"},
    ),
    "a cell at an address of another scheme": Pair(
        path="spec.federation.cells[0].url",
        message="must be an address like http://",
        base=SERVICE,
        good={"spec.federation.cells.0.url": "https://oslo.example.com:8443"},
        bad={"spec.federation.cells.0.url": "ftp://oslo.example.com"},
    ),
    "a path in the address of a cell": Pair(
        path="spec.federation.cells[0].url",
        message="must end after host and port",
        base=SERVICE,
        good={"spec.federation.cells.0.url": "https://oslo.example.com/"},
        bad={"spec.federation.cells.0.url": "https://oslo.example.com/llm"},
    ),
    "a network with a netmask": Pair(
        path="spec.tenancy.trustedProxies[0]",
        message="must be a network like 10.0.0.0/8",
        base=SERVICE,
        good={"spec.tenancy.trustedProxies": ["10.0.0.0/32"]},
        bad={"spec.tenancy.trustedProxies": ["10.0.0.0/255.0.0.0"]},
    ),
    "an address of another scheme": Pair(
        path="spec.autoscaling.prometheus.url",
        message="must be an address like http://",
        base=SCALED,
        good={"spec.autoscaling.prometheus.url": "https://prometheus/prefix"},
        bad={"spec.autoscaling.prometheus.url": "ftp://prometheus"},
    ),
    "an address with an impossible port": Pair(
        path="spec.autoscaling.prometheus.url",
        message="must be an address like http://",
        base=SCALED,
        good={"spec.autoscaling.prometheus.url": "http://[::1]:65535"},
        bad={"spec.autoscaling.prometheus.url": "http://prometheus:65536"},
    ),
    "a key of an unknown client": Pair(
        path="spec.apiKeys",
        message="apiKeys: each client must be in clients",
        base=TENANT,
        good={"spec.apiKeys": []},
        bad={"spec.apiKeys.0.client": "chta"},
    ),
    "keys without any client": Pair(
        path="spec.apiKeys",
        message="apiKeys: each client must be in clients",
        base=TENANT,
        good={"spec.clients": GONE, "spec.apiKeys": GONE},
        bad={"spec.clients": GONE},
    ),
    "one of 500 keys of an unknown client": Pair(
        path="spec.apiKeys",
        message="apiKeys: each client must be in clients",
        base=changed(TENANT, {"spec.clients": [{"name": f"c{i}"} for i in range(500)]}),
        good={"spec.apiKeys": _keys(500, of="c499")},
        bad={"spec.apiKeys": _keys(500, of="c500")},
    ),
    "a name that begins with a digit": Pair(
        path="metadata.name",
        message="metadata.name in body should match '^[a-z]",
        base=SERVICE,
        good={"metadata.name": "a1"},
        bad={"metadata.name": "1a"},
    ),
    "a name that is too long for what is generated": Pair(
        path="metadata.name",
        message="may not be more than 40 bytes",
        base=SERVICE,
        good={"metadata.name": "a" * 40},
        bad={"metadata.name": "a" * 41},
    ),
    "a model without a service": Pair(
        path="spec.models[0].serviceRef",
        message="serviceRef is required without serviceSelector",
        base=GATEWAY,
        good={"spec.models.0.aliases": GONE},
        bad={"spec.models.0.serviceRef": GONE},
    ),
    "a model with a service and a selector": Pair(
        path="spec.models[0].serviceSelector",
        message="serviceSelector is set together with serviceRef",
        base=GATEWAY,
        good={"spec.models.0": {"serviceSelector": {}}},
        bad={
            "spec.models.0": {"serviceSelector": {}, "serviceRef": {"name": "llama"}},
        },
    ),
    "a name for selected services": Pair(
        path="spec.models[0].name",
        message="name needs serviceRef",
        base=SELECTED,
        good={"spec.models.0.serviceSelector": {}},
        bad={"spec.models.0.name": "smart"},
    ),
    "aliases without a name": Pair(
        path="spec.models[0].aliases",
        message="aliases needs name",
        base=GATEWAY,
        good={"spec.models.0.aliases": []},
        bad={"spec.models.0.name": GONE},
    ),
    "a name of two models": Pair(
        path="spec.models",
        message="models: each name means one model",
        base=GATEWAY,
        good={"spec.models.0.aliases": ["smarter"]},
        bad={
            "spec.models": [
                {"name": "smart", "serviceRef": {"name": "llama"}},
                {"name": "smart", "serviceRef": {"name": "qwen"}},
            ]
        },
    ),
    "a gateway that takes bodies beyond a gibibyte": Pair(
        path="spec.router.limits.maxBodySize",
        message="maxBodySize must be at most 1Gi",
        base=GATEWAY,
        good={"spec.router.limits.maxBodySize": "1Gi"},
        bad={"spec.router.limits.maxBodySize": "1025Mi"},
    ),
    "a gateway that keeps connections for longer than a week": Pair(
        path="spec.router.limits.keepAliveTimeout",
        message="keepAliveTimeout must be at most 168h",
        base=GATEWAY,
        good={"spec.router.limits.keepAliveTimeout": "168h"},
        bad={"spec.router.limits.keepAliveTimeout": "169h"},
    ),
}
"""Named by what is wrong with the bad one."""
