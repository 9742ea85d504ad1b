"""Tokenising beside the loop: what is tokenised, and with which reason the rest is not."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest
from evenkeel_contract.routerconfig import SIMULATOR_TOKENIZER, PrefixConfig, PrefixMode
from evenkeel_fairshare.prefix.index import sglang_blocks
from evenkeel_router.api.endpoints import Endpoint
from evenkeel_router.api.inference import Inference, Limits
from evenkeel_router.fleet.prediction import Pages
from evenkeel_router.prefix import tokenisation as tokenising
from evenkeel_router.prefix.chat_template import TOO_LONG
from evenkeel_router.prefix.model_tokenizers import ModelTokenizer, SimulatedTokenizer
from evenkeel_router.prefix.prompts import Chat
from evenkeel_router.prefix.tokenisation import Tokenisation
from evenkeel_router.prefix.tokenised import Reason, Tokenised, Untokenised

from tests.support.routers import until
from tests.support.tokenizers import model_files, model_folder

LONG = "The engine keeps what it has computed. " * 100


def tokens_config(tokenizer: str | None = None, **changes: Any) -> PrefixConfig:
    given = {"mode": PrefixMode.TOKENS, "tokenizer": tokenizer, "page_tokens": 4}
    return PrefixConfig(**(given | changes))


def inference(
    endpoint: Endpoint = Endpoint.COMPLETIONS, **fields: Any
) -> tuple[Endpoint, Inference]:
    body = msgspec.json.encode({"model": "m", **fields})
    return endpoint, endpoint.api.parse(body, Limits("m", 1000), "")


async def loaded(folder: Path) -> Tokenisation:
    made = Tokenisation(tokens_config(str(model_folder(folder, model_files()))), Untokenised())
    await made.load()
    return made


async def test_a_prompt_is_tokenised_short_or_long(tmp_path: Path) -> None:
    tokenizer = ModelTokenizer(model_files())
    async with await loaded(tmp_path) as of:
        for text in ("The engine", LONG):
            ids = tokenizer.prompt(text)
            assert await of.of(*inference(prompt=text)) == Tokenised(
                tokens=len(ids),
                first=Pages(sglang_blocks(ids, page_tokens=4), 4, len(ids)),
                kind="prompt",
            )
        several = await of.of(*inference(prompt=["The engine", "The"]))
        assert several is not None
        assert several.tokens > several.first.tokens == len(tokenizer.prompt("The engine"))
        given = await of.of(*inference(prompt=list(range(8))))
        assert given is not None
        assert given.first.hashes == sglang_blocks(range(8), page_tokens=4)


async def test_a_chat_and_one_with_tools_are_different_kinds(tmp_path: Path) -> None:
    messages = [{"role": "user", "content": "hi"}]
    tools = [{"type": "function", "function": {"name": "f"}}]
    async with await loaded(tmp_path) as of:
        plain = await of.of(*inference(Endpoint.CHAT, messages=messages))
        with_tools = await of.of(*inference(Endpoint.CHAT, messages=messages, tools=tools))
    assert plain is not None
    assert with_tools is not None
    assert (plain.kind, with_tools.kind) == ("chat", "tools")


async def test_in_text_mode_nothing_is_tokenised_and_nothing_counted() -> None:
    untokenised = Untokenised()
    async with Tokenisation(PrefixConfig(), untokenised) as of:
        assert await of.of(*inference(prompt="hi")) is None
    assert not untokenised.counts


@pytest.mark.parametrize(
    ("want", "asked"),
    [
        (Reason.EMBEDDINGS, inference(Endpoint.EMBEDDINGS, input="hi")),
        (Reason.TOO_LONG, inference(prompt="x" * (tokenising.LONGEST_BYTES + 1))),
        (Reason.TEMPLATE, inference(prompt=[2**40])),
        (Reason.TEMPLATE, inference(prompt=[-1])),
    ],
)
async def test_what_is_not_tokenised_is_counted(
    want: Reason, asked: tuple[Endpoint, Inference], tmp_path: Path
) -> None:
    async with await loaded(tmp_path) as of:
        assert await of.of(*asked) is None
        assert of.untokenised.counts == {want: 1}


async def test_a_chat_whose_template_takes_too_long_is_matched_by_its_text(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    loop = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
    model_folder(tmp_path, model_files(loop))
    async with Tokenisation(tokens_config(str(tmp_path)), Untokenised()) as of:
        await of.load()
        for text in ("hi", "hi " * tokenising.INLINE_BYTES):  # on the loop, and in a thread
            messages = [{"role": "user", "content": text}]
            assert await of.of(*inference(Endpoint.CHAT, messages=messages)) is None
        assert await of.of(*inference(prompt="hi")) is not None
        assert of.untokenised.counts == {Reason.TEMPLATE: 2}
        assert of.busy_bytes == 0
    assert any(TOO_LONG in line for line in caplog.messages)


async def test_another_tokenizer_ends_the_process_of_the_former_templates(tmp_path: Path) -> None:
    async with await loaded(tmp_path) as of:
        (before,) = psutil.Process().children()
        await of.load()
        (after,) = psutil.Process().children()
        assert after != before
    assert psutil.Process().children() == []


async def test_a_folder_without_a_tokenizer_is_reported_and_a_later_one_is_used(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    full, empty = tmp_path / "full", tmp_path / "empty"
    full.mkdir()
    empty.mkdir()
    model_folder(full, model_files())
    async with Tokenisation(tokens_config(str(empty)), Untokenised()) as of:
        await of.load()
        assert of.untokenised.error == f"{empty}: the model has no tokenizer.json"
        for _ in range(3):
            assert await of.of(*inference(prompt="hi")) is None
        assert of.untokenised.counts == {Reason.NO_TOKENIZER: 3}
        assert sum("matched by its text: no_tokenizer" in line for line in caplog.messages) == 1
        running = asyncio.create_task(of.run())
        of.configure(tokens_config(str(full)))
        await until(lambda: isinstance(of.tokenizer, ModelTokenizer), "the model's tokenizer")
        assert of.untokenised.error == ""
        of.configure(tokens_config(SIMULATOR_TOKENIZER))
        await until(lambda: isinstance(of.tokenizer, SimulatedTokenizer), "the simulator's")
        running.cancel()


class _Held:
    """A tokenizer that waits until it is let go."""

    def __init__(self) -> None:
        self.go = threading.Event()

    def prompt(self, text: str) -> list[int]:
        assert self.go.wait(20)
        return [1]

    def chat(self, text: str, answer_begins: str) -> list[int]:
        raise AssertionError("no chat")

    async def text(self, chat: Chat) -> str:
        raise AssertionError("no chat")

    async def start(self) -> None:
        pass

    async def close(self) -> None:
        pass


async def test_no_client_waits_long_behind_the_prompts_of_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tokenising, "WAITING_BYTES", 2 * len(LONG))
    held = _Held()
    async with Tokenisation(tokens_config(), Untokenised()) as of:
        await of.use(held)
        waiting = [asyncio.create_task(of.of(*inference(prompt=LONG))) for _ in range(2)]
        await asyncio.sleep(0)
        assert await of.of(*inference(prompt=LONG)) is None
        assert of.untokenised.counts == {Reason.BUSY: 1}
        waiting[0].cancel()  # its client left; what it asked for is still being done
        held.go.set()
        assert (await waiting[1]) is not None
        await until(lambda: of.busy_bytes == 0, "the room to be given back")
        assert await of.of(*inference(prompt=LONG)) is not None


async def test_a_kind_whose_count_was_wrong_three_times_is_tokenised_no_more(
    tmp_path: Path,
) -> None:
    async with await loaded(tmp_path) as of:
        check = of.untokenised.check
        assert not check("prompt", tokens=10, reported=11)
        assert not check("prompt", tokens=10, reported=0)
        assert check("prompt", tokens=10, reported=20)  # two answers
        for _ in range(3):
            assert await of.of(*inference(prompt="hi")) is not None
            check("prompt", tokens=10, reported=11)
        assert await of.of(*inference(prompt="hi")) is None
        assert of.untokenised.counts == {Reason.MISMATCH: 1}
        messages = [{"role": "user", "content": "hi"}]
        assert await of.of(*inference(Endpoint.CHAT, messages=messages)) is not None
        await of.load()  # another tokenizer
        assert await of.of(*inference(prompt="hi")) is not None
