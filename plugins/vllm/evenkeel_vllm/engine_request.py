"""vLLM's request, as the shared part of the plug-ins reads requests (`evenkeel_plugin.request.EngineRequest`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

FINISHED: Final = {"type": "stop"}


class VllmRequest:
    """One request of vLLM's, from its arrival to its end. Equal only to itself."""

    __slots__ = ("prefix_len", "request")

    def __init__(self, request: Any) -> None:
        """`request`: `vllm.v1.request.Request`."""
        self.request = request
        self.prefix_len = 0
        """Tokens found in the cache at the request's admission."""

    @property
    def rid(self) -> str:
        return str(self.request.request_id)

    @property
    def routing_key(self) -> str | None:
        """The client key, which the router sends as `X-Session-ID`."""
        key: str | None = self.request.session_id
        return key

    @property
    def origin_input_ids(self) -> Sequence[int]:
        """A prompt of embeddings has no ids: its tokens count, and match nothing."""
        ids: Sequence[int] | None = self.request.prompt_token_ids
        return range(self.request.num_prompt_tokens) if ids is None else ids

    @property
    def output_ids(self) -> Sequence[int]:
        ids: Sequence[int] = self.request.output_token_ids
        return ids

    @property
    def sampling_params(self) -> VllmRequest:
        """This object: the only parameter that is read is `max_new_tokens`."""
        return self

    @property
    def max_new_tokens(self) -> int:
        return int(self.request.max_tokens)

    @property
    def extra_key(self) -> str | None:
        """Requests for different adapters share no prefix."""
        adapter = self.request.lora_request
        return None if adapter is None else str(adapter.lora_name)

    @property
    def cache_salt(self) -> str | None:
        salt: str | None = self.request.cache_salt
        return salt

    @property
    def is_running(self) -> bool:
        """Whether the request is in the batch."""
        return bool(self.request.status.name == "RUNNING")

    def finished(self) -> bool:
        return bool(self.request.is_finished())

    @property
    def finished_reason(self) -> Finished | None:
        """The reason why the request ended by itself; None while it runs, or if it was aborted."""
        aborted = self.request.status.name == "FINISHED_ABORTED"
        return None if aborted or not self.finished() else Finished()


class Finished:
    """The reason of a request that ended by itself."""

    def to_json(self) -> dict[str, str]:
        """The form that SGLang's reasons have."""
        return FINISHED
