"""Which spec runs, which image is pinned, and what only the operator can find wrong."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from evenkeel_operator.core.records import (
    Accepted,
    Defaults,
    accepted_data,
    choose_spec,
    engine_image,
    may_be_asked,
    pinned,
    read_accepted,
)

from tests.support.build_contexts import document

DEFAULTS = Defaults(
    version="1.1.0",
    router_image="r",
    sglang_image="s:2",
    vllm_image="v:2",
    simulator_image="sim:2",
    download_image="o:2",
)


def raw(sample: str = "simulator.yaml", **spec: Any) -> dict[str, Any]:
    plain = document(sample)
    plain["spec"] |= spec
    return plain


def test_a_good_spec_that_does_not_run_yet_is_new_and_one_that_runs_is_not() -> None:
    first = choose_spec(raw(), None, DEFAULTS)
    assert first.is_new
    assert first.accepted is not None
    assert not choose_spec(raw(), first.accepted, DEFAULTS).is_new
    assert choose_spec(raw(tenancy={}), first.accepted, DEFAULTS).is_new


def test_a_bad_spec_runs_as_the_last_good_one() -> None:
    good = choose_spec(raw(), None, DEFAULTS)
    bad = choose_spec(raw(engine={"replicas": -1}), good.accepted, DEFAULTS)
    assert bad.running == good.running
    assert [fault.path for fault in bad.faults] == ["spec.engine.replicas"]
    nothing = choose_spec(raw(engine={"replicas": -1}), None, DEFAULTS)
    assert nothing.running is None


def test_what_was_accepted_survives_its_config_map() -> None:
    accepted = Accepted({"model": {"source": "hf://a/b"}}, {"SGLang": "s:1"})
    assert read_accepted({"data": accepted_data(accepted)}) == accepted


@pytest.mark.parametrize(
    "data", [None, {}, {"spec.json": ""}, {"spec.json": "{"}, {"spec.json": "[]"}]
)
def test_a_config_map_that_cannot_be_read_is_as_good_as_none(data: Any) -> None:
    assert read_accepted({"data": data}) is None
    assert read_accepted(None) is None


IMAGES: dict[str, tuple[dict[str, str], dict[str, str], str | None, str]] = {
    # case: pins, annotations, spec.engine.image, want
    "a new service takes the default": ({}, {}, None, "sim:2"),
    "an old one keeps its own": ({"Simulator": "sim:1"}, {}, None, "sim:1"),
    "another runtime's pin is none": ({"SGLang": "s:1"}, {}, None, "sim:2"),
    "the spec's image wins": ({"Simulator": "sim:1"}, {}, "mine:9", "mine:9"),
    "asked for this version": (
        {"Simulator": "sim:1"},
        {"evenkeel.dev/upgrade": "1.1.0"},
        None,
        "sim:2",
    ),
    "asked for an older one": (
        {"Simulator": "sim:1"},
        {"evenkeel.dev/upgrade": "1.0.0"},
        None,
        "sim:1",
    ),
    "asked for always": (
        {"Simulator": "sim:1"},
        {"evenkeel.dev/upgrade": "Always"},
        None,
        "sim:2",
    ),
}


@pytest.mark.parametrize(("pins", "annotations", "image", "want"), IMAGES.values(), ids=IMAGES)
def test_the_image(
    pins: dict[str, str], annotations: dict[str, str], image: str | None, want: str
) -> None:
    engine = {"runtime": "Simulator"} | ({"image": image} if image else {})
    plain = raw(engine=engine)
    plain["metadata"]["annotations"] = annotations
    service = choose_spec(plain, None, DEFAULTS).running
    assert service is not None
    accepted = pinned(service, Accepted(plain["spec"], pins), DEFAULTS)
    assert engine_image(service, accepted) == want


def _engine(**container: Any) -> dict[str, Any]:
    listed = [{"name": "engine", **container}]
    return {"engine": {"template": {"spec": {"containers": listed}}}}


FAULTS: dict[str, tuple[dict[str, Any], list[str]]] = {
    "arguments by the back door": (
        _engine(args=["--tp=8"]),
        [
            "spec.engine.template.spec.containers[0].args: is set by Evenkeel; use spec.engine.args",
        ],
    ),
    "an image by the back door": (
        _engine(image="x"),
        [
            "spec.engine.template.spec.containers[0].image: is set by Evenkeel; use spec.engine.image",
        ],
    ),
    "a variable of ours": (
        {
            "engine": {
                "template": {"spec": {"env": [{"name": "EVENKEEL_REJOIN", "value": "Paper"}]}}
            }
        },
        [
            "spec.engine.template.spec.env[0]: EVENKEEL_REJOIN is set by Evenkeel; remove it",
        ],
    ),
    "a label of ours": (
        {"router": {"template": {"metadata": {"labels": {"evenkeel.dev/service": "x"}}}}},
        [
            "spec.router.template.metadata.labels: must not hold evenkeel.dev/service: selectors need it",
        ],
    ),
    "a side car is free": (
        {"router": {"template": {"spec": {"containers": [{"name": "x", "args": ["y"]}]}}}},
        [],
    ),
    "shapes that nobody has are for the API server to refuse": (
        {
            "router": {
                "template": {"metadata": {"labels": 3}, "spec": {"containers": "x", "env": 1}}
            }
        },
        [],
    ),
}


@pytest.mark.parametrize(("spec", "want"), FAULTS.values(), ids=FAULTS)
def test_faults_that_only_the_operator_finds(spec: dict[str, Any], want: list[str]) -> None:
    assert [str(fault) for fault in choose_spec(raw(**spec), None, DEFAULTS).faults] == want


@pytest.mark.parametrize(
    ("allowed", "good"),
    [
        ((), False),
        (("*",), True),
        (("http://prometheus.monitoring:9090",), True),
        (("http://prometheus.monitoring:9090/",), True),
        (("http://prometheus.monitoring",), False),
        (("http://prometheus.monitoring:90",), False),
        (("https://other",), False),
    ],
)
def test_a_scaler_reads_only_what_the_operator_allows(allowed: tuple[str, ...], good: bool) -> None:
    found = choose_spec(raw("gpu.yaml"), None, replace(DEFAULTS, prometheus_urls=allowed))
    paths = [fault.path for fault in found.faults]
    assert paths == ([] if good else ["spec.autoscaling.prometheus.url"])


@pytest.mark.parametrize(
    ("url", "good"),
    [
        ("http://p:9090/team", True),
        ("http://p:9090/team/x", True),
        ("http://p:9090/teams", False),
        ("http://p:9090/team/../admin", False),
        ("http://p:9090/team/%2e%2E/admin", False),
        ("http://p:9090/team/./x", False),
        ("http://p:9090@elsewhere/team", False),
    ],
)
def test_no_way_leads_out_of_what_is_allowed(url: str, good: bool) -> None:
    allowed = replace(DEFAULTS, prometheus_urls=("http://p:9090/team",))
    assert may_be_asked(url, allowed) is good


@pytest.mark.parametrize(
    ("url", "good"),
    [
        ("http://prometheus.monitoring:9090", True),
        ("https://p.monitoring.svc/prefix", True),
        ("http://p.monitoring.svc.cluster.local:80", True),
        ("http://p.monitoring.svc.evil.example", False),
        ("http://p.monitoring.evil.example", False),
        ("http://monitoring:9090", False),
        ("http://a.p.monitoring:9090", False),
        ("http://p.monitoring@evil.example", False),
        ("http://evil.example/p.monitoring", False),
        ("http://evil.example#p.monitoring", False),
        ("http://evil.example?p.monitoring", False),
        ("http://p.team", False),
        ("file://p.monitoring", False),
    ],
)
def test_the_services_of_an_allowed_namespace_may_be_asked_and_no_others(
    url: str, good: bool
) -> None:
    allowed = replace(DEFAULTS, prometheus_urls=(), prometheus_namespaces=("monitoring",))
    assert may_be_asked(url, allowed) is good
    assert not may_be_asked(url, replace(DEFAULTS, prometheus_urls=()))
    elsewhere = replace(allowed, cluster_domain="k8s.example")
    assert may_be_asked(url.replace("cluster.local", "k8s.example"), elsewhere) is good
