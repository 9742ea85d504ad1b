"""A vLLM that does not fit is found before the first request, with what is needed to mend it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from evenkeel_vllm import seams

from tests.support import fake_vllm


def test_what_fits_has_no_misfit(plugin: ModuleType) -> None:
    assert seams.misfits() == []
    seams.check_modes(fake_vllm.config())


class Older:
    """In the place of vLLM's scheduler: one method less, and one with other parameters."""

    def schedule(self) -> None: ...
    def update_from_output(self, scheduler_output: Any, model_runner_output: Any) -> None: ...


def test_each_place_that_differs_is_named(
    plugin: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.modules["vllm.v1.core.sched.scheduler"], "Scheduler", Older)
    monkeypatch.delattr(sys.modules["vllm.v1.core.kv_cache_manager"], "KVCacheManager")
    monkeypatch.setattr(fake_vllm.RequestQueue, "__abstractmethods__", frozenset(seams.QUEUE_METHODS ^ {"__len__", "clear"}))  # fmt: skip
    monkeypatch.setattr(seams, "installed", lambda: "9.9")
    schedule, finish, blocks, queue, version = seams.misfits()
    assert schedule == f"{seams.SCHEDULER}.schedule takes (self), not (self, throttle_prefills)"
    assert finish.startswith(f"there is no {seams.SCHEDULER}.finish_requests (")
    assert blocks.startswith("there is no vllm.v1.core.kv_cache_manager.KVCacheManager")
    assert queue == f"{seams.QUEUE} differs by __len__, clear"
    assert version == "version 9.9 is not tested with this plug-in"


class Newer:
    """As in 0.33: the method that the plug-in calls takes one more thing, if it is given."""

    def get_computed_blocks(
        self, request: Any, max_cache_hit_length: int | None = None
    ) -> None: ...


def test_what_a_called_method_may_be_given_beyond_is_no_misfit(
    plugin: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocks = sys.modules["vllm.v1.core.kv_cache_manager"]
    monkeypatch.setattr(blocks, "KVCacheManager", Newer)
    assert seams.misfits() == []
    monkeypatch.setattr(Newer.get_computed_blocks, "__defaults__", None)
    (misfit,) = seams.misfits()
    assert misfit.endswith("takes (self, request, max_cache_hit_length), not (self, request)")


MODES: dict[str, Callable[[], SimpleNamespace]] = {
    "--data-parallel-size": lambda: fake_vllm.config(
        parallel_config=SimpleNamespace(data_parallel_size=2)
    ),
    "--scheduling-policy": lambda: fake_vllm.config(
        scheduler_config=SimpleNamespace(policy="priority")
    ),
    "--diffusion-config": lambda: fake_vllm.config(diffusion_config=SimpleNamespace()),
    "--kv-transfer-config": lambda: fake_vllm.config(kv_transfer_config=SimpleNamespace()),
}


@pytest.mark.parametrize("flag", MODES)
def test_a_mode_that_bypasses_the_policy_is_refused_by_its_flag(flag: str) -> None:
    assert MODES.keys() == {mode.flag for mode in seams.REFUSED}
    with pytest.raises(seams.SeamError, match=f"{flag} is set; remove it: ") as refused:
        seams.check_modes(MODES[flag]())
    assert f"Supported: {seams.SUPPORTED}" in str(refused.value)


def test_the_device_that_a_version_was_built_for_does_not_count(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(seams, "version", lambda name: "0.32.0+cpu")
    assert seams.installed() == "0.32.0"


def test_a_vllm_that_is_not_installed_has_an_unknown_version() -> None:
    assert seams.installed() == "of unknown version"
