"""LoRA adapters in the plug-in: who pays for a load, which request names an adapter, and the flag that does not fit."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace

import pytest
from evenkeel_contract.names import ADAPTER_HEADER
from evenkeel_plugin.matching import LOAD_TOKENS, AdapterLoads
from evenkeel_sglang import hooks


def req(adapter: str | None) -> SimpleNamespace:
    return SimpleNamespace(lora_id=adapter)


def test_the_first_request_of_an_unloaded_adapter_pays_for_the_load() -> None:
    slots: dict[str, int] = {"x": 0}
    loads = AdapterLoads(lambda: slots)
    loads.begin_pass()
    named = [None, "x", "y", "y", "z"]
    assert [loads.tokens(req(name)) for name in named] == [0, 0, LOAD_TOKENS, 0, LOAD_TOKENS]
    slots |= {"y": 1, "z": 2}
    loads.begin_pass()
    assert [loads.tokens(req(name)) for name in named] == [0] * 5
    del slots["y"]
    assert loads.tokens(req("y")) == LOAD_TOKENS


@dataclass
class Generated:
    routing_key: str | None = None
    lora_path: str | None = None


@dataclass
class Http:
    headers: dict[str, str] = field(default_factory=dict)


@pytest.mark.parametrize(
    ("given", "headers", "want"),
    [(None, {ADAPTER_HEADER: "x"}, "x"), ("y", {}, "y"), (None, {}, None)],
)
def test_a_request_gets_the_adapter_of_its_header(
    given: str | None, headers: dict[str, str], want: str | None
) -> None:
    obj = Generated(lora_path=given)
    hooks.generate_request(None, obj, Http(headers))
    assert obj.lora_path == want
