"""SGLang's address for KV events: every version binds it and none connects to it."""

from __future__ import annotations

import json
from typing import Any

import pytest
import zmq
from evenkeel_contract.render import kv_events_flag


def events_config(**given: Any) -> dict[str, Any]:
    flag, _, value = kv_events_flag(**given).partition("=")
    assert flag == "--kv-events-config"
    config: dict[str, Any] = json.loads(value)
    return config


def test_everywhere_is_bound_by_itself() -> None:
    config = events_config(host="*", port=5557, replay_port=5558)
    assert config == {
        "publisher": "zmq",
        "endpoint": "tcp://*:5557",
        "replay_endpoint": "tcp://*:5558",
    }


def test_an_address_is_one_that_both_versions_bind_and_nothing_else_is_open() -> None:
    config = events_config(host="127.0.0.1", port=0, replay_port=0)
    assert config["bind"] is True  # 0.5.23
    assert "::" in config["endpoint"]  # 0.5.21
    with zmq.Context() as context:
        for kind, name in ((zmq.PUB, "endpoint"), (zmq.ROUTER, "replay_endpoint")):
            with context.socket(kind) as socket:
                socket.bind(config[name])
                bound = socket.getsockopt_string(zmq.LAST_ENDPOINT)
            assert bound.startswith("tcp://127.0.0.1:")


@pytest.mark.parametrize("host", ["::1", "engine.local", "*"])
def test_other_hosts_are_left_as_they_are(host: str) -> None:
    assert events_config(host=host, port=1, replay_port=2)["endpoint"] == f"tcp://{host}:1"
