"""What the operator stores in the cluster for itself: the spec in use, the pinned engine image, and generated keys.

The spec in use is the newest valid one. A ConfigMap of the service holds it with the pinned image, and a Secret holds
the engines' keys and the routers' admin token, so that they outlive the operator.

A rotation keeps the old engine key until no engine uses it. Meanwhile routers have both keys, and a label of each
engine pod names the key it uses. No request fails.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, Final
from urllib.parse import unquote

import msgspec
from evenkeel_contract.listening import ALL_IPV4
from evenkeel_contract.names import GROUP, SERVICE_LABEL
from evenkeel_contract.routerconfig import RouterConfig
from evenkeel_contract.spec.parts import External, PodTemplate, Runtime
from evenkeel_contract.spec.resources import FairInferenceService, ServiceSpec
from evenkeel_contract.validate import parse_service
from evenkeel_contract.values import Fault, Url, show

from evenkeel_operator.core.objects import Object, annotations_of, entries_of, without_status


@dataclass(frozen=True, slots=True, kw_only=True)
class Monitoring:
    """How the platform's Prometheus selects the generated monitors and rules."""

    labels: Mapping[str, str] = field(default_factory=dict)
    """Labels on every PodMonitor and PrometheusRule, for the Prometheus selector."""
    plain_rules: bool = False
    """Create a ConfigMap with the rules of each service, for a Prometheus without its operator."""
    runbooks: str = "docs/runbooks"
    """Base URL of runbooks; the page's name is appended."""

    @property
    def runbooks_url(self) -> str | None:
        """The same as an address that a browser can open; None if it is none."""
        return None if any(Url().faults(self.runbooks, "")) else self.runbooks


ROUTER_RESOURCES: Final[Mapping[str, Mapping[str, str]]] = {
    "requests": {"cpu": "100m", "memory": "256Mi"},
    # 1 GiB of request bodies, 2 million prefix blocks, the process, and a margin: docs/reference/router.md has the bounds.
    "limits": {"memory": "2Gi"},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Defaults:
    """Settings of the operator."""

    version: str
    """Version of the operator, which the annotation `evenkeel.dev/upgrade` may name."""
    router_image: str
    sglang_image: str
    vllm_image: str
    simulator_image: str
    download_image: str
    """Image of the pods that download models: the operator's own."""
    router_resources: Mapping[str, Mapping[str, str | float]] = field(
        default_factory=lambda: ROUTER_RESOURCES
    )
    """Requests and limits of a router's container; `spec.router.template` may change them."""
    pull_policy: str | None = None
    """Pull policy of images; None: the cluster's default."""
    pull_secrets: tuple[str, ...] = ()
    """Secrets in the service's namespace."""
    scrapers: Mapping[str, str] = field(default_factory=dict)
    """Labels of the namespaces that may read metrics; empty: all."""
    operator_namespace: str | None = None
    monitoring: Monitoring = field(default_factory=Monitoring)
    prometheus_urls: tuple[str, ...] = ()
    """Beginnings of the addresses that a scaler may read, or `ANY_URL`. The owner of a service chooses the address: without
    this list, the operator would send requests and tokens to any address that it can reach."""
    prometheus_namespaces: tuple[str, ...] = ()
    """Namespaces whose Services a scaler may read, too."""
    any_secret: bool = False
    """Secrets may be used without the label `evenkeel.dev/use`."""
    cluster_domain: str = "cluster.local"
    """The cluster's DNS domain."""
    fixed_user: bool = True
    """Pods run as user 65532; otherwise as the user of the image, or the one that the namespace assigns (OpenShift)."""
    engine_host: str = ALL_IPV4
    """What replicas listen on: all addresses of the family that probes and routers use."""
    router_host: str = ALL_IPV4
    """What routers listen on; `::` means both families."""
    engine_variables: Mapping[str, str] = field(default_factory=dict)
    """Variables of all replicas but simulated ones, such as proxies."""

    def image(self, runtime: Runtime) -> str:
        """The default engine image."""
        images = {Runtime.SIMULATOR: self.simulator_image, Runtime.VLLM: self.vllm_image}
        return images.get(runtime, self.sglang_image)


UPGRADE_ANNOTATION: Final = f"{GROUP}/upgrade"
"""Annotation of a FairInferenceService: the operator's version, or `Always`. The operator's default engine image then replaces
the pinned one. Other values, such as an older version, have no effect."""
UPGRADE_ALWAYS: Final = "Always"

OWNED_VARIABLES: Final = ("EVENKEEL_", "POD_", "HF_HOME")
"""Beginnings of the names of environment variables that Evenkeel sets."""

ANY_URL: Final = "*"

SPEC_ENTRY: Final = "spec.json"
PIN_PREFIX: Final = "image."


@dataclass(frozen=True, slots=True)
class Accepted:
    """The spec that is in use."""

    spec: Mapping[str, Any]
    """Spec as plain data, as it was applied."""
    pins: Mapping[str, str] = field(default_factory=dict)
    """Runtime → the engine image of services that name none."""


@dataclass(frozen=True, slots=True)
class SpecDecision:
    """The result of reading the wanted spec, and the spec in use."""

    faults: tuple[Fault, ...]
    """Faults of the wanted spec."""
    running: FairInferenceService | None
    """The spec to build: the wanted one, or the last valid one; None if there is no valid one."""
    accepted: Accepted | None
    is_new: bool = False
    """The wanted spec is valid and not yet in use: the API server may still refuse it."""

    @property
    def spec(self) -> ServiceSpec | None:
        """Spec of the service to build; None if no valid spec is known."""
        return None if self.running is None else self.running.spec

    @property
    def external(self) -> External | None:
        """The engines that another owner made; None if the operator creates them."""
        return None if self.running is None else self.running.spec.engine.pods_of_others

    def refused(self, faults: tuple[Fault, ...], before: SpecDecision) -> SpecDecision:
        """The API server refused the wanted spec: the spec in use stays."""
        return replace(before, faults=(*self.faults, *faults), is_new=False)


def choose_spec(raw: Object, accepted: Accepted | None, defaults: Defaults) -> SpecDecision:
    """Read the wanted spec; `raw` is the FairInferenceService."""
    wanted, faults = parse_service(without_status(raw))
    if wanted is not None:
        # What only the operator can find, in the order of the document's fields.
        faults = (*_owned_in_templates(wanted), *_forbidden_prometheus(wanted, defaults))
    if wanted is None or faults:
        return replace(last_good(raw, accepted), faults=faults)
    plain = raw.get("spec") or {}
    pins = {} if accepted is None else accepted.pins
    is_new = accepted is None or accepted.spec != plain
    return SpecDecision((), wanted, Accepted(plain, pins), is_new)


def last_good(raw: Object, accepted: Accepted | None) -> SpecDecision:
    """The spec in use, without a result for the wanted spec."""
    if accepted is None:
        return SpecDecision((), None, None)
    before, faults = parse_service(without_status({**raw, "spec": accepted.spec}))
    # This operator is stricter than the one that accepted the spec: it builds and changes nothing.
    return SpecDecision((), None if faults else before, accepted)


def engine_image(service: FairInferenceService, accepted: Accepted) -> str:
    """The image of the engines: the spec's, or the pinned one."""
    return service.spec.engine.image or accepted.pins[service.spec.engine.runtime.value]


def available_image(
    service: FairInferenceService, accepted: Accepted, defaults: Defaults
) -> str | None:
    """The operator's default image, if another one is pinned."""
    runtime = service.spec.engine.runtime
    default = defaults.image(runtime)
    if service.spec.engine.image is not None or accepted.pins.get(runtime.value) == default:
        return None
    return default


def pinned(service: FairInferenceService, accepted: Accepted, defaults: Defaults) -> Accepted:
    """The accepted spec with a pin for its runtime. A known pin stays, unless the annotation asks for the operator's default."""
    runtime = service.spec.engine.runtime
    if service.spec.engine.pods_of_others is not None:
        return accepted
    upgrade = service.metadata.annotations.get(UPGRADE_ANNOTATION)
    if runtime.value in accepted.pins and upgrade not in (UPGRADE_ALWAYS, defaults.version):
        return accepted
    return replace(accepted, pins={**accepted.pins, runtime.value: defaults.image(runtime)})


def read_accepted(config_map: Object | None) -> Accepted | None:
    """The accepted spec of a ConfigMap; None if there is none, or none that can be read."""
    data = {} if config_map is None else config_map.get("data") or {}
    try:
        spec = msgspec.json.decode(data.get(SPEC_ENTRY, ""))
    except msgspec.DecodeError:
        return None
    pins = {
        name.removeprefix(PIN_PREFIX): image
        for name, image in data.items()
        if name.startswith(PIN_PREFIX)
    }
    return Accepted(spec, pins) if isinstance(spec, dict) else None


def accepted_data(accepted: Accepted) -> dict[str, str]:
    """The ConfigMap's data."""
    spec = msgspec.json.encode(accepted.spec, order="deterministic").decode()
    return {
        SPEC_ENTRY: spec,
        **{f"{PIN_PREFIX}{name}": image for name, image in sorted(accepted.pins.items())},
    }


def _forbidden_prometheus(service: FairInferenceService, defaults: Defaults) -> Iterator[Fault]:
    scaling = service.spec.autoscaling
    if scaling is None or may_be_asked(scaling.prometheus.url, defaults):
        return
    namespaces = (f"Services of namespace {name}" for name in defaults.prometheus_namespaces)
    allowed = ", ".join((*defaults.prometheus_urls, *namespaces)) or "none"
    yield Fault(
        "spec.autoscaling.prometheus.url",
        f"{show(scaling.prometheus.url)} is not an address that the operator may read; allowed: {allowed}. "
        "Administrators allow others in the chart (allowPrometheus)",
    )


def may_be_asked(url: str, defaults: Defaults) -> bool:
    """Whether the operator may read the Prometheus at this address."""
    urls, namespaces = defaults.prometheus_urls, defaults.prometheus_namespaces
    return (
        ANY_URL in urls
        or any(_is_below(url, one) for one in urls)
        or any(_is_in(url, one, defaults.cluster_domain) for one in namespaces)
    )


def _is_in(url: str, namespace: str, domain: str) -> bool:
    """Whether it is the address of a Service of the namespace."""
    place, whole = re.escape(namespace), re.escape(domain)
    host = rf"[a-z0-9]([-a-z0-9]*[a-z0-9])?\.{place}(\.svc(\.{whole})?)?"
    return re.fullmatch(rf"https?://{host}(:[0-9]+)?(/.*)?", url) is not None


def _is_below(url: str, allowed: str) -> bool:
    base = allowed.rstrip("/")
    # `..` in a path would lead out of the allowed prefix.
    dots = any(part in (".", "..") for part in unquote(url).split("/"))
    return not dots and (url == base or url.startswith(f"{base}/"))


def _owned_in_templates(service: FairInferenceService) -> Iterator[Fault]:
    """What the templates of pods set, and Evenkeel sets itself."""
    templates = {
        "engine": service.spec.engine.template,
        "router": service.spec.router.template,
    }
    for component, template in templates.items():
        yield from _labels(f"spec.{component}.template", template)
        yield from _containers(f"spec.{component}.template", template, component)
        yield from _variables(f"spec.{component}.template.spec", template.spec)


def _labels(path: str, template: PodTemplate) -> Iterator[Fault]:
    labels = template.metadata.get("labels")
    if isinstance(labels, Mapping) and SERVICE_LABEL in labels:
        yield Fault(f"{path}.metadata.labels", f"must not hold {SERVICE_LABEL}: selectors need it")


def _containers(path: str, template: PodTemplate, main: str) -> Iterator[Fault]:
    containers = template.spec.get("containers")
    for index, container in enumerate(containers if isinstance(containers, list) else ()):
        if not isinstance(container, Mapping) or container.get("name") != main:
            continue
        yield from _variables(f"{path}.spec.containers[{index}]", container)
        # The spec has fields for these; a flag would override them.
        for field_, instead in (
            ("command", None),
            ("args", "engine.args"),
            ("image", "engine.image"),
        ):
            if field_ in container:
                hint = f"; use spec.{instead}" if instead and main == "engine" else "; remove it"
                where = f"{path}.spec.containers[{index}].{field_}"
                yield Fault(where, f"is set by Evenkeel{hint}")


def _variables(path: str, holder: Mapping[str, Any]) -> Iterator[Fault]:
    """Variables that Evenkeel sets from the rest of the spec."""
    listed = holder.get("env")
    for index, entry in enumerate(listed if isinstance(listed, list) else ()):
        name = entry.get("name") if isinstance(entry, Mapping) else None
        if isinstance(name, str) and name.startswith(OWNED_VARIABLES):
            yield Fault(f"{path}.env[{index}]", f"{name} is set by Evenkeel; remove it")


ROTATE_ANNOTATION: Final = f"{GROUP}/rotate"
"""Annotation of a FairInferenceService: a new value requests new keys. The Secret's has the value for which its keys were
generated."""
CURRENT_ANNOTATION: Final = f"{GROUP}/engine-key"
TOKEN_ENTRY: Final = "admin-token"
KEY_PREFIX: Final = "engine-key-"


@dataclass(frozen=True, slots=True)
class EngineKey:
    """A key of the engines."""

    key: str

    @property
    def id(self) -> str:
        """Distinguishes keys without revealing them: 32 of 256 bits of a hash."""
        return hashlib.sha256(self.key.encode()).hexdigest()[:8]


@dataclass(frozen=True, slots=True)
class Credentials:
    """The contents of the Secret."""

    admin_token: str
    engine_keys: tuple[EngineKey, ...]
    """Engines are started with the last key."""
    rotation: str = ""
    """The annotation's value for which they were generated."""

    def __repr__(self) -> str:
        return f"Credentials(engine_keys={[key.id for key in self.engine_keys]})"

    @property
    def current(self) -> EngineKey:
        return self.engine_keys[-1]

    @property
    def admin_token_sha256(self) -> str:
        return hashlib.sha256(self.admin_token.encode()).hexdigest()


def next_credentials(
    stored: Credentials | None,
    *,
    rotation: str,
    old_keys_are_in_use: bool,
    fresh: Callable[[], str],
) -> Credentials:
    """The Secret's wanted contents: the present ones, unless they are missing or a rotation was requested."""
    if stored is None:
        return Credentials(fresh(), (EngineKey(fresh()),), rotation)
    if rotation != stored.rotation:
        # A second rotation during a rotation keeps all keys: engines may still use the oldest one.
        keys = (*stored.engine_keys, EngineKey(fresh()))
        return Credentials(fresh(), keys, rotation)
    if len(stored.engine_keys) > 1 and not old_keys_are_in_use:
        return replace(stored, engine_keys=(stored.current,))
    return stored


def read_credentials(secret: Object | None) -> Credentials | None:
    """Credentials of the Secret; None if it is missing or incomplete, so that they are generated again."""
    if secret is None:
        return None
    data = {}
    for name, entry in entries_of(secret).items():
        with suppress(UnicodeDecodeError):
            data[name] = entry.decode()
    token = data.get(TOKEN_ENTRY)
    current = annotations_of(secret).get(CURRENT_ANNOTATION, "")
    keys = [
        EngineKey(value)
        for name, value in sorted(data.items())
        if name.startswith(KEY_PREFIX) and value
    ]
    keys = [key for key in keys if f"{KEY_PREFIX}{key.id}" in data]
    newest = [key for key in keys if key.id == current]
    if not token or not newest:
        return None
    older = [key for key in keys if key.id != current]
    rotation = annotations_of(secret).get(ROTATE_ANNOTATION, "")
    return Credentials(token, (*older, *newest), rotation)


def recovered(config: RouterConfig | None, *, rotation: str) -> Credentials | None:
    """Credentials of the routers' configuration, if the Secret was deleted: new keys would cut off running engines."""
    if config is None or config.cluster is None or config.state.peer_token is None:
        return None
    keys = tuple(EngineKey(key.key) for key in config.cluster.api_keys)
    return Credentials(config.state.peer_token, keys, rotation) if keys else None
