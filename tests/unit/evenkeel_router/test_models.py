"""The models behind one address: names, adapters, and what a tenant may use."""

from __future__ import annotations

from typing import Any

import pytest
from evenkeel_contract.routerconfig import PoolConfig
from evenkeel_router.api.audio import model_of_form, with_model_in_form
from evenkeel_router.api.errors import Refusal
from evenkeel_router.api.models import ModelTable
from evenkeel_router.telemetry.exposition import counter, labels, merged

from tests.support.routers import config_for


def table(*pools: dict[str, Any]) -> ModelTable:
    return ModelTable(config_for(pools=tuple(PoolConfig(**given) for given in pools)))


LLAMA = {"service": "a", "model": "llama", "adapters": ("support", "sql")}
QWEN = {"service": "b", "model": "qwen", "model_aliases": ("qwen-chat",), "adapters": ("sql",)}


@pytest.mark.parametrize(
    ("name", "service", "served"),
    [
        ("llama", "a", "llama"),
        ("qwen-chat", "b", "qwen-chat"),
        ("support", "a", "llama:support"),
        ("llama:sql", "a", "llama:sql"),
        ("qwen:sql", "b", "qwen:sql"),
        ("qwen-chat:sql", "b", "qwen:sql"),
    ],
)
def test_a_name_is_that_of_a_model_or_of_an_adapter(name: str, service: str, served: str) -> None:
    offer = table(LLAMA, QWEN).find(name, "ads")
    assert (offer.service, offer.served) == (service, served)


def test_an_adapter_of_two_models_needs_the_name_of_its_model() -> None:
    with pytest.raises(Refusal, match="'sql' does not exist"):
        table(LLAMA, QWEN).find("sql", "ads")


def test_given_names_replace_those_that_replicas_know() -> None:
    found = table({**LLAMA, "names": ("fast", "gpt-4o")}, {**LLAMA, "service": "c"})
    assert found.find("gpt-4o", "ads").service == "a"
    assert found.find("fast:sql", "ads").served == "llama:sql"
    assert found.find("llama", "ads").service == "c"
    assert found.renames["gpt-4o"] == "llama"


def test_each_model_and_each_adapter_is_listed_once() -> None:
    cards = table(LLAMA, QWEN).cards("ads", created=7)
    assert [card["id"] for card in cards] == [
        "llama",
        "qwen",
        "qwen-chat",
        "support",
        "llama:sql",
        "qwen:sql",
    ]
    assert [card.get("parent") for card in cards[3:]] == ["llama", "llama", "qwen"]


def test_the_nearest_name_is_one_that_the_tenant_may_use() -> None:
    found = table({**LLAMA, "tenants": ("ads",)}, {**QWEN, "model_aliases": ("lamb",)})
    with pytest.raises(Refusal, match="did you mean llama") as seen:
        found.find("lama", "ads")
    assert seen.value.status == 404
    with pytest.raises(Refusal, match="did you mean lamb"):
        found.find("lama", "research")


FORM = (
    b'--b\r\nContent-Disposition: form-data; name="model"\r\n\r\nears\r\n'
    b'--b\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\nRIFF\r\n--b--\r\n'
)
FORM_TYPE = "multipart/form-data; boundary=b"


def test_a_form_gets_another_model_and_keeps_the_rest() -> None:
    changed = with_model_in_form(FORM, FORM_TYPE, "whisper-1")
    assert model_of_form(changed, FORM_TYPE) == "whisper-1"
    assert changed == FORM.replace(b"ears", b"whisper-1")


def test_a_scrape_of_several_services_has_each_head_once() -> None:
    def scrape(name: str, value: float) -> list[str]:
        own = labels(model_name=name)
        return ["", *counter("a", "A.", [(own, value)]), "", *counter("b", "B.", [(own, value)])]

    text = "".join(merged([iter(scrape("x", 1.0)), iter(scrape("y", 2.0))]))
    assert text == (
        "# HELP evenkeel_router_a_total A.\n# TYPE evenkeel_router_a_total counter\n"
        'evenkeel_router_a_total{model_name="x"} 1.0\nevenkeel_router_a_total{model_name="y"} 2.0\n'
        "# HELP evenkeel_router_b_total B.\n# TYPE evenkeel_router_b_total counter\n"
        'evenkeel_router_b_total{model_name="x"} 1.0\nevenkeel_router_b_total{model_name="y"} 2.0\n'
    )
