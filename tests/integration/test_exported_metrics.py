"""Every metric that an alert or a panel asks for is really exported: by a router, an engine, or the operator.

Nothing is compared with a list: the names come out of the scrapes of what runs here.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import httpx
from evenkeel_operator.metrics import serving

from docs.generate.metrics import OPERATOR, ROUTER, labels_of
from monitoring.generate import HERE
from tests.support.plain_words import sentence_faults
from tests.support.routers import KEY, MODEL, fleet, until

_NAME = re.compile(r"\b(?:evenkeel_(?:router|engine|operator)_|sglang:)\w+")
_HELP = re.compile(r"^# HELP ((?:evenkeel_|sglang:)\S+) ?(.*)$", re.MULTILINE)
NOT_YET = ("sglang:",)
"""Prefixes of metrics whose help is not in plain words yet; each must still have such a metric."""
_SERIES = re.compile(r"^evenkeel_(router|operator)_(\w+?)(?:\{(.*)\})? ", re.MULTILINE)
_TYPE = re.compile(r"^# TYPE (\S+) (\w+)$", re.MULTILINE)


def asked_for() -> Iterator[tuple[str, str]]:
    """Metric, and the file that asks for it."""
    for folder in ("alerts", "dashboards"):
        for path in sorted((HERE / folder).glob("*.yaml")):
            for name in _NAME.findall(path.read_text()):
                yield name, path.name


def exported(text: str) -> Iterator[str]:
    """Names of series in a scrape."""
    for name, kind in _TYPE.findall(text):
        if kind in ("histogram", "summary"):
            yield from (f"{name}_{part}" for part in ("bucket", "count", "sum"))
        else:
            yield name


async def scrape(url: str) -> str:
    async with httpx.AsyncClient() as client:
        response = await client.get(f"{url}/metrics")
        response.raise_for_status()
        return response.text


async def scrapes() -> str:
    """What a router, a simulated replica and the operator export after one request."""
    async with fleet(1) as (router, (server,)), serving("127.0.0.1", 0) as operator_port:
        async with httpx.AsyncClient(base_url=router.url) as client:
            body = {"model": MODEL, "prompt": "Once upon a time", "max_tokens": 4}
            headers = {"Authorization": f"Bearer {KEY}"}
            assert (await client.post("/v1/completions", json=body, headers=headers)).is_success
        await until(lambda: bool(router.rooms.replicas.reports), "a report")
        urls = (
            f"http://127.0.0.1:{router.probe_port}",
            server.url,
            f"http://127.0.0.1:{operator_port}",
        )
        return "".join([await scrape(url) for url in urls])


async def test_every_metric_that_alerts_and_dashboards_ask_for_is_exported() -> None:
    found = set(exported(await scrapes()))
    asked = list(asked_for())
    assert len(asked) > 80
    assert [(name, where) for name, where in asked if name not in found] == []


async def test_every_metric_has_help_in_short_sentences() -> None:
    helps = dict(_HELP.findall(await scrapes()))
    assert len(helps) > 80
    faults = {name: found for name, text in helps.items() if (found := list(sentence_faults(text)))}
    assert {name: found for name, found in faults.items() if not name.startswith(NOT_YET)} == {}
    assert [
        prefix for prefix in NOT_YET if not any(name.startswith(prefix) for name in faults)
    ] == []


async def test_series_have_the_labels_that_the_reference_lists() -> None:
    """Of routers and the operator; a simulated replica has one label more than an engine with the plug-in."""
    text = await scrapes()
    kinds = dict(_TYPE.findall(text))
    tables = {"router": ROUTER, "operator": OPERATOR}
    found = {
        (
            part,
            _family(f"evenkeel_{part}_{name}", kinds),
            frozenset(re.findall(r"(\w+)=\"", labels)) - {"le"},
        )
        for part, name, labels in _SERIES.findall(text)
        if not name.endswith(
            "_created"
        )  # the time at which another test of this process made a counter's series
    }
    assert len(found) > 50
    wrong = [
        (name, sorted(labels))
        for part, name, labels in found
        if labels
        != frozenset(labels_of(name.removeprefix(f"evenkeel_{part}_"), tables[part]).names)
    ]
    assert wrong == []


def _family(series: str, kinds: dict[str, str]) -> str:
    """The name of the metric that a series belongs to."""
    return series if series in kinds else series.rpartition("_")[0]
