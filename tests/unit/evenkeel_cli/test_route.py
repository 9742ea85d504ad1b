"""`evenkeel route`: its file, its options, and the names that engines serve."""

from __future__ import annotations

import asyncio
import re
import socket
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path

import pytest
from evenkeel_cli import main
from evenkeel_cli.route.models import Card, ModelNames, ModelsError, ask_models, names_of
from evenkeel_cli.route.options import RouteOptions, route_of_options
from evenkeel_cli.route.routefile import (
    RouteFile,
    check_route,
    parse_route_file,
    router_config_of,
    sha256,
    unnamed,
)
from evenkeel_contract.queueorder import QueueOwner
from evenkeel_contract.routerconfig import (
    Anonymous,
    ListenConfig,
    ReplicaConfig,
    RouterConfig,
    SchedulingConfig,
    ShareAcross,
)
from evenkeel_contract.routerdocument import dump_router_config, parse_router_config
from typer.testing import CliRunner

from tests.support.nasty import fine, nasty
from tests.support.plain_engine import plain_engine
from tests.support.routers import simulated, until

EXAMPLE = Path(__file__).parents[3] / "examples" / "route.yaml"
REPLICAS = {"replicas": [{"url": "http://10.0.0.1:8000"}]}
TENANTS = {"tenants": [{"name": "ads", "keys": ["sk-1"]}]}


def config_of(route: RouteFile | None, faults: Sequence[object] = ()) -> RouterConfig:
    assert route is not None, faults
    return router_config_of(
        route, ModelNames("llama", ("other",), ("tuned",)), listen=ListenConfig()
    )


def test_the_example_is_valid_and_gives_a_valid_configuration() -> None:
    route, faults = parse_route_file(EXAMPLE.read_bytes(), "route.yaml")
    config = config_of(route, faults)
    assert parse_router_config(dump_router_config(config))[1] == ()
    assert [(one.name, one.url) for one in config.replicas] == [
        ("127.0.0.1:8000", "http://127.0.0.1:8000"),
        ("second", "http://127.0.0.1:8001"),
    ]
    ads, search = config.tenancy.tenants
    assert (ads.weight, [(one.name, one.weight) for one in ads.clients]) == (
        4,
        [("chat", 3), ("batch", 1)],
    )
    assert [(key.client, key.sha256) for key in ads.api_keys] == [
        ("chat", sha256("sk-ads-chat")),
        ("batch", sha256("sk-ads-batch")),
    ]
    assert [(key.client, key.sha256) for key in search.api_keys] == [
        ("default", sha256("sk-search"))
    ]
    assert (config.model, config.model_aliases, config.adapters) == (
        "llama",
        ("other",),
        ("tuned",),
    )


def test_several_models_are_pools_with_the_settings_of_the_file_or_their_own() -> None:
    given = {
        "models": [
            {"name": "smart", "aliases": ["gpt-4o"], "tenants": ["ads"], **REPLICAS},
            {"scheduling": {"fleetPolicy": "RoundRobin"}, **REPLICAS},
        ],
        "scheduling": {"maxDebt": 5},
        "limits": {"queueTimeoutS": 7},
    }
    route, faults = check_route(given | TENANTS)
    assert route is not None, faults
    names = ModelNames("org/big"), ModelNames("small", ("other",), ("tuned",))
    config = router_config_of(route, names[0], pools=names, listen=ListenConfig())
    assert parse_router_config(dump_router_config(config))[1] == ()
    assert (config.service, config.model, config.replicas) == ("route", "route", ())
    smart, small = config.pools
    assert (smart.service, smart.model, smart.names) == ("smart", "org/big", ("smart", "gpt-4o"))
    assert (smart.tenants, smart.scheduling.max_debt) == (("ads",), 5)
    assert (small.service, small.names, small.model_aliases) == ("small", (), ("other",))
    assert (small.scheduling.fleet_policy.value, small.scheduling.max_debt) == ("RoundRobin", None)
    assert {one.limits.queue_timeout_s for one in config.pools} == {7}
    assert (config.share_across, smart.gpus) == (None, None)


def test_models_that_share_have_the_gpus_of_their_engines() -> None:
    given = {
        "models": [{"gpus": 4, "model": "big", **REPLICAS}, {"model": "small", **REPLICAS}],
        "shareAcross": "Gateway",
    }
    route, faults = check_route(given | TENANTS)
    assert route is not None, faults
    config = router_config_of(route, ModelNames("big"), pools=unnamed(route), listen=ListenConfig())
    assert config.share_across is ShareAcross.GATEWAY
    assert [one.gpus for one in config.pools] == [4, 1]


def test_the_router_orders_the_queues_of_engines_without_the_plug_in() -> None:
    owners = [
        config_of(*check_route(REPLICAS | TENANTS | {"scheduling": given})).scheduling.queue
        for given in ({}, {"maxDebt": 1000}, {"queue": "Engine"})
    ]
    assert owners == [QueueOwner.AUTO, QueueOwner.AUTO, QueueOwner.ENGINE]
    assert SchedulingConfig().queue is QueueOwner.ENGINE  # of a cluster: the plug-in is there


@pytest.mark.parametrize(
    ("text", "want"),
    [
        ("replicas: []\ntenants: [{name: a, keys: [k]}]", ["f:1: replicas: is required; for several models, give models instead"]),
        (
            "models: [{replicas: []}]\nanonymous: Share",
            ["f:1: models[0].replicas: must have at least 1 entries, not 0"],
        ),
        (
            "replicas: [{url: http://a:1}]\nmodel: m\nmodels: [{replicas: [{url: http://a:1}]}]\nanonymous: Share",
            [
                "f:1: replicas: is set together with models; each of the models has its own",
                "f:2: model: is set together with models; each of the models has its own",
            ],
        ),
        (
            """models:
- {name: m, replicas: [{url: http://a:1}]}
- {name: n, aliases: [m], replicas: [{url: http://b:1}], tenants: [asd]}
- {aliases: [o], replicas: [{url: http://c:1, kvEvents: tcp://c:2}]}
tenants: [{name: ads, keys: [k]}]""",
            [
                "f:3: models[1].tenants[0]: 'asd' is not one of tenants; did you mean ads?",
                "f:4: models[2].aliases: needs name; set the name that clients send",
                "f:3: models[1].name: 'm' is also a name of models[0]; each model needs its own",
                "f:4: models[2].replicas[0].kvReplay: is required with kvEvents",
            ],
        ),
        (
            "replicas: [{url: http://a:1}]\nanonymous: Share\nshareAcross: Gateway",
            ["f:3: shareAcross: is set for one model, which shares with no other; remove it"],
        ),
        (
            "models: [{gpus: 0, replicas: [{url: http://a:1}]}]\nanonymous: Share\nshareAcross: Gatway",
            [
                "f:1: models[0].gpus: must be from 1 to ",
                "f:3: shareAcross: must be one of None, Gateway, not 'Gatway'",
            ],
        ),
        (
            "replicas: [{url: 10.0.0.1}]\nanonymous: Share",
            ["f:1: replicas[0].url: '10.0.0.1' is not an address like http://host:port or https://host:port"],
        ),
        (
            "replicas: [{url: http://a:1}, {url: http://a:1/}]\nanonymous: Share",
            ["f:1: replicas[1].url: has the same name as replicas[0].url"],
        ),
        (
            "replicas: [{url: http://a:1}]\n",
            ["f:1: tenants: no tenant has a key, so every request would get 401; add a key, or set anonymous: Share"],
        ),
        (
            "replicas: [{url: http://a:1}]\ntenants:\n- {name: a, keys: [k]}\n- {name: b, clients: [{name: c, keys: [k]}]}",
            ["f:4: tenants[1].clients[0].keys[0]: has the same key as tenants[0].keys[0]"],
        ),
        (
            "replicas: [{url: http://a:1}]\ntenants: [{name: a, keys: ['secret word']}]",
            ["f:2: tenants[0].keys[0]: must be ASCII without spaces"],
        ),
        (
            "replicas: [{url: http://a:1, kvEvents: tcp://a:2}]\nanonymous: Share\nanonymous: Reject",
            [
                "f:3: 'anonymous' is given twice in one mapping",
                "f:1: replicas[0].kvReplay: is required with kvEvents",
            ],
        ),
        (
            """models: [{name: m, replicas: [{url: http://a:1}]}]
anonymous: Share
federation: {cell: a, token: a token of all cells, cells: [{name: a, url: https://a}]}""",
            [
                "f:3: federation: a router of several services has no other cells; remove it",
                "f:3: federation.cells[0].name: 'a' is the name of this cell; list the other cells only",
            ],
        ),
        ("", ["f: must have exactly one document, not 0"]),
        ("kind: a\n---\nkind: b", ["f: must have exactly one document, not 2; `evenkeel up` runs a file of resources"]),
        ("replicas: [\nmodel: a\n---", ["f:3: expected ',' or ']', but got '<document start>'"]),
        ("a: [", ["f:1: expected the node content"]),
    ],
)  # fmt: skip
def test_every_fault_has_its_line_and_its_path(text: str, want: list[str]) -> None:
    route, faults = parse_route_file(text.encode(), "f")
    assert route is None
    assert len(faults) == len(want)
    for fault, start in zip(faults, want, strict=True):
        assert str(fault).startswith(start)


def test_options_give_the_same_configuration_as_a_file() -> None:
    options = RouteOptions(
        replica=["http://10.0.0.1:8000", "http://10.0.0.2:8000"],
        key=["ads/chat=sk-a=b", "ads/batch=sk-2", "search=sk-3"],
        weight=["ads=4", "ads/chat=3"],
        anonymous=Anonymous.SHARE,
        model="llama",
        queue=QueueOwner.ROUTER,
        tracing="http://collector:4318/v1/traces",
    )
    text = """
replicas: [{url: http://10.0.0.1:8000}, {url: http://10.0.0.2:8000}]
tenants:
- {name: ads, weight: 4, clients: [{name: chat, weight: 3, keys: [sk-a=b]}, {name: batch, keys: [sk-2]}]}
- {name: search, keys: [sk-3]}
tracing: {endpoint: 'http://collector:4318/v1/traces', samplingRatePerMillion: 1000000}
anonymous: Share
model: llama
scheduling: {queue: Router}
"""
    assert route_of_options(options) == parse_route_file(text.encode(), "f")


@pytest.mark.parametrize(
    ("changes", "want"),
    [
        ({"replica": []}, ["--replica: give the address of an engine, such as http://127.0.0.1:8000, or a file"]),
        (
            {"replica": ["localhost:8000"]},
            ["--replica: 'localhost:8000' is not an address like http://host:port or https://host:port"],
        ),
        ({"key": []}, ["--key: no tenant has a key, so every request would get 401; add a key, or give --anonymous Share"]),
        ({"key": ["sk-secret"]}, ["--key: number 1 must be NAME=KEY, such as ads=sk-1"]),
        ({"key": ["ads=sk-1", "b/c=sk-1"]}, ["--key: number 2 has the same key as number 1"]),
        ({"weight": ["add=4"]}, ["--weight: 'add' has no --key; did you mean ads?"]),
        ({"weight": ["ads=-1"]}, ["--weight: must be NAME=N with a whole number, not 'ads=-1'"]),
        ({"weight": ["ads=0"]}, ["--weight: must be "]),
    ],
)  # fmt: skip
def test_a_fault_of_an_option_names_the_option(changes: dict[str, object], want: list[str]) -> None:
    given: dict[str, object] = {"replica": ["http://a:1"], "key": ["ads=sk-1"]}
    route, faults = route_of_options(RouteOptions(**(given | changes)))  # type: ignore[arg-type]
    assert route is None
    assert len(faults) == len(want)
    for fault, start in zip(faults, want, strict=True):
        assert str(fault).startswith(start)


def test_the_key_of_all_replicas_does_not_replace_that_of_one() -> None:
    route, _ = check_route(
        {"replicas": [{"url": "http://a:1"}, {"url": "http://b:1", "apiKey": "own"}]} | TENANTS
    )
    assert route is not None
    config = router_config_of(route, ModelNames("m"), listen=ListenConfig(), replica_key="shared")
    assert [replica.api_key for replica in config.replicas] == ["shared", "own"]


def invoked(*arguments: str) -> tuple[int, str]:
    """Exit status and error output of a run that ends at once."""
    done = CliRunner().invoke(main.build(["route"]), ["route", *arguments])
    return done.exit_code, done.stderr


def test_invalid_input_ends_the_command_with_all_faults(tmp_path: Path) -> None:
    file = tmp_path / "route.yaml"
    file.write_text("replicas: [{url: ftp://a}]\nscheduling: {queu: Auto}\nanonymous: Share\n")
    status, text = invoked(str(file))
    assert status == 2
    assert f"error: {file}:1: replicas[0].url: 'ftp://a' is not an address" in text
    assert f"error: {file}:2: scheduling.queu: unknown" in text
    assert invoked(str(tmp_path / "none"))[1].endswith(
        "cannot be read: No such file or directory\n"
    )
    status, text = invoked(str(file), "--replica=http://a:1")
    assert (status, "FILE: replaces the options" in text) == (2, True)
    given = ("--replica=http://a:1", "--key=a=b")
    status, text = invoked(*given, "--host=0.0.0.0", "--port=80", "--admin-port=80")
    assert status == 2
    assert "--admin-port: 80 is also trafficPort" in text
    assert "--admin-token: is required if --host is not a loopback address" in text


def test_the_command_needs_only_the_packages_of_its_extra() -> None:
    project = tomllib.loads((EXAMPLE.parents[1] / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    assert "evenkeel-llm[router]" in extras["route"]
    installed = {
        re.split(r"[^\w-]", one)[0].lower()
        for one in (*project["dependencies"], *extras["route"], *extras["router"])
    }
    others = {re.split(r"[^\w-]", one)[0].lower() for extra in extras.values() for one in extra}
    code = (
        "import sys; sys.path[:0] = %r; from evenkeel_cli.main import build; build(['route']);"
        "import evenkeel_cli.top.command; print(*{name.partition('.')[0] for name in sys.modules})"
    )
    done = subprocess.run(
        [sys.executable, "-c", code % sys.path], capture_output=True, text=True, check=True
    )
    assert {"kubernetes", "psutil"} < others - installed
    assert set(done.stdout.lower().split()) & (others - installed) == set()


@pytest.mark.parametrize(
    ("cards", "want"),
    [
        ([Card("m")], ModelNames("m")),
        ([Card("m"), Card("short")], ModelNames("m", ("short",))),
        (  # vLLM
            [Card("m", owned_by="vllm"), Card("tuned", parent="m", owned_by="vllm")],
            ModelNames("m", ("tuned",)),
        ),
        (
            [Card("m", owned_by="sglang"), Card("tuned", parent="m", owned_by="sglang")],
            ModelNames("m", (), ("tuned",)),
        ),
        ([], None),
    ],
)
def test_names_come_from_the_engines_list(cards: list[Card], want: ModelNames | None) -> None:
    assert names_of(cards) == want


async def test_engines_that_start_later_are_waited_for() -> None:
    lines: list[str] = []
    settings = simulated(model="llama", reports_port=None)
    async with plain_engine(settings) as engine:
        engine.failing = True
        gone = ReplicaConfig(name="gone", url="http://127.0.0.1:1")
        asking = asyncio.create_task(ask_models([gone, engine.config("r0")], report=lines.append))
        await until(lambda: bool(lines), "a line")
        engine.failing = False
        assert await asking == ModelNames("llama")
    assert lines[0].startswith("waiting for the first replica that answers GET /v1/models (gone: ")
    assert "r0: status 503" in lines[0]


async def test_engines_with_different_models_are_refused() -> None:
    one, other = (simulated(model=name, reports_port=None) for name in ("llama", "qwen"))
    async with plain_engine(one) as first, plain_engine(other) as second:
        with pytest.raises(ModelsError, match="r0 serves 'llama' and r1 serves 'qwen'"):
            await ask_models([first.config("r0"), second.config("r1")], report=print)


async def test_an_engine_that_refuses_the_key_is_an_error() -> None:
    settings = simulated(api_key="sk-engine", reports_port=None)
    async with plain_engine(settings) as engine:
        with pytest.raises(ModelsError, match="--replica-key"):
            await ask_models([engine.config("r0")], report=print)


async def test_an_answer_that_is_no_list_of_models_is_reported() -> None:
    lines: list[str] = []
    async with nasty(fine) as replica:
        asking = asyncio.create_task(ask_models([replica.config("r0")], report=lines.append))
        await until(lambda: bool(lines), "a line")
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
    assert "the answer is not a list of models" in lines[0]


def test_a_port_that_is_in_use_is_named_before_anything_is_asked() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        status, text = invoked("--replica=http://127.0.0.1:9", "--key=a=b", f"--port={port}")
    assert status == 2
    assert f"--port: port {port} on 127.0.0.1 cannot be used" in " ".join(text.split())
