"""How clients outside the cluster reach the routers of a FairInferenceService."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated

from evenkeel_contract.spec.parts import DnsName
from evenkeel_contract.values import DNS_LABEL, DNS_NAME, ORIGIN, Length, Pattern, Range

Hostname = Annotated[
    str, Pattern(rf"(\*\.)?{DNS_NAME.regex}", "a DNS name, or '*.' and a DNS name"), Length(1, 253)
]


UrlPath = Annotated[
    str,
    Pattern(r"/|(/[a-zA-Z0-9_~-][a-zA-Z0-9._~-]*)+/?", "a path such as / or /v1"),
    Length(1, 253),
]
Paths = Annotated[tuple[UrlPath, ...], Length(1, 16)]
# Controllers insert it into their configuration as it is.
AnnotationText = Annotated[
    str,
    Pattern(r"[^\x00-\x08\x0a-\x1f\x7f]*", "one line of text without control characters"),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class IngressTls:
    """TLS settings of an Ingress."""

    secret_name: DnsName
    """Name of a Secret of type kubernetes.io/tls."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IngressExposure:
    """An Ingress that forwards to the routers."""

    host: DnsName
    """DNS name that clients use."""
    additional_hosts: Annotated[tuple[Hostname, ...], Length(0, 15)] = ()
    """Further DNS names that clients use."""
    paths: Paths = ("/",)
    """Paths that clients may use, with all paths below them. The routers see the whole path."""
    annotations: Mapping[str, AnnotationText] = field(default_factory=dict)
    """Annotations to add to the Ingress, for example for cert-manager, external-dns or authentication. They replace those that the
    operator sets."""
    labels: Mapping[str, str] = field(default_factory=dict)
    """Labels to add to the Ingress."""
    class_name: DnsName | None = None
    """Ingress class. If not set, the cluster's default ingress class is used."""
    tls: IngressTls | None = None
    """TLS settings. If not set, the Ingress serves plain HTTP."""

    @property
    def hosts(self) -> tuple[str, ...]:
        """All DNS names, each once."""
        return tuple(dict.fromkeys((self.host, *self.additional_hosts)))


@dataclass(frozen=True, slots=True, kw_only=True)
class ParentRef:
    """Refers to a Gateway, as in HTTPRoute."""

    name: DnsName
    """Name of the Gateway."""
    namespace: Annotated[str, DNS_LABEL] | None = None
    """Namespace of the Gateway. If not set, it is the namespace of the service."""
    group: DnsName = "gateway.networking.k8s.io"
    """API group of the parent."""
    kind: Annotated[str, Length(1, 63)] = "Gateway"
    """Kind of the parent."""
    section_name: DnsName | None = None
    """Listener of the Gateway. If not set, all listeners are used."""
    port: Annotated[int, Range(1, 65535)] | None = None
    """Port of the Gateway. If not set, all ports are used."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpRouteExposure:
    """An HTTPRoute of the Gateway API that forwards to the routers."""

    parent_refs: Annotated[tuple[ParentRef, ...], Length(1, 32)]
    """Gateways that the route is attached to."""
    hostnames: Annotated[tuple[Hostname, ...], Length(0, 16)] = ()
    """DNS names that clients use. If empty, all names of the gateways are used."""
    paths: Paths = ("/",)
    """Paths that clients may use, with all paths below them. The routers see the whole path."""
    annotations: Mapping[str, AnnotationText] = field(default_factory=dict)
    """Annotations to add to the HTTPRoute, for example for external-dns."""
    labels: Mapping[str, str] = field(default_factory=dict)
    """Labels to add to the HTTPRoute."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CorsExposure:
    """Requests from web pages of other origins (cross-origin resource sharing)."""

    allow_origins: Annotated[tuple[Annotated[str, ORIGIN], ...], Length(1, 64)]
    """Origins of web pages that may send requests, such as https://app.example.com; '*' allows every origin."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Exposure:
    """How clients outside the cluster reach the routers. Set at most one of ingress and httpRoute."""

    ingress: IngressExposure | None = None
    """Ingress to generate. If not set, there is none."""
    http_route: HttpRouteExposure | None = None
    """HTTPRoute to generate. If not set, there is none."""
    cors: CorsExposure | None = None
    """Requests from web pages. If not set, browsers do not let web pages of other origins read answers."""

    @property
    def hosts(self) -> tuple[str, ...]:
        """The DNS names of the Ingress or the HTTPRoute, each once; `status.url` has the first."""
        if self.ingress is not None:
            return self.ingress.hosts
        return () if self.http_route is None else tuple(dict.fromkeys(self.http_route.hostnames))
