"""Tokenising requests beside the event loop (DESIGN section 5, tokens mode).

Short prompts are tokenised at once; others in threads, where the tokenizer releases the interpreter. The amount that
may wait there is bounded: beyond it, and for prompts that would delay all others, the router matches by text. So one
client's long prompts never delay another's short ones for long.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple, Self, TypeVar, TypeVarTuple

from evenkeel_contract.kvevents import PageHash
from evenkeel_contract.promptfacts import FILES, MAX_FACTS_BYTES, PromptFacts
from evenkeel_contract.routerconfig import SIMULATOR_TOKENIZER, PrefixConfig, PrefixMode
from evenkeel_fairshare.prefix.index import sglang_blocks, vllm_blocks

from evenkeel_router.api.endpoints import Endpoint
from evenkeel_router.api.inference import Inference
from evenkeel_router.fleet.prediction import Pages
from evenkeel_router.prefix.model_tokenizers import (
    AnyTokenizer,
    ModelTokenizer,
    SimulatedTokenizer,
    TokenizerError,
)
from evenkeel_router.prefix.prompts import Chat, Prompts, is_read, read
from evenkeel_router.prefix.tokenised import Reason, Tokenised, Untokenised, UntokenisedError

_log = logging.getLogger(__name__)
INLINE_BYTES: Final = 2048
"""Tokenised on the loop: about half a millisecond, less than a thread's detour under load."""
LONGEST_BYTES: Final = 2 * 1024 * 1024
"""The longest prompt that is tokenised: half a million tokens, about half a second of a thread."""
LONGEST_BODY_BYTES: Final = 2 * LONGEST_BYTES
"""The longest body that is decoded in a thread, which holds the interpreter meanwhile: about 5 ms."""
MOST_VALUES: Final = 32_768
"""Values of a body that is decoded there; token ids beyond are matched as text."""
WAITING_BYTES: Final = 4 * 1024 * 1024
"""Prompts being tokenised, all together."""
THREADS: Final = 2
_Given = TypeVarTuple("_Given")
_Result = TypeVar("_Result")
_HASHES: Final = {PageHash.SGLANG: sglang_blocks, PageHash.VLLM: vllm_blocks}


class PageKind(NamedTuple):
    """The pages of the engines' caches."""

    tokens: int
    """Tokens of a page."""
    hash: PageHash


class Tokenisation:
    """Tokenises for one router; `untokenised` counts what is not."""

    def __init__(self, config: PrefixConfig, untokenised: Untokenised) -> None:
        self._config = config
        self.wanted = config.mode is PrefixMode.TOKENS
        """Whether requests are matched by tokens at all."""
        self.untokenised = untokenised
        self.tokenizer: AnyTokenizer | None = None
        """The tokenizer in use; None while there is none."""
        self.digest = ""
        """Digest of the replicas' facts that are followed; empty where none are."""
        self._reported: PageKind | None = None
        self._changed = asyncio.Event()
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="tokenise")
        self.busy_bytes = 0
        """Bytes of the prompts in the threads."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exception: object) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)
        await self._replace(None)

    @property
    def pages(self) -> PageKind:
        """The pages that prompts are cut into: as replicas report, or as configured."""
        return self._reported or PageKind(self._config.page_tokens, self._config.page_hash)

    def configure(self, config: PrefixConfig) -> None:
        """A changed configuration: `run` loads another tokenizer, if it is another."""
        before, self._config = self._config, config
        self.wanted = config.mode is PrefixMode.TOKENS
        if (before.mode, before.tokenizer) != (config.mode, config.tokenizer):
            self._changed.set()

    async def run(self) -> None:
        """Load what changed configurations name, until cancelled."""
        while True:
            await self._changed.wait()
            self._changed.clear()
            self.digest = ""
            await self._replace(None)
            await self.load()

    async def load(self) -> None:
        """Load the tokenizer that the configuration names. What is wrong with it is shown, not raised."""
        config = self._config
        if not self.wanted or config.tokenizer is None:
            return
        if config.tokenizer == SIMULATOR_TOKENIZER:
            await self.use(SimulatedTokenizer())
            return
        try:
            await self.use(await asyncio.to_thread(_load, Path(config.tokenizer)))
        except (TokenizerError, OSError) as error:
            await self.use(None, f"{config.tokenizer}: {error}")

    @property
    def asks(self) -> bool:
        """Whether replicas are asked for their tokenizer."""
        return self.wanted and self._config.tokenizer is None

    async def adopt(self, facts: PromptFacts) -> None:
        """Do as a replica does, whose files are all here."""
        self.digest = facts.digest
        if facts.trouble:
            await self.use(None, facts.trouble)
            return
        pages = PageKind(facts.page_tokens, facts.page_hash)
        if facts.simulated:
            await self.use(SimulatedTokenizer(), pages=pages)
        else:
            try:
                made = await asyncio.to_thread(ModelTokenizer, facts.files)
                await self.use(made, pages=pages)
            except TokenizerError as error:
                await self.use(None, str(error))

    async def use(
        self, tokenizer: AnyTokenizer | None, trouble: str = "", *, pages: PageKind | None = None
    ) -> None:
        """Use this tokenizer from now on; `trouble` says why there is none. Pages are as configured unless given.

        Raises `TokenizerError`.
        """
        if tokenizer is not None:
            await tokenizer.start()
        await self._replace(tokenizer)
        self._reported = pages
        self.untokenised.trust_again()
        self.untokenised.error = trouble
        if trouble:
            _log.warning("no tokenizer, prompts are matched by their text: %s", trouble)

    async def _replace(self, tokenizer: AnyTokenizer | None) -> None:
        before, self.tokenizer = self.tokenizer, tokenizer
        if before is not None:
            await before.close()

    async def of(
        self, endpoint: Endpoint, inference: Inference, *, cache_salt: str = ""
    ) -> Tokenised | None:
        """The request's tokens; None: its text has to do, and why is counted."""
        if not self.wanted or not endpoint.api.computes:
            return None
        try:
            return await self._of(endpoint, inference, cache_salt)
        except UntokenisedError as error:
            if self.untokenised.count(error.reason):
                detail = error.detail or self.untokenised.error
                _log.warning(
                    "a prompt is matched by its text: %s%s (logged once; evenkeel_router_untokenised_total counts)",
                    error.reason.value,
                    f" ({detail})" if detail else "",
                )
            return None

    async def _of(self, endpoint: Endpoint, inference: Inference, cache_salt: str) -> Tokenised:
        tokenizer, size_bytes = self.tokenizer, inference.prompt_bytes
        if not is_read(endpoint):
            raise UntokenisedError(Reason.EMBEDDINGS)
        if inference.adapter is not None:
            raise UntokenisedError(Reason.OPTIONS, "the request names an adapter")
        if tokenizer is None:
            raise UntokenisedError(Reason.NO_TOKENIZER)
        threaded_bytes = 0 if len(inference.body) <= INLINE_BYTES else size_bytes
        if (
            threaded_bytes > LONGEST_BYTES
            or len(inference.body) > LONGEST_BODY_BYTES
            or inference.values > MOST_VALUES
        ):
            raise UntokenisedError(Reason.TOO_LONG)
        if threaded_bytes and self.busy_bytes + threaded_bytes > WAITING_BYTES:
            raise UntokenisedError(Reason.BUSY)
        asked = await self._work(threaded_bytes, read, endpoint, inference.body)
        kind = _kind(asked)
        if self.untokenised.distrusts(kind):
            raise UntokenisedError(Reason.MISMATCH, f"requests of the kind {kind!r}")
        text = await tokenizer.text(asked) if isinstance(asked, Chat) else ""
        step = partial(_tokenised, pages=self.pages, cache_salt=cache_salt)
        return await self._work(threaded_bytes, step, tokenizer, asked, text)

    async def _work(
        self, threaded_bytes: int, step: Callable[[*_Given], _Result], *args: *_Given
    ) -> _Result:
        """Do one step: at once, or with `threaded_bytes` of the prompt in a thread."""
        if not threaded_bytes:
            return step(*args)
        self.busy_bytes += threaded_bytes
        loop = asyncio.get_running_loop()
        work = self._threads.submit(step, *args)

        def done(_: object) -> None:  # also after its client left
            with suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(self._give_back, threaded_bytes)

        work.add_done_callback(done)
        return await asyncio.wrap_future(work)

    def _give_back(self, size_bytes: int) -> None:
        self.busy_bytes -= size_bytes


def _kind(asked: Prompts | Chat) -> str:
    return asked.kind if isinstance(asked, Chat) else "prompt"


def _tokenised(
    tokenizer: AnyTokenizer, asked: Prompts | Chat, text: str, *, pages: PageKind, cache_salt: str
) -> Tokenised:
    """`text` is what the template made of a conversation."""
    prompts = _ids(tokenizer, asked, text)
    return Tokenised(
        tokens=sum(map(len, prompts)),
        first=Pages(_hashes(prompts[0], pages, cache_salt), pages.tokens, len(prompts[0])),
        kind=_kind(asked),
    )


def _ids(tokenizer: AnyTokenizer, asked: Prompts | Chat, text: str) -> list[list[int]]:
    try:
        if isinstance(asked, Chat):
            return [tokenizer.chat(text, asked.answer_begins)]
        return [tokenizer.prompt(one) if isinstance(one, str) else one for one in asked.inputs]
    except (TypeError, UnicodeEncodeError) as error:  # a lone surrogate, which a template may make
        raise UntokenisedError(Reason.TEMPLATE) from error


def _hashes(ids: list[int], pages: PageKind, cache_salt: str) -> list[int]:
    try:
        return _HASHES[pages.hash](ids, page_tokens=pages.tokens, cache_salt=cache_salt)
    except OverflowError as error:  # no token has such an id: the engine answers with an error
        raise UntokenisedError(Reason.TEMPLATE) from error


def _load(folder: Path) -> ModelTokenizer:
    """Read a model's folder. Raises `TokenizerError`, `OSError`."""
    found = {}
    for name in FILES:
        path = folder / name
        if not path.is_file():
            continue
        if path.stat().st_size > MAX_FACTS_BYTES:
            raise TokenizerError(f"{name} is longer than {MAX_FACTS_BYTES} bytes")
        found[name] = path.read_bytes()
    return ModelTokenizer(found)
