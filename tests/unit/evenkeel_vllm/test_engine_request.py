"""vLLM's request, as the shared part of the plug-ins reads it."""

from __future__ import annotations

from types import SimpleNamespace

from evenkeel_plugin.request import cache_namespace, context_tokens, was_aborted
from evenkeel_vllm.engine_request import VllmRequest

from tests.support.fake_vllm import Request, RequestStatus


def test_a_prompt_of_embeddings_counts_by_its_length() -> None:
    one = VllmRequest(Request("r", None, None, num_prompt_tokens=5, output_token_ids=[1, 2]))
    assert context_tokens(one) == 7


def test_requests_for_other_adapters_or_with_another_salt_share_no_prefix() -> None:
    adapter = SimpleNamespace(lora_name="x")
    made = [
        Request("plain", None, [1]),
        Request("adapter", None, [1], lora_request=adapter),
        Request("salt", None, [1], cache_salt="s"),
    ]
    assert len({cache_namespace(VllmRequest(one)) for one in made}) == 3


def test_only_an_end_that_is_no_abort_is_a_finish() -> None:
    want = {
        RequestStatus.RUNNING: True,
        RequestStatus.FINISHED_ABORTED: True,
        RequestStatus.FINISHED_STOPPED: False,
        RequestStatus.FINISHED_LENGTH_CAPPED: False,
    }
    found = {one: was_aborted(VllmRequest(Request("r", None, [1], status=one))) for one in want}
    assert found == want
