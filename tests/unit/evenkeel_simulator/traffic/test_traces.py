import gzip
from pathlib import Path

import pytest
from evenkeel_simulator.engine.cache import Segment
from evenkeel_simulator.traffic.traces import (
    TraceError,
    hash_clients,
    named_clients,
    programs,
    read_trace,
)

HEADER = "client,arrival_s,input_tokens,output_tokens"
LINE = '{"timestamp":%s,"input_length":1000,"output_length":7,"hash_ids":%s,"session":4}'


def write(folder: Path, text: str | bytes, name: str = "trace") -> Path:
    path = folder / name
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def test_a_csv_is_read_with_its_hash_ids_and_sorted_by_arrival(tmp_path: Path) -> None:
    path = write(tmp_path, f"{HEADER},hash_ids\nb,2.5,600,4,1 2\na,1,5,6,\n")
    rows = read_trace(path)
    assert [(r.line, r.client, r.arrival_s) for r in rows] == [(3, "a", 1.0), (2, "b", 2.5)]
    late = programs(rows, named_clients(path))[1]
    assert late.calls[0].prompt == (Segment(1, 512), Segment(2, 88))
    assert programs(rows, named_clients(path))[0].calls[0].prompt == ()


def test_further_columns_and_a_byte_order_mark_do_no_harm(tmp_path: Path) -> None:
    path = write(tmp_path, f"\ufeffid,{HEADER}\n9,a,1,5,6\n")
    assert read_trace(path)[0].client == "a"


def test_mooncake_lines_are_read_in_milliseconds(tmp_path: Path) -> None:
    path = write(tmp_path, LINE % (1500, "[3,4]") + "\n\n" + LINE % (0, "[3,5]"))
    rows = read_trace(path)
    assert [(r.line, r.arrival_s, r.hash_ids) for r in rows] == [(3, 0.0, [3, 5]), (1, 1.5, [3, 4])]
    assert rows[0].client is None


def test_gzip_is_known_by_its_content_not_its_name(tmp_path: Path) -> None:
    packed = gzip.compress(f"{HEADER}\na,1,5,6\n".encode())
    assert read_trace(write(tmp_path, packed, "plain.csv"))[0].output_tokens == 6


@pytest.mark.parametrize(
    ("text", "want"),
    [
        ("", "line 1: no column arrival_s, input_tokens, output_tokens"),
        ("client,arrival_s\na,1", "no column input_tokens, output_tokens"),
        (f"{HEADER}\n", "holds no request"),
        (f"{HEADER}\na,soon,5,6", "line 2: arrival_s is 'soon', not a number"),
        (f"{HEADER}\na,1,5.5,6", "line 2: input_tokens is '5.5', not a whole number"),
        (f"{HEADER}\na,1,5", "line 2: output_tokens is missing"),
        (f"{HEADER}\na,-1,5,6", "line 2: arrival_s is -1.0, must be at least 0"),
        (f"{HEADER}\na,nan,5,6", "line 2: arrival_s is nan"),
        (f"{HEADER}\na,1,5,6\na,1,0,6", "line 3: input_tokens is 0, must be at least 1"),
        (f"{HEADER}\na,1,5,0", "line 2: output_tokens is 0, must be at least 1"),
        (f"{HEADER}\n ,1,5,6", "line 2: client is empty"),
        (f"{HEADER},hash_ids\na,1,5,6,x", "line 2: hash_ids is 'x', not whole numbers"),
        (f"{HEADER},hash_ids\na,1,5,6,1 2", "line 2: hash_ids has 2 entries, input_tokens 5"),
        ('{"timestamp":0}', "line 1: Object missing required field `input_length`"),
        (LINE % ('"x"', "[]"), "line 1: Expected `float`, got `str` - at `$.timestamp`"),
        (LINE % (0, "[1]"), "line 1: hash_ids has 1 entries, input_length 1000"),
        (LINE % (0, "[1,2]") + "\n{oops", "line 2: JSON is malformed"),
        (b"\x1f\x8bnot gzip at all", "cannot be read"),
        (b"client,\xff", "byte 7 is not UTF-8"),
    ],
)
def test_a_fault_names_file_line_and_field(tmp_path: Path, text: str | bytes, want: str) -> None:
    path = write(tmp_path, text)
    with pytest.raises(TraceError) as caught:
        read_trace(path)
    assert str(caught.value).startswith(str(path))
    assert want in str(caught.value)


def test_every_fault_is_counted_and_the_first_twenty_are_named(tmp_path: Path) -> None:
    lines = [HEADER, "a,1,5,6", " ,soon,0,6", *(f"a,{n},5,none" for n in range(30)), "a,1,5,6"]
    path = write(tmp_path, "\n".join(lines))
    with pytest.raises(TraceError) as caught:
        read_trace(path)
    count, *first = str(caught.value).splitlines()
    assert count == f"{path}: 33 faults; the first 20:"
    assert first[:4] == [
        f"{path}, line 3: client is empty",
        f"{path}, line 3: arrival_s is 'soon', not a number",
        f"{path}, line 3: input_tokens is 0, must be at least 1",
        f"{path}, line 4: output_tokens is 'none', not a whole number",
    ]
    assert len(first) == 20


def test_a_few_faults_are_all_named_and_lines_of_json_too(tmp_path: Path) -> None:
    path = write(tmp_path, "\n".join([LINE % (-1, "[3]"), LINE % (0, "[3,4]"), "{oops"]))
    with pytest.raises(TraceError) as caught:
        read_trace(path)
    assert str(caught.value).splitlines() == [
        f"{path}: 3 faults:",
        f"{path}, line 1: timestamp is -0.001, must be at least 0 and finite",
        f"{path}, line 1: hash_ids has 1 entries, input_length 1000 makes 2 blocks of 512 tokens",
        f"{path}, line 3: JSON is malformed: object keys must be strings (byte 1)",
    ]


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="nowhere.csv: cannot be read"):
        read_trace(tmp_path / "nowhere.csv")


def test_a_trace_without_clients_is_refused_with_the_option_that_makes_some(tmp_path: Path) -> None:
    path = write(tmp_path, LINE % (0, "[1,2]"))
    with pytest.raises(TraceError, match="--clients hash:N"):
        programs(read_trace(path), named_clients(path))


def test_a_hash_gives_a_session_the_same_client_unless_the_seed_differs(
    tmp_path: Path,
) -> None:
    lines = [
        f'{{"timestamp":0,"input_length":9,"output_length":7,"session":{n % 50}}}'
        for n in range(100)
    ]
    rows = read_trace(write(tmp_path, "\n".join(lines)))
    deal = [p.client for p in programs(rows, hash_clients(4))]
    assert deal[:50] == deal[50:]
    assert set(deal) == {f"client-{n}" for n in range(4)}
    assert deal != [p.client for p in programs(rows, hash_clients(4, seed=1))]


def test_arrivals_count_from_the_first_and_are_divided_by_the_speed(tmp_path: Path) -> None:
    rows = read_trace(write(tmp_path, f"{HEADER}\na,2124,5,6\na,2127,5,6\n"))
    assert [p.arrival_s for p in programs(rows, lambda row: "a", speed=2)] == [0.0, 1.5]
