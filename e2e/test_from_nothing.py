"""From nothing to an answer: the tutorial for a cluster, run as it is printed."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from openai import AuthenticationError, OpenAI

from e2e.installed import ROOT, SYSTEM, forget, helm, ingress, namespace, program, registry
from e2e.kubectl import Kubectl

pytestmark = [pytest.mark.core, pytest.mark.alone]
HOST = "llm.example.com"


@pytest.fixture(scope="module")
def said(kubectl: Kubectl, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """What the commands of the tutorial print, run in a namespace of their own."""
    forget(kubectl)
    with namespace(kubectl, "from-nothing") as team:
        kubeconfig = tmp_path_factory.mktemp("readme") / "kubeconfig"
        shutil.copyfile(kubectl.kubeconfig, kubeconfig)
        own = Kubectl(kubectl.program, kubeconfig)
        own("config", "set-context", "--current", f"--namespace={team.name}")
        folders = [str(Path(program(name)).parent) for name in ("kubectl", "helm")]
        environment = {
            **os.environ,
            "PATH": os.pathsep.join([*folders, os.environ["PATH"]]),
            "KUBECONFIG": str(kubeconfig),
            "REGISTRY": registry(),
            "INGRESS": ingress(),
        }
        done = subprocess.run(
            ["bash", "-euxo", "pipefail", "-c", commands()],
            cwd=ROOT, env=environment, capture_output=True, text=True, check=False,
        )  # fmt: skip
        try:
            assert done.returncode == 0, done.stdout + done.stderr
            yield done.stdout
        finally:
            forget(kubectl)


def commands() -> str:
    """The blocks of the tutorial that name this test."""
    text = (ROOT / "docs/tutorials/cluster.md").read_text()
    found = re.findall(r"<!-- test: e2e/test_from_nothing.py -->\n```sh\n(.*?)```", text, re.DOTALL)
    assert len(found) == 3
    return "".join(found)


def test_the_commands_of_the_tutorial_end_in_a_streamed_answer(said: str) -> None:
    events = [line for line in said.splitlines() if line.startswith("data: ")]
    assert len(events) > 8
    assert events[-1] == "data: [DONE]"


def test_any_openai_client_streams_through_the_ingress(said: str) -> None:
    client = OpenAI(
        base_url=f"http://{ingress()}/v1", api_key="sk-ads-chat", default_headers={"Host": HOST}
    )
    with client:
        stream = client.chat.completions.create(
            model="llama-3.1-8b",
            max_tokens=32,
            stream=True,
            stream_options={"include_usage": True},
            messages=[{"role": "user", "content": "Ahoy"}],
        )
        chunks = list(stream)
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == 32
    texts = [choice.delta.content for chunk in chunks for choice in chunk.choices]
    assert len([text for text in texts if text]) > 16  # as they come, not in one piece


def test_an_unknown_key_is_refused(said: str) -> None:
    client = OpenAI(
        base_url=f"http://{ingress()}/v1", api_key="sk-guess", default_headers={"Host": HOST}
    )
    with client, pytest.raises(AuthenticationError):
        client.models.list()


def test_the_charts_own_tests_pass(said: str, kubectl: Kubectl) -> None:
    assert "Phase:          Succeeded" in helm(kubectl, "--namespace", SYSTEM, "test", "evenkeel")
