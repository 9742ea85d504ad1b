"""Lines of agents that change with every request: taken out of the prefix, and out of the engine's prompt unless kept."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from evenkeel_router.api.endpoints import Endpoint
from evenkeel_router.api.inference import Inference, Limits
from evenkeel_router.api.volatile import LINES

LIMITS = Limits(model="m", max_output_tokens=1000)
KEEPING = replace(LIMITS, keeps_volatile_lines=True)
NAME = "x-anthropic-billing-header"
LINE = (
    f"{NAME}: cc_version=2.1.177.e57; cc_entrypoint=sdk-cli; cch=5fc9a;"  # of Claude Code 2.1.177
)
OTHER = f"{NAME}: cc_version=2.1.332.1c9; cc_entrypoint=cli;"  # 2.1.332, another conversation
SYSTEM = "You are an agent. Billing is none of your concern."
USER = {"role": "user", "content": "Hi"}


def part(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text, "cache_control": {"type": "ephemeral"}}


def in_blocks(line: str) -> dict[str, Any]:
    system = [{"type": "text", "text": line}, part(SYSTEM)] if line else [part(SYSTEM)]
    return {"system": system, "messages": [USER], "max_tokens": 9}


def in_a_string(line: str) -> dict[str, Any]:
    return {"system": f"{line}\n{SYSTEM}" if line else SYSTEM, "messages": [USER], "max_tokens": 9}


def in_a_turn(line: str) -> dict[str, Any]:
    first = {"role": "system", "content": [part(line + SYSTEM)]}
    return {"messages": [first, USER], "max_tokens": 9, "tools": [{"name": "read"}]}


def in_chat(line: str) -> dict[str, Any]:
    content = f"{line}\n\n{SYSTEM}" if line else SYSTEM
    return {"messages": [{"role": "system", "content": content}, USER]}


def in_parts_of_chat(line: str) -> dict[str, Any]:
    return {"messages": [{"role": "developer", "content": in_blocks(line)["system"]}, USER]}


def in_instructions(line: str) -> dict[str, Any]:
    return {"instructions": in_a_string(line)["system"], "input": "Hi", "store": False}


def in_items(line: str) -> dict[str, Any]:
    texts = [line, SYSTEM] if line else [SYSTEM]
    content = [{"type": "input_text", "text": text} for text in texts]
    item = {"type": "message", "role": "developer", "content": content}
    return {"input": [item, {"type": "message", **USER}], "store": False}


PLACES = [
    (Endpoint.MESSAGES, in_blocks),
    (Endpoint.MESSAGES, in_a_string),
    (Endpoint.MESSAGES, in_a_turn),
    (Endpoint.COUNT_TOKENS, in_blocks),
    (Endpoint.CHAT, in_chat),
    (Endpoint.CHAT, in_parts_of_chat),
    (Endpoint.RESPONSES, in_instructions),
    (Endpoint.RESPONSES, in_items),
]


def read(endpoint: Endpoint, body: dict[str, Any], limits: Limits = LIMITS) -> Inference:
    return endpoint.api.parse(json.dumps({"model": "m", **body}).encode(), limits, "")


@pytest.mark.parametrize(("endpoint", "place"), PLACES)
def test_a_line_of_billing_is_in_no_prompt_and_no_prefix(endpoint: Endpoint, place: Any) -> None:
    none = read(endpoint, place(""))
    for line in (LINE, OTHER):
        with_line = read(endpoint, place(line))
        assert json.loads(with_line.body) == json.loads(none.body)
        assert with_line.text == none.text
        separator = 0 if none.text else 1  # between parts, unknown where there is no text to match
        assert with_line.prompt_bytes - none.prompt_bytes == separator
        assert with_line.stripped == (NAME,)
    assert none.stripped == ()


@pytest.mark.parametrize(("endpoint", "place"), PLACES)
def test_a_service_may_send_the_line_on_and_the_prefix_lacks_it(
    endpoint: Endpoint, place: Any
) -> None:
    kept = read(endpoint, place(LINE), KEEPING)
    assert json.loads(kept.body) == {"model": "m", **place(LINE)}
    assert kept.text == read(endpoint, place("")).text
    assert kept.prompt_bytes > read(endpoint, place("")).prompt_bytes
    assert kept.stripped == ()


@pytest.mark.parametrize(
    "text",
    [
        f"Keep this:\n{LINE}",
        f" {LINE}",
        f"{NAME}: a line of prose without pairs",
        f"{NAME}: cc_version={'1' * 300};",
        "X-Anthropic-Billing-Header: cc_version=1;",
    ],
)
def test_text_that_is_no_such_line_stays(text: str) -> None:
    read_body = json.loads(read(Endpoint.MESSAGES, in_blocks(text)).body)
    assert read_body["system"][0]["text"] == text


def test_a_line_that_is_not_the_first_of_the_prompt_stays() -> None:
    late = {"role": "system", "content": [part(LINE)]}
    body = {"messages": [USER, late], "max_tokens": 9}
    assert json.loads(read(Endpoint.MESSAGES, body).body) == {"model": "m", **body}


def test_what_users_and_tools_write_stays() -> None:
    result = {"type": "tool_result", "tool_use_id": "t", "content": LINE}
    turns = [
        {"role": "user", "content": [part(LINE), result]},
        {"role": "assistant", "content": LINE},
    ]
    body = {"messages": turns, "max_tokens": 9}
    inference = read(Endpoint.MESSAGES, body)
    assert json.loads(inference.body) == {"model": "m", **body}
    assert LINE.encode() in inference.text


def test_a_text_behind_the_line_stays_and_keeps_its_other_members() -> None:
    body = {"system": [part(f"{LINE}\n{SYSTEM}")], "messages": [USER], "max_tokens": 9}
    assert json.loads(read(Endpoint.MESSAGES, body).body)["system"] == [part(SYSTEM)]


@pytest.mark.parametrize("system", [7, [7], {"text": LINE}, [[LINE]], None])
def test_a_malformed_system_is_refused_as_without_the_rule(system: Any) -> None:
    body = {"system": system, "messages": [USER], "max_tokens": 9, "note": LINE}
    plain = json.loads(json.dumps(body).replace("-billing-", "-b-"))
    answers = []
    for given in (body, plain):
        try:
            answers.append(read(Endpoint.MESSAGES, given).text)
        except Exception as refusal:  # noqa: BLE001 - compared
            answers.append(str(refusal))
    assert answers[0] == answers[1]


def test_every_line_begins_with_its_name_and_has_a_switch() -> None:
    for line in LINES:
        assert line.pattern.match(f"{line.name}: a=b;")
        assert line.switch
