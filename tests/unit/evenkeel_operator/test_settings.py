"""The operator's command line."""

from __future__ import annotations

import pytest
from evenkeel_operator.settings import parse_arguments

IMAGES = ["--router-image=r", "--sglang-image=s", "--vllm-image=v", "--simulator-image=m",
          "--download-image=o"]  # fmt: skip
POD = {"POD_NAME": "op-1", "POD_NAMESPACE": "evenkeel"}


def test_in_a_pod_images_are_enough() -> None:
    settings = parse_arguments(IMAGES, POD)
    assert (settings.identity, settings.namespace) == ("op-1", "evenkeel")
    assert settings.defaults.operator_namespace == "evenkeel"
    assert settings.watched_namespaces == ()


def test_lists_and_labels() -> None:
    flags = [
        "--watch-namespace=a",
        "--watch-namespace=b",
        "--scraper-namespace-label=team=mon",
        "--allow-prometheus=http://p:9090",
        "--allow-prometheus-namespace=monitoring",
        "--any-secret",
        "--plain-rules",
        '--router-resources={"requests": {"cpu": "10m"}}',
        "--image-pull-secret=x",
    ]
    settings = parse_arguments([*IMAGES, *flags], POD)
    assert settings.watched_namespaces == ("a", "b")
    assert settings.defaults.scrapers == {"team": "mon"}
    assert settings.defaults.prometheus_urls == ("http://p:9090",)
    assert settings.defaults.prometheus_namespaces == ("monitoring",)
    assert settings.defaults.any_secret
    assert settings.defaults.monitoring.plain_rules
    assert settings.defaults.router_resources == {"requests": {"cpu": "10m"}}
    assert settings.defaults.pull_secrets == ("x",)


@pytest.mark.parametrize(
    ("arguments", "environment", "want"),
    [
        (IMAGES, {}, "--namespace and --identity are needed outside a pod"),
        (IMAGES[:2], POD, "--simulator-image"),
        ([*IMAGES, "--scraper-namespace-label=x"], POD, "'x' is not KEY=VALUE"),
        ([*IMAGES, "--namespaces-only"], POD, "--namespaces-only needs --watch-namespace"),
        ([*IMAGES, "--workers=0"], POD, "'0' is not a number above 0"),
    ],
)
def test_a_fault_is_one_sentence_and_exit_code_2(
    arguments: list[str],
    environment: dict[str, str],
    want: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit) as ended:
        parse_arguments(arguments, environment)
    assert ended.value.code == 2
    assert want in capsys.readouterr().err


@pytest.mark.parametrize(
    ("ips", "choice", "engines", "routers"),
    [
        (None, "Auto", "0.0.0.0", "0.0.0.0"),
        ("10.0.0.1", "Auto", "0.0.0.0", "0.0.0.0"),
        ("10.0.0.1,fd00::1", "Auto", "0.0.0.0", "::"),
        ("fd00::1,10.0.0.1", "Auto", "::", "::"),
        ("fd00::1", "Auto", "::", "::"),
        ("fd00::1", "IPv4", "0.0.0.0", "0.0.0.0"),
        ("10.0.0.1", "IPv6", "::", "::"),
    ],
)
def test_pods_listen_on_the_families_of_the_operators_pod(
    ips: str | None, choice: str, engines: str, routers: str
) -> None:
    environment = POD if ips is None else {**POD, "POD_IPS": ips}
    settings = parse_arguments([*IMAGES, f"--listen={choice}"], environment)
    assert settings.defaults.engine_host == engines
    assert (settings.defaults.router_host, settings.probe_host) == (routers, routers)
