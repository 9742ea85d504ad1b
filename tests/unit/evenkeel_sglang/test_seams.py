"""An SGLang that does not fit stops at the check, with what is needed to mend it."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest
from evenkeel_sglang import check, seams


class Fitting:
    """Stands where SGLang's classes do, with the parameters that the plug-in was written for."""

    def add_cli_args(parser) -> None: ...  # type: ignore[no-untyped-def]
    def from_cli_args(args) -> None: ...  # type: ignore[no-untyped-def]
    def init_schedule_policy(self) -> None: ...
    def get_new_batch_prefill(self, running_batch) -> None: ...  # type: ignore[no-untyped-def]
    def run_batch(self, batch, pp_proxy_tensors=None) -> None: ...  # type: ignore[no-untyped-def]
    def process_batch_result(self, batch, result) -> None: ...  # type: ignore[no-untyped-def]
    def calc_priority(self, waiting_queue, running_batch, processed_tokens) -> None: ...  # type: ignore[no-untyped-def]
    def generate_request(self, obj, request) -> None: ...  # type: ignore[no-untyped-def]
    def __getitem__(self, i) -> None: ...  # type: ignore[no-untyped-def]
    def add_one_req(self, req, has_chunked_req, truncation_align_size) -> None: ...  # type: ignore[no-untyped-def]
    def add_chunked_req(self, req) -> None: ...  # type: ignore[no-untyped-def]
    def budget_state(self) -> None: ...
    def __init__(
        self, page_size, tree_cache, token_to_kv_pool_allocator, running_batch, new_token_ratio
    ) -> None: ...  # type: ignore[no-untyped-def]
    def estimate_new_token_ratio_after_retract(reqs) -> None: ...  # type: ignore[no-untyped-def]
    def _pull_raw_reqs(self) -> None: ...
    def process_input_requests(self, recv_reqs) -> None: ...  # type: ignore[no-untyped-def]
    def collect_inflight_reqs(self) -> None: ...


class Older(Fitting):
    def calc_priority(self, waiting_queue, running_batch=None) -> None: ...  # type: ignore[no-untyped-def,override]


def match_kv_cache(req, tree_cache) -> None: ...  # type: ignore[no-untyped-def]


SCHEDULER = """
class Scheduler:
    def get_new_batch_prefill(self, running_batch):
        self.policy.calc_priority(self.waiting_queue, running_batch)
        for req in self.waiting_queue:
            if req.fits:
                adder.add_one_req(req)
"""


@pytest.fixture
def sglang(monkeypatch: pytest.MonkeyPatch) -> dict[str, ModuleType]:
    """Modules in the places of SGLang's."""
    names = (
        *("sglang", "sglang.srt", "sglang.srt.server_args", "sglang.srt.managers"),
        *("sglang.srt.managers.scheduler", "sglang.srt.managers.schedule_policy"),
        *("sglang.srt.managers.io_struct", "sglang.srt.managers.tokenizer_manager"),
        "sglang.srt.managers.scheduler_components",
        "sglang.srt.managers.scheduler_components.new_token_ratio_tracker",
        "sglang.srt.managers.scheduler_components.request_receiver",
        *("sglang.srt.mem_cache", "sglang.srt.mem_cache.common"),
    )
    modules = {name: ModuleType(name) for name in names}
    for name, module in modules.items():
        module.__path__ = []
        monkeypatch.setitem(sys.modules, name, module)
        parent, _, child = name.rpartition(".")
        if parent:
            setattr(modules[parent], child, module)
    modules["sglang.srt.server_args"].ServerArgs = Fitting  # type: ignore[attr-defined]
    modules["sglang.srt.managers.scheduler"].Scheduler = Fitting  # type: ignore[attr-defined]
    modules["sglang.srt.managers.io_struct"].GenerateReqInput = Fitting  # type: ignore[attr-defined]
    modules["sglang.srt.managers.tokenizer_manager"].TokenizerManager = Fitting  # type: ignore[attr-defined]
    components = "sglang.srt.managers.scheduler_components"
    modules[f"{components}.new_token_ratio_tracker"].NewTokenRatioTracker = Fitting  # type: ignore[attr-defined]
    modules[f"{components}.request_receiver"].SchedulerRequestReceiver = Fitting  # type: ignore[attr-defined]
    policy = modules["sglang.srt.managers.schedule_policy"]
    policy.SchedulePolicy = policy.PrefillAdder = Fitting  # type: ignore[attr-defined]
    modules["sglang.srt.mem_cache.common"].match_kv_cache = match_kv_cache  # type: ignore[attr-defined]
    monkeypatch.setattr(seams, "source_of", lambda module: SCHEDULER)
    monkeypatch.setattr(seams, "installed", lambda: seams.TESTED[-1])
    return modules


def test_what_fits_passes(sglang: dict[str, ModuleType]) -> None:
    seams.check()
    assert {seams.misfits(seam) for seam in seams.SEAMS} == {""}
    assert seams.matcher() is sglang["sglang.srt.mem_cache.common"].match_kv_cache


def test_a_changed_signature_names_the_seam_and_what_is_supported(
    sglang: dict[str, ModuleType],
) -> None:
    policy = sglang["sglang.srt.managers.schedule_policy"]
    policy.SchedulePolicy = Older  # type: ignore[attr-defined]
    with pytest.raises(SystemExit, match=r"calc_priority takes \(self, waiting_queue") as refused:
        seams.check()
    assert seams.SUPPORTED in str(refused.value)
    assert "Refusing to start" in str(refused.value)


def test_later_parameters_may_change_where_the_seam_allows_it(
    sglang: dict[str, ModuleType],
) -> None:
    class Adder(Fitting):
        def __init__(self, page_size, tree_cache, running_batch) -> None: ...  # type: ignore[no-untyped-def]

    sglang["sglang.srt.managers.schedule_policy"].PrefillAdder = Adder  # type: ignore[attr-defined]
    with pytest.raises(SystemExit, match=r"__init__ takes \(self, page_size, tree_cache, running"):
        seams.check()


def test_a_function_that_is_gone_is_named(sglang: dict[str, ModuleType]) -> None:
    del sglang["sglang.srt.managers.scheduler"].Scheduler
    with pytest.raises(
        SystemExit, match=r"there is no sglang\.srt\.managers\.scheduler\.Scheduler"
    ):
        seams.check()


@pytest.mark.parametrize("version", ["0.5.15", "9.9.9", "of unknown version"])
def test_a_version_without_passing_tests_is_a_misfit(
    sglang: dict[str, ModuleType], monkeypatch: pytest.MonkeyPatch, version: str
) -> None:
    monkeypatch.setattr(seams, "installed", lambda: version)
    with pytest.raises(SystemExit, match=f"version {version} is not tested"):
        seams.check()


MOVED = SCHEDULER.replace(
    "        for req", "        self.fill(adder)\n\n    def fill(self, adder):\n        for req"
)
SORTED = SCHEDULER.replace("in self.waiting_queue:", "in sorted(self.waiting_queue):")
OTHER_WALK = SCHEDULER.replace("add_one_req", "look_at")


@pytest.mark.parametrize("source", [MOVED, SORTED, OTHER_WALK], ids=["moved", "sorted", "other"])
def test_a_loop_that_is_not_beside_calc_priority_is_a_misfit(
    sglang: dict[str, ModuleType], monkeypatch: pytest.MonkeyPatch, source: str
) -> None:
    assert seams.loop_misfit(SCHEDULER) == ""
    monkeypatch.setattr(seams, "source_of", lambda module: source)
    with pytest.raises(SystemExit, match="get_new_batch_prefill of .* its own loop"):
        seams.check()


def test_a_scheduler_that_does_not_ask_for_an_order_is_a_misfit() -> None:
    assert "no function of" in seams.loop_misfit("")


def test_a_cache_that_cannot_be_asked_is_a_misfit(sglang: dict[str, ModuleType]) -> None:
    del sglang["sglang.srt.mem_cache.common"].match_kv_cache
    with pytest.raises(SystemExit, match="match_prefix_for_req nor"):
        seams.check()


def test_a_misfit_that_fairness_does_not_need_only_gives_the_reason(
    sglang: dict[str, ModuleType],
) -> None:
    seams.check()
    for seam in seams.OPTIONAL:
        assert seams.misfits(seam).startswith(f"there is no {seam.path}")


def test_no_handler_of_exceptions_swallows_the_refusal() -> None:
    assert not issubclass(seams.SeamError, Exception)


@pytest.mark.parametrize(
    ("version", "fits", "code"), [("0.5.23", True, 0), ("9.9.9", True, 2), ("0.5.23", False, 1)]
)
def test_the_check_lists_each_place_and_says_whether_the_version_is_tested(
    sglang: dict[str, ModuleType],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    version: str,
    fits: bool,
    code: int,
) -> None:
    monkeypatch.setattr(seams, "installed", lambda: version)
    monkeypatch.setattr(seams, "OPTIONAL", [seams.INIT_POLICY])
    if not fits:
        policy = sglang["sglang.srt.managers.schedule_policy"]
        policy.SchedulePolicy = Older  # type: ignore[attr-defined]
    assert check.main() == code
    *places, last = capsys.readouterr().out.splitlines()
    assert len(places) == len(seams.SEAMS) + 3
    assert sum(place.startswith("no ") for place in places) == (not fits)
    assert last.startswith(f"SGLang {version}: {len(places) - (not fits)} of {len(places)} places")
    assert ("is tested" in last) == (version in seams.TESTED)
