"""The operator's settings: one dataclass, and the command line that fills it.

Of the environment it reads only POD_NAME, POD_NAMESPACE and POD_IPS.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Final

import msgspec
from evenkeel_contract.listening import ALL_IPV4, all_addresses_for

from evenkeel_operator.core.records import ROUTER_RESOURCES, Defaults, Monitoring

_LISTEN: Final = {"Auto": [], "IPv4": ["0.0.0.0"], "IPv6": ["::"]}
"""Choice → the addresses that it stands for; none: those of the operator's pod, the primary one first."""
DEFAULT_LEASE: Final = "evenkeel-operator"


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Settings of one operator process."""

    defaults: Defaults
    identity: str
    """Unique among operators; in a cluster the name of the pod."""
    namespace: str
    """Where the Lease is."""
    lease: str = DEFAULT_LEASE
    watched_namespaces: tuple[str, ...] = ()
    """Namespaces to watch; empty: all."""
    has_overview: bool = True
    """Whether the operator may read nodes, namespaces and definitions of the cluster."""
    probe_host: str = ALL_IPV4
    probe_port: int = 8081
    """`/livez`, `/readyz`, `/metrics`. 0: the system chooses."""
    workers: int = 4
    """Number of parallel passes. They mostly wait for the API server."""
    log_level: str = "info"


def parse_arguments(arguments: Sequence[str], environment: Mapping[str, str]) -> Settings:
    """Settings from the command line; exits with status 2 and a message if an argument is invalid."""
    parser = argument_parser()
    flags = parser.parse_args(arguments)
    namespace = flags.namespace or environment.get("POD_NAMESPACE")
    identity = flags.identity or environment.get("POD_NAME")
    if not namespace or not identity:
        parser.error(
            "--namespace and --identity are needed outside a pod (POD_NAMESPACE, POD_NAME)"
        )
    if flags.namespaces_only and not flags.watch_namespace:
        parser.error("--namespaces-only needs --watch-namespace")
    own = _LISTEN[flags.listen] or environment.get("POD_IPS", "").split(",")
    listens = all_addresses_for(own)
    return Settings(
        defaults=Defaults(
            version=_version(),
            router_image=flags.router_image,
            sglang_image=flags.sglang_image,
            vllm_image=flags.vllm_image,
            simulator_image=flags.simulator_image,
            download_image=flags.download_image,
            router_resources=flags.router_resources,
            pull_policy=flags.image_pull_policy,
            pull_secrets=tuple(flags.image_pull_secret),
            scrapers=dict(flags.scraper_namespace_label),
            operator_namespace=namespace,
            monitoring=Monitoring(
                labels=dict(flags.monitoring_label),
                plain_rules=flags.plain_rules,
                runbooks=flags.runbooks or Monitoring().runbooks,
            ),
            prometheus_urls=tuple(flags.allow_prometheus),
            prometheus_namespaces=tuple(flags.allow_prometheus_namespace),
            any_secret=flags.any_secret,
            cluster_domain=flags.cluster_domain,
            engine_host=all_addresses_for(own[:1]),
            router_host=listens,
            fixed_user=not flags.no_fixed_user,
            engine_variables=dict(flags.engine_variable),
        ),
        identity=identity,
        namespace=namespace,
        lease=flags.lease,
        watched_namespaces=tuple(flags.watch_namespace),
        has_overview=not flags.namespaces_only,
        probe_host=flags.probe_host or listens,
        probe_port=flags.probe_port,
        workers=flags.workers,
        log_level=flags.log_level,
    )


def argument_parser() -> argparse.ArgumentParser:
    """The parser of all flags."""
    parser = argparse.ArgumentParser(
        prog="evenkeel-operator", description="Makes FairInferenceServices run on Kubernetes."
    )
    parser.add_argument("--namespace", help="of the Lease; default: POD_NAMESPACE")
    parser.add_argument("--identity", help="of this process; default: POD_NAME")
    parser.add_argument("--lease", default=DEFAULT_LEASE, help="name of the Lease")
    _add_list(
        parser,
        "--watch-namespace",
        "NAMESPACE",
        "serve this namespace only; may be given several times; default: all",
    )
    parser.add_argument(
        "--namespaces-only",
        action="store_true",
        help="read nothing outside of these namespaces: the operator has no rights in the cluster",
    )
    _add_images(parser)
    parser.add_argument(
        "--router-resources",
        type=_resources,
        default=ROUTER_RESOURCES,
        metavar="JSON",
        help='requests and limits of a router, such as {"requests": {"cpu": "50m"}}',
    )
    _add_pods(parser)
    _add_monitoring(parser)
    _add_rights(parser)
    parser.add_argument("--probe-host", metavar="ADDRESS", help="default: by --listen")
    parser.add_argument("--probe-port", type=int, default=8081)
    parser.add_argument("--workers", type=_positive, default=4, help="passes at a time")
    levels = ("debug", "info", "warning", "error")
    parser.add_argument("--log-level", choices=levels, default="info")
    return parser


def _add_images(parser: argparse.ArgumentParser) -> None:
    images = parser.add_argument_group("images")
    images.add_argument("--router-image", required=True)
    images.add_argument("--sglang-image", required=True, help="default of runtime SGLang")
    images.add_argument("--vllm-image", required=True, help="default of runtime VLLM")
    images.add_argument("--simulator-image", required=True, help="default of runtime Simulator")
    images.add_argument(
        "--download-image", required=True, help="downloads models: the image of this operator"
    )
    images.add_argument("--image-pull-policy", choices=("Always", "IfNotPresent", "Never"))
    _add_list(images, "--image-pull-secret", "NAME", "may be repeated")


def _add_pods(parser: argparse.ArgumentParser) -> None:
    """What pods have from the cluster that they run in."""
    parser.add_argument(
        "--no-fixed-user",
        action="store_true",
        help="run pods as the user of their image, or as the one that the namespace assigns (OpenShift)",
    )
    parser.add_argument(
        "--listen",
        choices=tuple(_LISTEN),
        default="Auto",
        help="families of addresses that pods listen on; Auto: those of the operator's own pod (POD_IPS)",
    )
    parser.add_argument(
        "--cluster-domain", default="cluster.local", metavar="DOMAIN", help="of the cluster's DNS"
    )
    _add_list(
        parser,
        "--engine-variable",
        "NAME=VALUE",
        "variable of all replicas but simulated ones, such as HTTPS_PROXY; may be repeated",
        kind=_label,
    )


def _add_monitoring(parser: argparse.ArgumentParser) -> None:
    _add_list(
        parser,
        "--scraper-namespace-label",
        "KEY=VALUE",
        "namespaces with these labels may read metrics; default: all",
        kind=_label,
    )
    _add_list(
        parser,
        "--monitoring-label",
        "KEY=VALUE",
        "on PodMonitors and PrometheusRules, for a Prometheus that selects them by it",
        kind=_label,
    )
    parser.add_argument(
        "--plain-rules",
        action="store_true",
        help="create a ConfigMap with the rules of each service, for a Prometheus without its operator",
    )
    parser.add_argument(
        "--runbooks",
        metavar="URL",
        help="where alerts send people: the folder of the pages docs/runbooks/*.md",
    )


def _add_rights(parser: argparse.ArgumentParser) -> None:
    """What services may use beyond their own objects."""
    _add_list(
        parser,
        "--allow-prometheus",
        "URL",
        "addresses that spec.autoscaling.prometheus.url may begin with; '*' allows all; default: none",
    )
    _add_list(
        parser,
        "--allow-prometheus-namespace",
        "NAMESPACE",
        "namespaces whose Services spec.autoscaling.prometheus.url may name, too",
    )
    parser.add_argument(
        "--any-secret",
        action="store_true",
        help="use Secrets without the label evenkeel.dev/use=true, too",
    )


def _add_list(
    parser: argparse._ActionsContainer,
    flag: str,
    metavar: str,
    help_text: str,
    *,
    kind: Callable[[str], object] = str,
) -> None:
    """A flag that may be given several times."""
    parser.add_argument(
        flag, action="append", default=[], type=kind, metavar=metavar, help=help_text
    )


def _label(text: str) -> tuple[str, str]:
    key, separator, value = text.partition("=")
    if not key or not separator:
        raise argparse.ArgumentTypeError(f"{text!r} is not KEY=VALUE")
    return key, value


def _resources(text: str) -> dict[str, dict[str, str | float]]:
    try:
        found = msgspec.json.decode(text, type=dict[str, dict[str, str | float]])
    except msgspec.DecodeError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is not JSON of resources: {error}") from error
    unknown = found.keys() - {"requests", "limits"}
    if unknown:
        raise argparse.ArgumentTypeError(f"{text!r}: {sorted(unknown)} is not requests or limits")
    return found


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0")
    return int(text)


def _version() -> str:
    try:
        return version("evenkeel-llm")
    except PackageNotFoundError:  # run from the source tree
        return "0.0.0"
