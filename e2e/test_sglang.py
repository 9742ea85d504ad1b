"""The real engine in pods: SGLang with the plug-in, on the CPU, behind routers and ingress.

Its image is made from the environment of `make sglang` and holds a tiny model with random weights; the pod runs on
the one node that has the image, with a fake GPU.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from evenkeel_contract.names import ENGINE_PORT
from evenkeel_contract.render import CPU_FLAGS
from openai import OpenAI

from e2e.installed import MODEL, Namespace, ingress, service
from e2e.operators import wait_until
from e2e.rig import cluster
from e2e.rig.engineimage import IMAGE, MODEL_PATH, engine_archive
from e2e.rig.errors import NotHereError
from e2e.rig.layout import NODES
from tests.sglang.engine import ENVIRONMENT, engine_environment

pytestmark = [pytest.mark.sglang, pytest.mark.timeout(900)]
KEY = "sk-sglang"
CPU_ARGUMENTS = [*CPU_FLAGS, "--max-total-tokens=4096", "--max-running-requests=16"]
PROMPT = "Call me Ishmael. Some years ago, never mind how long precisely. " * 8


@pytest.fixture(scope="module")
def image() -> None:
    environment = engine_environment()
    if environment is None:
        pytest.skip("the real engine is not installed: make sglang")
    if "E2E_REGISTRY" in os.environ:
        pytest.skip("the engine's image for CPUs is built for the rig's own cluster only")
    try:
        cluster.load_images([engine_archive(environment)], nodes=NODES[:1])
    except NotHereError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def real(image: None, team: Namespace) -> Namespace:
    """A service `one` of one real engine, with a tenant."""
    plain = service("one", host=team.host("one"), tenancy={"anonymous": "Reject"})
    plain["spec"]["model"] = {"source": f"file://{MODEL_PATH}", "servedName": MODEL}
    plain["spec"]["engine"] = {
        "runtime": "SGLang",
        "replicas": 1,
        "args": CPU_ARGUMENTS,
        "template": {
            "spec": {
                "nodeSelector": {"kubernetes.io/hostname": NODES[0].name},
                "env": [{"name": name, "value": text} for name, text in ENVIRONMENT.items()],
                "resources": {"requests": {"cpu": "500m", "memory": "2Gi"}},
            }
        },
    }
    team.tenant("ads", KEY)
    team.apply(plain)
    team("wait", "--for=condition=Ready", "fis/one", "--timeout=500s")
    team.answers("one", KEY, 200)
    return team


@pytest.fixture
def client(real: Namespace) -> Iterator[OpenAI]:
    headers = {"Host": real.host("one")}
    with OpenAI(base_url=f"http://{ingress()}/v1", api_key=KEY, default_headers=headers) as client:
        yield client


def engine_pod(team: Namespace) -> tuple[str, Any]:
    ((name, pod),) = team.pods("one", "engine").items()
    return name, pod


def metrics(team: Namespace) -> dict[str, float]:
    """Every sample of the engine's `/metrics`, by its name with labels."""
    with team.forwarded(engine_pod(team)[0], ENGINE_PORT) as address:
        text = httpx.get(f"{address}/metrics").raise_for_status().text
    samples = (line.rsplit(" ", 1) for line in text.splitlines() if line and line[0] != "#")
    return {name: float(value) for name, value in samples}


def test_a_streamed_answer_comes_through_router_and_ingress(client: OpenAI) -> None:
    stream = client.completions.create(
        model=MODEL,
        prompt=PROMPT,
        max_tokens=48,
        stream=True,
        stream_options={"include_usage": True},
        extra_body={"ignore_eos": True},
    )
    chunks = list(stream)
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == 48
    assert len([chunk for chunk in chunks if chunk.choices]) > 16  # as they come, not in one piece


def test_what_was_cached_is_reported(client: OpenAI) -> None:
    prompt = f"Once more. {PROMPT}"
    for _ in range(2):
        answer = client.completions.create(model=MODEL, prompt=prompt, max_tokens=4)
    assert answer.usage is not None
    assert answer.usage.prompt_tokens_details is not None
    cached = answer.usage.prompt_tokens_details.cached_tokens
    assert cached is not None
    assert cached > answer.usage.prompt_tokens // 2


def test_the_policy_is_in_charge_inside_the_engine(real: Namespace, client: OpenAI) -> None:
    client.completions.create(model=MODEL, prompt=PROMPT, max_tokens=4)
    wait_until(
        lambda: metrics(real).get('evenkeel_engine_policy_active{policy="DLPM"}') == 1.0,
        "the gauge of the active policy",
    )


def test_the_pod_has_what_the_spec_and_the_chart_say(real: Namespace) -> None:
    name, pod = engine_pod(real)
    (container,) = pod["spec"]["containers"]
    assert container["image"] == IMAGE
    assert container["resources"]["limits"] == {"nvidia.com/gpu": "1"}
    assert container["securityContext"]["readOnlyRootFilesystem"]
    assert real("exec", name, "--", "id", "-u").strip() == "65532"
    assert pod["status"]["containerStatuses"][0]["restartCount"] == 0


def test_the_engine_refuses_requests_without_its_services_key(real: Namespace) -> None:
    with real.forwarded(engine_pod(real)[0], ENGINE_PORT) as address:
        body = json.dumps({"text": "Ahoy", "sampling_params": {"max_new_tokens": 1}})
        assert httpx.post(f"{address}/generate", content=body).status_code == 401
