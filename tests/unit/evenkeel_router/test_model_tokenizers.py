"""A model's tokenizer and chat template, out of its files."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from evenkeel_contract.simulatedprompt import encode
from evenkeel_router.api.endpoints import Endpoint
from evenkeel_router.prefix.model_tokenizers import (
    ModelTokenizer,
    SimulatedTokenizer,
    TokenizerError,
)
from evenkeel_router.prefix.prompts import Chat, read
from evenkeel_router.prefix.tokenised import Reason, UntokenisedError
from tokenizers import Tokenizer

from tests.support.tokenizers import TEMPLATE, ids_of_chat, model_files, tokenizer_json

BOS = 0


def asked(**fields: Any) -> Chat:
    found = read(Endpoint.CHAT, msgspec.json.encode(fields))
    assert isinstance(found, Chat)
    return found


async def said(files: dict[str, bytes], **fields: Any) -> str:
    """A conversation's prompt, out of its token ids."""
    ids = await ids_of_chat(ModelTokenizer(files), asked(**fields))
    text: str = Tokenizer.from_buffer(tokenizer_json()).decode(ids, skip_special_tokens=False)
    return text


HI = [{"role": "user", "content": "hi"}]


async def test_a_prompt_begins_with_one_bos_and_a_chat_with_that_of_its_template() -> None:
    tokenizer = ModelTokenizer(model_files())
    assert tokenizer.prompt("the engine")[0] == BOS
    assert (await ids_of_chat(ModelTokenizer(model_files()), asked(messages=HI))).count(BOS) == 1
    assert await said(model_files(), messages=HI) == "<s><|user|>hi\n<|assistant|>"
    without = TEMPLATE.removeprefix("{{ bos_token }}")
    assert BOS not in await ids_of_chat(ModelTokenizer(model_files(without)), asked(messages=HI))


def test_a_prompt_that_spells_a_bos_has_two_as_the_engine_has_it() -> None:
    assert ModelTokenizer(model_files()).prompt("<s>hi").count(BOS) == 2


async def test_the_answer_that_is_continued_follows_without_a_bos() -> None:
    messages = [*HI, {"role": "assistant", "content": "Once upon"}]
    got = await said(model_files(), messages=messages, continue_final_message=True)
    assert got == "<s><|user|>hi\n<|assistant|>Once upon"


async def test_tools_and_calls_are_printed_as_json_with_nothing_escaped() -> None:
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"<é>": 1}}}]
    got = await said(model_files(), messages=HI, tools=tools)
    assert '{"name": "f", "parameters": {"<é>": 1}, "description": null}' in got


async def test_a_template_that_wants_functions_alone_gets_them() -> None:
    template = "{% for tool in tools %}{{ tool['name'] + ' ' }}{% endfor %}"
    tools = [{"function": {"name": "engine"}}, {"function": {"name": "router"}}]
    assert await said(model_files(template), messages=HI, tools=tools) == "engine router "


async def test_options_reach_the_template() -> None:
    assert "<think>" not in await said(model_files(), messages=HI)
    got = await said(model_files(), messages=HI, chat_template_kwargs={"enable_thinking": True})
    assert got.endswith("<think><|assistant|>")


async def test_a_template_may_read_parts_break_out_of_loops_and_mark_generations() -> None:
    template = (
        "{%- for message in messages %}{% for part in message.content %}[{{ part.text }}]"
        "{% break %}{% endfor %}{% endfor %}{% generation %}!{% endgeneration %}"
    )
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert (
        await said(model_files(template), messages=[{"role": "user", "content": parts}]) == "[a]!"
    )


async def test_of_several_templates_the_one_for_tools_is_for_tools() -> None:
    templates = [
        {"name": "default", "template": "plain"},
        {"name": "tool_use", "template": "tools"},
    ]
    files = model_files(None, chat_template=templates)
    assert await said(files, messages=HI) == "plain"
    assert await said(files, messages=HI, tools=[{"function": {"name": "f"}}]) == "tools"
    assert await said(model_files("file", chat_template=templates), messages=HI) == "file"
    own = model_files(None) | {"chat_template.json": b'{"chat_template": "own"}'}
    assert await said(own, messages=HI) == "own"


@pytest.mark.parametrize(
    ("template", "want"),
    [
        (None, Reason.NO_TEMPLATE),
        ("{{ raise_exception('no system here') }}", Reason.TEMPLATE),
        ("{{ messages[7].content }}", Reason.TEMPLATE),
        ("{{ ''.__class__.__mro__ }}{{ messages.append(1) }}", Reason.TEMPLATE),
    ],
)
async def test_a_chat_without_a_template_that_holds_has_a_reason(
    template: str | None, want: Reason
) -> None:
    with pytest.raises(UntokenisedError) as caught:
        await ids_of_chat(ModelTokenizer(model_files(template)), asked(messages=HI))
    assert caught.value.reason is want


@pytest.mark.parametrize(
    ("files", "want"),
    [
        ({}, "the model has no tokenizer.json"),
        ({"tokenizer.json": b"{}"}, "tokenizer.json: "),
        (model_files() | {"tokenizer_config.json": b"{"}, "tokenizer_config.json is not JSON"),
        (model_files() | {"tokenizer_config.json": b"[]"}, "tokenizer_config.json is not a JSON object"),
        (model_files("{% for %}"), "the chat template is invalid"),
    ],
)  # fmt: skip
async def test_files_that_make_no_tokenizer_are_named(files: dict[str, bytes], want: str) -> None:
    with pytest.raises(TokenizerError, match=want):
        await ModelTokenizer(files).start()


def test_a_tokenizer_never_cuts_a_prompt_off() -> None:
    files = model_files()
    config = json.loads(files["tokenizer.json"])
    config["truncation"] = {
        "direction": "Right",
        "max_length": 3,
        "strategy": "LongestFirst",
        "stride": 0,
    }
    files["tokenizer.json"] = json.dumps(config).encode()
    assert len(ModelTokenizer(files).prompt("the engine and the router " * 9)) > 9


async def test_the_simulators_conversation_is_its_own_templates() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    got = await ids_of_chat(
        SimulatedTokenizer(), asked(messages=[{"role": "user", "content": parts}])
    )
    assert got == encode("<|user|>\na b\n<|assistant|>\n").tolist()
