"""Each hook alone: what it passes on to SGLang, what it notes, and that it does nothing without a policy."""

from __future__ import annotations

import argparse
import os
import sys
from types import ModuleType, SimpleNamespace
from typing import Any, ClassVar

import pytest
from evenkeel_contract.enginesettings import EngineSettings
from evenkeel_contract.names import CLIENT_KEY_HEADER
from evenkeel_plugin.tokenizer import tokenizer_files
from evenkeel_sglang import hooks, modes, plugin, seams
from evenkeel_sglang.engine import RankClock
from evenkeel_vllm import metrics as vllm_metrics

ADAPTER, SALT = hooks.ADAPTER_HEADER, hooks.CACHE_SALT_HEADER


class Recorded:
    """A scheduling that notes what it is told."""

    def __init__(self, **answers: Any) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.chunk_waits = None
        self.busy = False
        self.reservations = SimpleNamespace(lower=self._lower)
        self.__dict__.update(answers)

    def _lower(self, requests: Any) -> list[Any]:
        self.calls.append(("lower", *requests))
        return []

    def __getattr__(self, name: str) -> Any:
        return lambda *given, **named: self.calls.append((name, *given, *named.values()))


def ranks(monkeypatch: pytest.MonkeyPatch, tp: int, pp: int) -> None:
    context = ModuleType("sglang.srt.runtime_context")
    context.get_parallel = lambda: SimpleNamespace(tp_rank=tp, pp_rank=pp)  # type: ignore[attr-defined]
    for name in ("sglang", "sglang.srt"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, "sglang.srt.runtime_context", context)


# Flags and requests.


def test_the_flag_takes_the_names_of_both() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--other")
    parser.add_argument("--schedule-policy", choices=["fcfs", "lpm"])
    hooks.add_flags(None, parser)
    name = next(iter(hooks.FLAGS))
    for chosen in ("fcfs", "lpm", name):
        assert parser.parse_args(["--schedule-policy", chosen]).schedule_policy == chosen
    free = argparse.ArgumentParser()
    free.add_argument("--schedule-policy")
    hooks.add_flags(None, free)
    assert free.parse_args(["--schedule-policy", name]).schedule_policy == name
    with pytest.raises(seams.SeamError):
        hooks.add_flags(None, argparse.ArgumentParser())


def test_modes_are_checked_for_the_policies_of_evenkeel_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    checked: list[Any] = []
    monkeypatch.setattr(modes, "check", checked.append)
    lpm = SimpleNamespace(schedule_policy="lpm")
    ours = SimpleNamespace(schedule_policy=next(iter(hooks.FLAGS)))
    hooks.read_flags(lpm)
    hooks.read_flags(ours)
    assert checked == [ours]


def posted(obj: Any, **headers: str) -> Any:
    hooks.generate_request(None, obj, SimpleNamespace(headers=headers))
    return obj


def test_what_headers_name_goes_into_the_request() -> None:
    obj = posted(
        SimpleNamespace(routing_key=None), **{CLIENT_KEY_HEADER: "k", ADAPTER: "a", SALT: "s"}
    )
    assert vars(obj) == {"routing_key": "k", "lora_path": "a", "cache_salt": "s"}
    obj = posted(
        SimpleNamespace(routing_key="body", lora_path="b", cache_salt="c"),
        **{CLIENT_KEY_HEADER: "k"},
    )
    assert vars(obj) == {"routing_key": "body", "lora_path": "b", "cache_salt": "c"}
    obj = SimpleNamespace(routing_key=None)
    hooks.generate_request(None, obj)  # no HTTP request
    assert vars(obj) == {"routing_key": None}
    item = SimpleNamespace(routing_key=None)
    hooks.batch_item(item, SimpleNamespace(routing_key="of all"), 1)
    assert item.routing_key == "of all"


@pytest.mark.parametrize(
    ("given", "want"),
    [
        (None, {"custom_params": {hooks.CLIENT_PARAMETER: "k"}}),
        ({"x": 1}, {"x": 1, "custom_params": {hooks.CLIENT_PARAMETER: "k"}}),
        ([{"x": 1}, {}], [{"x": 1, "custom_params": {hooks.CLIENT_PARAMETER: "k"}}, {"custom_params": {hooks.CLIENT_PARAMETER: "k"}}]),
    ],
)  # fmt: skip
def test_the_key_of_a_pooled_input_travels_in_its_parameters(given: Any, want: Any) -> None:
    obj = SimpleNamespace(routing_key=None, sampling_params=given, is_cross_encoder_request=False)
    assert posted(obj, **{CLIENT_KEY_HEADER: "k"}).sampling_params == want


# The scheduler.


def scheduler(policy: str, **changes: Any) -> Any:
    args = SimpleNamespace(tp_size=1, pp_size=1, device="cpu", host="h")
    given = {"schedule_policy": policy, "server_args": args, "tree_cache": None}
    return SimpleNamespace(policy=SimpleNamespace(), **(given | changes))


@pytest.mark.parametrize("rank", [(0, 0), (1, 0), (0, 1)])
def test_a_policy_of_evenkeel_takes_charge_and_one_rank_reports(
    monkeypatch: pytest.MonkeyPatch, rank: tuple[int, int]
) -> None:
    ranks(monkeypatch, *rank)
    monkeypatch.setattr(hooks, "_scheduling", None)
    monkeypatch.setattr(hooks, "_rank_clock", None)
    monkeypatch.setattr(seams, "matcher", lambda: None)
    announced: list[Any] = []
    checked: list[Any] = []
    monkeypatch.setattr(hooks, "_announce", lambda *given, **named: announced.append(given[0]))
    monkeypatch.setattr(modes, "check", checked.append)
    flag, name = next(iter(hooks.FLAGS.items()))
    seen = []
    made = scheduler(flag)
    hooks.init_policy(lambda one: seen.append(one.schedule_policy), made)
    assert (seen, made.schedule_policy) == (["fcfs"], flag)
    assert made.policy.evenkeel_scheduler is made
    assert checked == [made.server_args]
    assert announced == ([name] if rank == (0, 0) else [])
    assert hooks._scheduling is not None
    assert hooks._scheduling.policy.name == name


def test_another_policy_stays_sglangs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hooks, "_scheduling", None)
    seen = []
    made = scheduler("lpm")
    hooks.init_policy(lambda one: seen.append(one.schedule_policy), made)
    assert seen == ["lpm"]
    assert hooks._scheduling is None
    with pytest.raises(ZeroDivisionError):  # the flag comes back after a failure, too
        hooks.init_policy(lambda one: 1 / 0, made := scheduler(next(iter(hooks.FLAGS))))
    assert made.schedule_policy in hooks.FLAGS


@pytest.mark.parametrize(
    ("tp", "pp", "isolation", "clock", "divides"),
    [(1, 1, "1.5", False, True), (2, 1, "1.5", True, False), (1, 2, "", True, False)],
)
def test_several_ranks_have_one_clock_and_divide_no_time(
    monkeypatch: pytest.MonkeyPatch, tp: int, pp: int, isolation: str, clock: bool, divides: bool
) -> None:
    monkeypatch.setattr(hooks, "_rank_clock", None)
    monkeypatch.setattr(seams, "matcher", lambda: None)
    environment = {"EVENKEEL_ISOLATION": isolation} if isolation else {}
    settings = EngineSettings.from_environment(environment)
    args = SimpleNamespace(tp_size=tp, pp_size=pp)
    made = hooks.make_scheduling("DLPM", settings, scheduler("dlpm", server_args=args))
    assert isinstance(hooks._rank_clock, RankClock) == clock
    assert (made._shares.time is not None) == divides


def test_each_hook_is_sglangs_own_function_without_a_policy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(hooks, "_scheduling", None)
    monkeypatch.setattr(hooks, "_rank_clock", None)
    seen: list[Any] = []

    def original(*given: Any, **named: Any) -> str:
        seen.append((*given, *named.values()))
        return "of sglang"

    policy = SimpleNamespace(evenkeel_scheduler=None)
    hooks.calc_priority(original, policy, ["r"], 1)
    assert hooks.run_batch(original, "s", "b", x=2) == "of sglang"
    assert hooks.add_request(original, "adder", "req", 3) == "of sglang"
    assert hooks.reserve_one(original, "adder", "req") == "of sglang"
    hooks.reserve_running(original, "adder", 16, "tree", "pool", None, "more")
    assert hooks.reserve_all(original, ["r"]) == "of sglang"
    inquirer = SimpleNamespace(get_waiting_queue=lambda: ["r"])
    assert hooks.pending_tokens(original, inquirer, 4) == "of sglang"
    paused = SimpleNamespace(_engine_paused=True)
    assert hooks.process_input(paused, ["x"]) == ((paused, ["x"]), {})
    batch = SimpleNamespace(reqs=[], forward_mode=SimpleNamespace(is_extend=lambda: True))
    hooks.process_result(original, "s", batch, "result")
    hooks.received(["x"], None)
    assert seen == [
        (policy, ["r"], 1), ("s", "b", 2), ("adder", "req", 3), ("adder", "req"),
        ("adder", 16, "tree", "pool", None, "more"), (["r"],), (inquirer, 4), ("s", batch, "result"),
    ]  # fmt: skip


def batch_of(*requests: str, extends: bool = True) -> Any:
    mode = SimpleNamespace(is_extend=lambda: extends)
    lengths = [10 * n for n, _ in enumerate(requests, start=1)]
    return SimpleNamespace(reqs=list(requests), forward_mode=mode, extend_lens=lengths)


@pytest.mark.parametrize("extends", [True, False])
def test_a_forward_pass_is_measured_and_charged_to_what_was_in_the_batch(
    monkeypatch: pytest.MonkeyPatch, extends: bool
) -> None:
    noted = Recorded()
    monkeypatch.setattr(hooks, "_scheduling", noted)
    result, batch = SimpleNamespace(), batch_of("a", "b", extends=extends)
    assert hooks.run_batch(lambda s, b: result, scheduler("dlpm"), batch) is result
    batch.extend_lens.clear()  # as SGLang does before the result is processed
    computed = {"a": 10, "b": 20} if extends else {}
    assert result.evenkeel_launch.computed == computed
    monkeypatch.setattr(
        hooks._step_clock, "ended", lambda one: 2.5 if one is result.evenkeel_launch else -1
    )
    hooks.process_result(lambda s, b, r: b.reqs.clear(), "s", batch, result)
    hooks.process_result(lambda s, b, r: None, "s", batch, SimpleNamespace())
    assert noted.calls == [
        ("processed", ["a", "b"], extends, 2.5, computed),
        ("processed", [], extends, 0.0, {}),
    ]


@pytest.mark.parametrize("admitted", [True, False])
def test_the_engine_is_asked_with_expected_output_and_its_answer_noted(
    monkeypatch: pytest.MonkeyPatch, admitted: bool
) -> None:
    noted = Recorded()
    monkeypatch.setattr(hooks, "_scheduling", noted)
    one, other = SimpleNamespace(name="one"), SimpleNamespace(name="other")
    adder = SimpleNamespace(can_run_list=[one, other])

    state = SimpleNamespace(name="OTHER")

    def original(to: Any, req: Any) -> Any:
        to.can_run_list.append(req if admitted else other)
        return state

    asked = SimpleNamespace(name="asked")
    assert hooks.add_request(original, adder, asked) is state
    assert noted.calls == [("lower", asked), ("tried", asked, admitted)]


def test_a_request_that_a_waiting_chunk_leaves_no_room_for_is_not_offered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    noted = Recorded(chunk_waits="chunk")
    monkeypatch.setattr(hooks, "_scheduling", noted)
    refusals = iter(["no", None])
    monkeypatch.setattr(hooks, "refusal_beside", lambda adder, req, chunk: next(refusals))
    adder = SimpleNamespace(can_run_list=[], budget_state=lambda: "budget")
    state = SimpleNamespace(name="NO_TOKEN")
    monkeypatch.setattr(hooks, "missing_tokens", lambda adder, req: 7)
    assert hooks.add_request(lambda *_: state, adder, "r") == "budget"
    assert hooks.add_request(lambda *_: state, adder, "r") is state
    assert noted.calls == [
        ("lower", "r", "chunk"),
        ("postponed", "r", "no"),
        ("lower", "r", "chunk"),
        ("lower", "r"),
        ("tried", "r", False),
        ("lower", "r"),
        ("lacks", "r", 7),
    ]


def test_what_runs_and_what_was_retracted_counts_with_its_expected_output(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    noted = Recorded(giving=list)
    monkeypatch.setattr(hooks, "_scheduling", noted)
    batch = SimpleNamespace(reqs=["a", "b"])
    hooks.reserve_running(lambda *_: None, "adder", 16, "tree", "pool", batch)
    hooks.reserve_running(lambda *_: None, "adder", 16, "tree", "pool", None)
    hooks.reserve_all(lambda reqs: 0.5, ["c"])
    hooks.reserve_one(lambda adder, req: None, "adder", "d")
    assert noted.calls == [("lower", "a", "b"), ("lower",), ("lower", "c"), ("lower", "d")]


def test_a_pass_is_opened_instead_of_sorting(monkeypatch: pytest.MonkeyPatch) -> None:
    noted = Recorded(begin_pass=lambda queue, batch, chunk, walker: [*queue, *batch, chunk])
    monkeypatch.setattr(hooks, "_scheduling", noted)
    own = SimpleNamespace(waiting_queue=[], chunked_req="chunk")
    policy, batch = SimpleNamespace(evenkeel_scheduler=own), SimpleNamespace(reqs=["runs"])
    hooks.calc_priority(None, policy, ["r"], batch)  # type: ignore[arg-type]
    assert own.waiting_queue == ["r", "runs", "chunk"]


def test_pending_tokens_have_the_rest_of_a_prompt_in_chunks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(hooks, "_scheduling", Recorded(waiting_tokens=lambda queue: 100))
    chunk = SimpleNamespace(origin_input_ids=[1] * 50, output_ids=[1, 2], prefix_indices=[0] * 20)
    monkeypatch.setattr(hooks, "context_tokens", lambda one: 52)
    monkeypatch.setattr(hooks, "prefix_tokens", lambda one: 20)
    asked = SimpleNamespace(get_waiting_queue=lambda: ["r"], get_chunked_req=lambda: chunk)
    assert hooks.pending_tokens(lambda *_: -1, asked, 5) == 100 + 52 - 20 - 5
    asked.get_chunked_req = lambda: None
    assert hooks.pending_tokens(lambda *_: -1, asked) == 100


@pytest.mark.parametrize(
    ("first", "result", "busy", "sent"),
    [
        (True, ["r"], False, True),
        (True, [], True, True),
        (True, [], False, False),
        (True, None, True, False),
        (False, ["r"], True, False),
    ],
)
def test_the_first_rank_sends_its_time_while_there_is_work(
    monkeypatch: pytest.MonkeyPatch, first: bool, result: Any, busy: bool, sent: bool
) -> None:
    ranks(monkeypatch, 0 if first else 1, 0)
    monkeypatch.setattr(hooks, "_scheduling", Recorded(busy=busy))
    monkeypatch.setattr(hooks, "_rank_clock", RankClock(lambda: 7.0))
    before = None if result is None else list(result)
    hooks.received(result, None)
    assert (result != before) == sent
    if sent:
        (_, read), _ = hooks.process_input(SimpleNamespace(_engine_paused=False), result)
        assert read == before


def test_published_blocks_are_kept_for_routers(monkeypatch: pytest.MonkeyPatch) -> None:
    kept: list[Any] = []
    monkeypatch.setattr(hooks, "pages", SimpleNamespace(published=lambda *one: kept.append(one)))
    hooks.kv_published(None, None, SimpleNamespace(ts=1.5, events=["e"]))
    assert kept == [(1.5, ["e"])]


# Registration.


class Registry:
    registered: ClassVar[list[tuple[str, str, str]]] = []

    @classmethod
    def register(cls, path: str, hook: Any, kind: str) -> None:
        cls.registered.append((path.rpartition(".")[2], hook.__name__, kind))


ALWAYS = [
    ("add_cli_args", "add_flags", "after"),
    ("from_cli_args", "read_flags", "after"),
    ("__getitem__", "batch_item", "after"),
    ("generate_request", "generate_request", "before"),
    ("init_schedule_policy", "init_policy", "around"),
    ("get_new_batch_prefill", "new_prefill", "around"),
    ("run_batch", "run_batch", "around"),
    ("process_batch_result", "process_result", "around"),
    ("calc_priority", "calc_priority", "around"),
    ("add_one_req", "add_request", "around"),
    ("add_chunked_req", "reserve_one", "around"),
    ("__init__", "reserve_running", "around"),
    ("estimate_new_token_ratio_after_retract", "reserve_all", "around"),
    ("_pull_raw_reqs", "received", "after"),
    ("process_input_requests", "process_input", "before"),
]
OPTIONAL = [
    ("_get_num_pending_tokens", "pending_tokens", "around"),
    ("check_decode_mem", "decode_memory", "around"),
    ("_get_decode_retraction_order", "retraction_order", "around"),
    ("publish", "kv_published", "after"),
]


@pytest.mark.parametrize("misfit", ["", "it moved"])
def test_every_hook_is_registered_where_it_belongs(
    monkeypatch: pytest.MonkeyPatch, misfit: str
) -> None:
    registry = ModuleType("sglang.srt.plugins.hook_registry")
    registry.HookRegistry = Registry  # type: ignore[attr-defined]
    registry.HookType = SimpleNamespace(AFTER="after", BEFORE="before", AROUND="around")  # type: ignore[attr-defined]
    for name in ("sglang", "sglang.srt", "sglang.srt.plugins"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, registry.__name__, registry)
    monkeypatch.setattr(seams, "check", lambda: None)
    monkeypatch.setattr(seams, "misfits", lambda *_: misfit)
    monkeypatch.setattr(hooks, "pages", SimpleNamespace(trouble=None))
    monkeypatch.setattr(Registry, "registered", [])
    plugin.register()
    found = Registry.registered
    assert found[:15] == ALWAYS
    assert found[15:] == ([] if misfit else OPTIONAL)
    assert hooks.pages.trouble == misfit


@pytest.mark.parametrize(
    ("mismatch", "port", "stops"),
    [("Refuse", "5559", True), ("Gate", "", True), ("Gate", "5559", False)],
)
def test_a_misfit_stops_the_engine_unless_a_router_can_order_its_queue(
    monkeypatch: pytest.MonkeyPatch, mismatch: str, port: str, stops: bool
) -> None:
    def check() -> None:
        raise seams.SeamError("it moved")

    started: list[str] = []
    monkeypatch.setattr(seams, "check", check)
    monkeypatch.setattr(plugin.stock, "start", lambda reason, settings: started.append(reason))
    monkeypatch.setenv("EVENKEEL_ON_MISMATCH", mismatch)
    monkeypatch.setenv("EVENKEEL_REPORTS_PORT", port)
    if stops:
        with pytest.raises(seams.SeamError):
            plugin.register()
        assert started == []
    else:
        plugin.register()
        assert started == [seams.SeamError("it moved").reason]


def test_the_matcher_is_called_in_the_order_that_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[Any] = []
    new, old = (path.rpartition(".")[2] for path in seams.MATCHERS)

    def resolve(functions: dict[str, Any]) -> None:
        def resolve_name(path: str) -> Any:
            try:
                return functions[path.rpartition(".")[2]]
            except KeyError:
                raise ImportError(path) from None

        monkeypatch.setattr(seams.pkgutil, "resolve_name", resolve_name)

    def request_first(req: Any, tree_cache: Any) -> None:
        called.append((req, tree_cache, None))

    def cache_first(tree_cache: Any, req: Any, include_req: bool = False) -> None:
        called.append((req, tree_cache, include_req))

    def other(queue: Any, req: Any) -> None: ...

    resolve({new: request_first})
    seams.matcher()("r", "t")
    resolve({old: cache_first})
    seams.matcher()("r", "t")
    assert called == [("r", "t", None), ("r", "t", True)]
    for functions in ({old: other}, {}):
        resolve(functions)
        with pytest.raises(seams.SeamError):
            seams.matcher()


# What both plug-ins share.


def test_files_of_a_tokenizer_come_from_a_folder_or_from_the_cache(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    (tmp_path / "tokenizer.json").write_text("{}")
    (tmp_path / "tokenizer_config.json").mkdir()
    assert tokenizer_files(str(tmp_path), None) == {"tokenizer.json": b"{}"}
    asked: list[Any] = []
    hub = ModuleType("huggingface_hub")

    def cached(source: str, name: str, *, revision: str | None) -> Any:
        asked.append((source, revision))
        return str(tmp_path / name) if name == "tokenizer.json" else object()

    hub.try_to_load_from_cache = cached  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "huggingface_hub", hub)
    assert tokenizer_files("org/model", "v1") == {"tokenizer.json": b"{}"}
    assert set(asked) == {("org/model", "v1")}


def test_the_first_process_of_vllm_makes_the_folder_of_metrics(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    registered: list[Any] = []
    monkeypatch.delenv(vllm_metrics.FOLDER_VARIABLE, raising=False)
    monkeypatch.setattr(vllm_metrics, "_folder", None)
    monkeypatch.setattr(vllm_metrics, "MultiProcessCollector", lambda registry, path: path)
    monkeypatch.setattr(vllm_metrics, "REGISTRY", SimpleNamespace(register=registered.append))
    vllm_metrics.register()
    vllm_metrics.register()
    folder = os.environ[vllm_metrics.FOLDER_VARIABLE]
    assert registered == [folder]
    assert os.path.isdir(folder)
    assert vllm_metrics._folder is not None
    vllm_metrics._folder.cleanup()
    monkeypatch.setattr(vllm_metrics, "_folder", None)
    monkeypatch.setattr(vllm_metrics.multiprocessing, "parent_process", object)
    vllm_metrics.register()
    assert registered == [folder]
    monkeypatch.delenv(vllm_metrics.FOLDER_VARIABLE)
