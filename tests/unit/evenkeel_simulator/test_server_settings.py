"""The command line of a replica: what it means, and what it says of flags that cannot be."""

from __future__ import annotations

from pathlib import Path

import pytest
from evenkeel_fairshare.cost import LinearCost
from evenkeel_fairshare.replica.deficit import Rejoin
from evenkeel_simulator.engine.config import AdmissionRule
from evenkeel_simulator.engine.profiles import PROFILES
from evenkeel_simulator.server.bodies import BadRequest
from evenkeel_simulator.server.settings import Settings, argument_faults, parse_arguments

PROFILE = (
    '{"prefill_ms": 1, "prefill_token_ms": 1, "decode_ms": 1, "decode_request_ms": 0,'
    ' "decode_kv_token_ms": 0, "kv_tokens": 500}'
)


def test_the_least_one_must_say_is_the_model() -> None:
    settings = parse_arguments(["--model", "m"])
    assert (settings.model, settings.host, settings.port) == ("m", "127.0.0.1", 30000)
    assert (settings.kv_events_port, settings.reports_port) == (None, None)
    assert (settings.replica_policy, settings.client_quantum) == ("DLPM", None)
    assert settings.pool_tokens == settings.context_tokens == PROFILES["a10g-llama2-7b"].kv_tokens


def test_adapters_are_named_as_sglang_names_them() -> None:
    flags = ["--enable-lora", "--max-loras-per-batch=3", "--adapter-load-ms=7", "--lora-paths"]
    settings = parse_arguments(["--model", "m", *flags, "a=hf://x/y", "b/c=/z", "--port=1"])
    assert settings.adapters == ("a", "b/c")
    assert settings.engine_config.adapters_per_batch == 3
    assert settings.engine_config.adapter_load_ms == 7
    for model, lora_path, want in (
        ("m", None, None),
        ("default", None, None),
        ("m:a", None, "a"),
        ("m:b/c", None, "b/c"),
        ("other:a", None, "a"),
        ("m", "a", "a"),
        ("m:b/c", "a", "b/c"),
    ):
        assert settings.adapter_of(model, lora_path) == want
    for unknown in ("m:z", "m:m"):
        with pytest.raises(BadRequest, match="never been loaded"):
            settings.adapter_of(unknown, None)
    plain = parse_arguments(["--model", "m"])
    assert plain.engine_config.adapters_per_batch is None
    with pytest.raises(BadRequest, match="LoRA is not enabled"):
        plain.adapter_of("m:a", None)


def test_every_flag_arrives() -> None:
    settings = parse_arguments(
        [
            "--model",
            "m",
            "--host",
            "0.0.0.0",
            "--port",
            "1",
            "--kv-events-port",
            "2",
            "--kv-replay-port",
            "3",
            "--kv-kept-batches",
            "11",
            "--reports-port",
            "4",
            "--api-key",
            "k",
            "--replica-policy",
            "VTC",
            "--client-quantum",
            "9",
            "--input-token-weight",
            "3",
            "--output-token-weight",
            "5",
            "--kv-time",
            "40",
            "--rejoin",
            "Paper",
            "--profile",
            "a100-llama2-13b",
            "--kv-tokens",
            "999",
            "--page-size",
            "8",
            "--context-length",
            "100",
            "--speed",
            "2.5",
            "--admission",
            "reservation",
            "--max-running-requests",
            "7",
            "--chunked-prefill-size",
            "0",
            "--enable-mixed-chunk",
        ]
    )
    assert (settings.host, settings.port, settings.kv_events_port) == ("0.0.0.0", 1, 2)
    assert (settings.kv_replay_port, settings.reports_port, settings.api_key) == (3, 4, "k")
    assert settings.kv_kept_batches == 11
    assert settings.make_policy().name == "VTC"
    assert settings.cost == LinearCost(3, 5, 40)
    assert (settings.client_quantum, settings.rejoin) == (9, Rejoin.PAPER)
    assert settings.profile is PROFILES["a100-llama2-13b"]
    assert (settings.page_size, settings.context_tokens, settings.speed) == (8, 100, 2.5)
    engine = settings.engine_config
    assert (engine.kv_tokens, engine.admission) == (999, AdmissionRule.RESERVATION)
    assert (engine.max_running, engine.prefill_tokens, engine.mixed) == (7, None, True)


def test_a_profile_may_come_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "own.json"
    file.write_text(PROFILE)
    assert parse_arguments(["--model", "m", "--profile", str(file)]).pool_tokens == 500


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        ((), "--model"),
        (("--model", ""), "model must not be empty"),
        (("--model", "m", "--replica-policy", "LUCK"), "LUCK"),
        (("--model", "m", "--client-quantum", "0"), "client_quantum is 0.0, must be positive"),
        (("--model", "m", "--client-quantum", "much"), "argument --client-quantum: invalid"),
        (("--model", "m", "--speed", "inf"), "speed is inf, must be positive"),
        (("--model", "m", "--kv-tokens", "5"), "kv_tokens is 5, must be at least 64"),
        (("--model", "m", "--page-size", "0"), "page_size is 0, must be at least 1"),
        (("--model", "m", "--profile", "no-such"), "neither one of a10g-llama2-7b"),
        (("--model", "m", "--rejoin", "Never"), "Never"),
        (("--model", "m", "--max-running-requests", "0"), "max_running is 0"),
        (("--model", "m", "--port", "x"), "--port"),
    ],
)
def test_a_flag_that_cannot_be_is_a_sentence_and_status_2(
    flags: tuple[str, ...], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        parse_arguments(flags)
    assert ended.value.code == 2
    assert sentence in capsys.readouterr().err


def test_a_profile_that_is_none_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "own.json"
    file.write_text('{"prefill_ms": -1}')
    with pytest.raises(SystemExit):
        parse_arguments(["--model", "m", "--profile", str(file)])
    assert "own.json" in capsys.readouterr().err


def test_settings_of_ones_own_are_checked_too() -> None:
    with pytest.raises(ValueError, match="replica_policy must be one of"):
        Settings(model="m", replica_policy="LUCK")


def test_every_argument_that_a_replica_would_refuse_is_named() -> None:
    flags = ["--speed=0", "--profile=tpu", "--kv-tokens=100", "--help", "--replica=x", "--speed=2"]
    found = dict(argument_faults(flags))
    assert found.keys() == {0, 1, 3, 4}
    assert found[0] == "speed is 0.0, must be positive and finite"
    assert "'tpu' is neither one of" in found[1]
    assert found[3] == "unrecognized arguments: --help"
    assert found[4] == "unrecognized arguments: --replica=x"  # no beginnings of flags
    assert list(argument_faults(["--profile=a10g-llama2-7b", "--enable-mixed-chunk"])) == []


def test_arguments_that_are_fine_together_have_no_faults(tmp_path: Path) -> None:
    file = tmp_path / "tiny.json"
    file.write_text(PROFILE.replace("500", "50"))
    ((index, message),) = argument_faults([f"--profile={file}"])
    assert (index, message) == (0, "kv_tokens is 50, must be at least 64")
    assert list(argument_faults([f"--profile={file}", "--kv-tokens=4096"])) == []
