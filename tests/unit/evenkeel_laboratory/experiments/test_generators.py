from pathlib import Path
from random import Random

import pytest
from evenkeel_laboratory.experiments.generators import (
    Arrivals,
    Chat,
    DocumentQa,
    Judge,
    ProgramSpec,
    Single,
    TreeOfThoughts,
)
from evenkeel_laboratory.experiments.workload_file import (
    WorkloadError,
    make_workload,
    read_spec,
    workload_files,
)

WORKLOADS = Path(__file__).parents[4] / "bench" / "workloads"
MINIMAL = """
about: a test
profile: a10g-llama2-7b
duration_s: 50
clients:
  - name: bad
    misbehaves: true
    weight: 2
    arrivals: {rate_per_s: 2}
    program: {kind: chat, system_tokens: 50, turns: 2, turn_tokens: 10, output_tokens: 5}
  - name: good
    count: 2
    arrivals: {rate_per_s: 0.5, pattern: uniform}
    program: {kind: single, input_tokens: 30, output_tokens: 5, prefix_tokens: 20}
"""


@pytest.mark.parametrize(("branches", "calls"), [(2, 30), (3, 120), (4, 340)])
def test_a_tree_of_thoughts_has_the_paper_s_number_of_calls(branches: int, calls: int) -> None:
    assert len(TreeOfThoughts(branches=branches).calls("p", "c", Random(0))) == calls


def test_at_temperature_0_a_tree_is_a_single_path_in_the_cache() -> None:
    calls = TreeOfThoughts(branches=2).calls("p", "c", Random(0))
    assert len({(call.prompt, call.output) for call in calls}) == 4


def test_the_context_inherited_by_a_thought_is_near_the_paper_s_546_tokens() -> None:
    calls = TreeOfThoughts(branches=2, spread=0).calls("p", "c", Random(0))
    inherited = []  # by level: what the parent left, or for the first level the question
    for first, turn in ((0, 0), (2, 43), (6, 33), (14, 25)):
        inherited.append(calls[first].input_tokens - turn)
    assert sum(inherited) / 4 == pytest.approx(546, rel=0.03)


@pytest.mark.parametrize(
    "spec",
    [
        TreeOfThoughts(branches=2, diverse=True),
        Chat(system_tokens=5, turns=3, turn_tokens=9, output_tokens=7),
        Judge(dimensions=3),
        DocumentQa(),
        Single(input_tokens=9, output_tokens=3, spread=0.5),
    ],
)
def test_every_call_s_prompt_begins_with_what_its_parent_left(spec: ProgramSpec) -> None:
    calls = spec.calls("p", "c", Random(1))
    for place, call in enumerate(calls):
        assert call.input_tokens == sum(segment.tokens for segment in call.prompt)
        for parent in (calls[number] for number in call.after):
            assert calls.index(parent) < place
            if parent.output_key is not None:
                left = (*parent.prompt, parent.output)
                assert call.prompt[: len(left)] == left
    assert calls == spec.calls("p", "c", Random(1))
    outputs = [(c.prompt, c.output_key) for c in calls if c.output_key is not None]
    assert len(set(outputs)) == len(outputs)


def test_clients_do_not_share_what_is_their_own() -> None:
    spec = Single(input_tokens=30, output_tokens=5, prefix_tokens=20)
    mine, yours = (spec.calls(f"p-{name}", name, Random(0))[0].prompt for name in "ab")
    assert mine[0] != yours[0]


def test_a_given_phase_is_the_same_for_every_seed() -> None:
    for seed in (0, 1):
        times = Arrivals(rate_per_s=2, pattern="uniform", phase=0.5).times(2, Random(seed))
        assert list(times) == [0.75, 1.25, 1.75]


@pytest.mark.parametrize("pattern", ["gamma", "uniform"])
def test_arrivals_keep_their_rate(pattern: str) -> None:
    times = list(Arrivals(rate_per_s=3, pattern=pattern).times(1000, Random(0)))
    assert len(times) == pytest.approx(3000, rel=0.05)
    assert times == sorted(times)


def test_a_ramp_grows_and_pauses_are_kept() -> None:
    ramp = list(Arrivals(rate_per_s=4, pattern="ramp").times(100, Random(0)))
    assert len([t for t in ramp if t >= 50]) > 2 * len([t for t in ramp if t < 50])
    paused = Arrivals(rate_per_s=5, on_off_s=10, start_s=20, stop_s=60).times(100, Random(0))
    assert {int(t / 10) for t in paused} == {2, 4}


def test_a_workload_file_makes_the_same_programs_from_the_same_seed(tmp_path: Path) -> None:
    path = tmp_path / "w.yaml"
    path.write_text(MINIMAL)
    spec = read_spec(path)
    assert spec.misbehaving == {"bad"}
    one, other, third = (make_workload("w", spec, seed=s, traces=tmp_path) for s in (1, 1, 2))
    programs = list(one.programs)
    assert programs == list(other.programs)
    assert programs != list(third.programs)
    assert [p.arrival_s for p in programs] == sorted(p.arrival_s for p in programs)
    assert {p.client for p in programs} == {"bad", "good-1", "good-2"}
    assert one.client("bad").weight == 2
    assert len({p.id for p in programs}) == len(programs)


@pytest.mark.parametrize(
    ("change", "want"),
    [
        (("rate_per_s: 2", "rate_per_s: 0"), "rate_per_s is 0.0, must be above 0"),
        (("pattern: uniform", "pattern: often"), "pattern is 'often'"),
        (("kind: chat", "kind: poem"), "Invalid value 'poem'"),
        (("duration_s", "length_s"), "unknown field `length_s`"),
        (("duration_s: 50", "replicas: 0"), "Expected `int` >= 1 - at `$.replicas`"),
        (("duration_s: 50", "duration_s: .inf"), "at `$.duration_s`"),
        (("turns: 2", "turns: 0"), "Expected `int` >= 1 - at `$.clients[0].program.turns`"),
        (("turns: 2", "turns: 2, spread: 1"), "at `$.clients[0].program.spread`"),
        (("prefix_tokens: 20", "prefix_tokens: 30"), "prefix_tokens is 30, must be below"),
        (("prefix_tokens: 20", "max_output_tokens: 4"), "max_output_tokens is 4, must be at least"),
        (("count: 2", "count: 0"), "at `$.clients[1].count`"),
        (("misbehaves: true", "misbehaves: perhaps"), "Expected `bool`, got `str`"),
        (
            ("duration_s: 50", "trace: {file: x, shares: {a: 1}}"),
            "exactly one of clients, trace and servegen",
        ),
        (("clients:", "clients: [}"), "not YAML"),
    ],
)
def test_a_faulty_workload_file_is_named_with_its_field(
    tmp_path: Path, change: tuple[str, str], want: str
) -> None:
    path = tmp_path / "w.yaml"
    path.write_text(MINIMAL.replace(*change))
    with pytest.raises(WorkloadError) as caught:
        read_spec(path)
    assert want in str(caught.value)
    assert "w.yaml" in str(caught.value)


def test_every_workload_of_the_benchmarks_can_be_read() -> None:
    files = workload_files(WORKLOADS)
    assert {"tot-s1", "tot-s2", "mooncake-conversation", "mooncake-synthetic"} <= set(files)
    for path in files.values():
        read_spec(path)


@pytest.mark.parametrize(
    ("trace", "want"),
    [
        ("{file: x, shares: {}}", "shares names no client"),
        ("{file: x, shares: {a: 0}}", "at `$.trace.shares[...]`"),
        ("{file: x, shares: {a: 1}, speed: 0}", "at `$.trace.speed`"),
        (
            "{file: x, shares: {a: 1}, misbehaving: [b]}",
            "misbehaving names b, which shares does not",
        ),
    ],
)
def test_a_faulty_deal_of_a_trace_is_named(tmp_path: Path, trace: str, want: str) -> None:
    path = tmp_path / "w.yaml"
    path.write_text(f"about: a test\nprofile: a10g-llama2-7b\ntrace: {trace}\n")
    with pytest.raises(WorkloadError) as caught:
        read_spec(path)
    assert want in str(caught.value)


def test_a_trace_is_dealt_out_by_sessions_and_shares(tmp_path: Path) -> None:
    lines = [
        f'{{"timestamp":{n},"input_length":9,"output_length":7,"session":{n % 400}}}'
        for n in range(2000)
    ]
    (tmp_path / "t.jsonl").write_text("\n".join(lines))
    path = tmp_path / "w.yaml"
    path.write_text(
        "about: a test\nprofile: a10g-llama2-7b\n"
        "trace: {file: t.jsonl, shares: {bad: 3, good: 1}, speed: 2, jitter_s: 1, misbehaving: [bad]}"
    )
    spec = read_spec(path)
    programs = list(make_workload("w", spec, seed=5, traces=tmp_path).programs)
    assert [p.client for p in programs].count("bad") == pytest.approx(1500, rel=0.1)
    assert [p.arrival_s for p in programs] == sorted(p.arrival_s for p in programs)
    assert max(p.arrival_s for p in programs) <= (1.999 + 1) / 2
    by_id = {p.id: p.client for p in programs}
    assert all(by_id[str(line)] == by_id[str(line + 400)] for line in range(1, 400))
