"""The program that downloads a model, against a bucket at the seam to the network."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from evenkeel_contract.downloads import Progress, decode_progress
from evenkeel_operator.cluster.downloads import asked
from evenkeel_operator.download import sources
from evenkeel_operator.download.__main__ import main, serve
from evenkeel_operator.download.folder import MARK, Folder, remove_others
from evenkeel_operator.download.sources import DownloadError, safe, source_of

from tests.support import hub
from tests.support.bucket import CHUNK, Objects, serving

WEIGHTS = bytes(range(256)) * (5 * CHUNK // 256)
FILES = {"models/one/config.json": b"{}", "models/one/deep/w.safetensors": WEIGHTS}
KEY = "AKIAEVENKEEL"


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Objects, str]]:
    """A bucket that asks for a key, and its address."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    objects = Objects({**FILES, "models/onely/other.bin": b"1"}, key=KEY)
    with serving(objects) as address:
        yield objects, address


def run(folder: Path, endpoint: str, *flags: str, source: str = "s3://models/one") -> int:
    given = [f"--source={source}", f"--folder={folder}", f"--endpoint={endpoint}"]
    return main([*given, *flags])


def files(folder: Path) -> dict[str, bytes]:
    return {
        str(one.relative_to(folder)): one.read_bytes()
        for one in folder.rglob("*")
        if one.is_file() and one.name != MARK
    }


def test_all_files_below_the_prefix_are_written(
    bucket: tuple[Objects, str], tmp_path: Path
) -> None:
    folder = tmp_path / "service" / "one"
    assert run(folder, bucket[1]) == 0
    assert files(folder) == {"config.json": b"{}", "deep/w.safetensors": WEIGHTS}
    mark = json.loads((folder / MARK).read_text())
    assert mark == {"files": 2, "bytes": len(WEIGHTS) + 2}


def test_a_complete_folder_is_not_downloaded_again(
    bucket: tuple[Objects, str], tmp_path: Path
) -> None:
    objects, address = bucket
    assert run(tmp_path / "one", address) == 0
    objects.ranges.clear()
    assert run(tmp_path / "one", address) == 0
    assert objects.ranges == []


def test_an_interrupted_download_continues_where_it_stopped(
    bucket: tuple[Objects, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    objects, address = bucket
    monkeypatch.setattr(sources, "CHUNK_BYTES", CHUNK)
    monkeypatch.setattr(sources, "RETRIES", 0)
    objects.cut_after = 3 * CHUNK
    assert run(tmp_path / "one", address) == 1
    assert not (tmp_path / "one" / "deep/w.safetensors").exists()
    objects.cut_after = None
    objects.ranges.clear()
    assert run(tmp_path / "one", address) == 0
    starts = [
        int(span.removeprefix("bytes=").rstrip("-"))
        for name, span in objects.ranges
        if "w." in name
    ]
    assert starts[0] > 0
    assert files(tmp_path / "one")["deep/w.safetensors"] == WEIGHTS


def test_parts_of_two_versions_of_a_file_are_never_joined(
    bucket: tuple[Objects, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    objects, address = bucket
    monkeypatch.setattr(sources, "CHUNK_BYTES", CHUNK)
    monkeypatch.setattr(sources, "RETRIES", 0)
    objects.cut_after = 3 * CHUNK
    assert run(tmp_path / "one", address) == 1
    objects.cut_after = None
    objects.contents["models/one/deep/w.safetensors"] = new = WEIGHTS[::-1]
    assert run(tmp_path / "one", address) == 0
    assert files(tmp_path / "one") == {"config.json": b"{}", "deep/w.safetensors": new}


def test_a_part_that_is_too_long_is_an_error_and_begins_anew(
    bucket: tuple[Objects, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    objects, address = bucket
    monkeypatch.setattr(sources, "RETRIES", 0)
    objects.cut_after = 3 * CHUNK
    assert run(tmp_path / "one", address) == 1
    objects.cut_after = None
    (part,) = (tmp_path / "one").rglob(f"w.*{sources.PARTIAL}")
    part.write_bytes(WEIGHTS + b"1")
    assert run(tmp_path / "one", address) == 1
    assert run(tmp_path / "one", address) == 0
    assert files(tmp_path / "one")["deep/w.safetensors"] == WEIGHTS


def test_two_pods_that_write_the_same_folder_spoil_nothing(
    bucket: tuple[Objects, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pod of a Job that is replaced may run for a few seconds beside the new one."""
    monkeypatch.setattr(sources, "CHUNK_BYTES", CHUNK)
    bucket[0].pause_s = 0.02
    with ThreadPoolExecutor(2) as pods:
        first = pods.submit(run, tmp_path / "one", bucket[1])
        time.sleep(0.05)
        second = pods.submit(run, tmp_path / "one", bucket[1])
        codes = [first.result(), second.result()]
    if codes != [0, 0]:  # the kubelet starts it again
        assert run(tmp_path / "one", bucket[1]) == 0
    assert files(tmp_path / "one") == {"config.json": b"{}", "deep/w.safetensors": WEIGHTS}


@pytest.mark.parametrize(
    ("source", "key", "want"),
    [
        ("s3://models/none", KEY, "s3://models/none has no files"),
        ("s3://models/one", "AKIAOTHER", "403 Forbidden"),
    ],
)
def test_the_last_line_says_why_it_failed(
    bucket: tuple[Objects, str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    source: str,
    key: str,
    want: str,
) -> None:
    bucket[0].key = key
    lines = []
    for _ in range(2):
        assert run(tmp_path / "one", bucket[1], source=source) == 1
        lines.append(capsys.readouterr().out.splitlines()[-1])
    assert want in lines[0]
    assert lines[0] == lines[1]  # each other text would be a write of the status
    assert not (tmp_path / "one" / MARK).exists()


def test_a_public_bucket_needs_no_key(
    bucket: tuple[Objects, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket[0].key = ""
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    assert run(tmp_path / "one", bucket[1], "--anonymous") == 0


def test_a_bucket_of_google_is_read_with_the_key_of_an_account(
    bucket: tuple[Objects, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket[0].key = ""
    account = {"gcs_base_url": bucket[1], "disable_oauth": True, "client_email": "", "private_key": "", "private_key_id": ""}  # fmt: skip
    monkeypatch.setenv("GOOGLE_SERVICE_ACCOUNT_KEY", json.dumps(account))
    assert main(["--source=gs://models/one", f"--folder={tmp_path / 'one'}"]) == 0
    assert files(tmp_path / "one")["deep/w.safetensors"] == WEIGHTS


def test_folders_that_nothing_reads_are_removed_first(
    bucket: tuple[Objects, str], tmp_path: Path
) -> None:
    for name in ("old", "older"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "w").write_bytes(b"1")
    assert run(tmp_path / "one", bucket[1], "--keep=old") == 0
    assert sorted(one.name for one in tmp_path.iterdir()) == ["old", "one"]
    assert remove_others(tmp_path / "one", keep=()) == ["old"]


def test_a_volume_without_room_is_named_before_anything_is_read(tmp_path: Path) -> None:
    class Huge:
        def items(self) -> list[sources.Item]:
            return [sources.Item("w", 10**18)]

        def fetch(self, item: sources.Item, folder: Path) -> None:
            raise AssertionError

        finish = fetch

    with pytest.raises(DownloadError, match=r"1000000000\.0 GB are missing"):
        Folder(tmp_path / "one").download(Huge())  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["../x", "/etc/x", "a/../../x", ""])
def test_a_name_that_leads_out_of_the_folder_is_refused(name: str) -> None:
    with pytest.raises(DownloadError):
        safe(name)


@pytest.mark.parametrize("source", ["ftp://a/b", "pvc://claim"])
def test_another_kind_of_source_is_refused(source: str) -> None:
    with pytest.raises(DownloadError, match="use hf://, s3:// or gs://"):
        source_of(source)


REPOSITORY = {
    "config.json": b"{}",
    "model.safetensors": WEIGHTS,
    "pytorch_model.bin": WEIGHTS,
    "original/consolidated.00.pth": WEIGHTS,
}


def from_hub(folder: Path, source: str, *, token: str = "") -> subprocess.CompletedProcess[str]:
    """The program as a process, since the library reads its address when it is imported."""
    with hub.serving("org/model", REPOSITORY, token=token) as address:
        given = {
            "HF_ENDPOINT": address,
            "HF_HOME": str(folder.parent / "home"),
            "HF_HUB_OFFLINE": "0",
        }
        command = [
            sys.executable,
            "-m",
            "evenkeel_operator.download",
            f"--source={source}",
            f"--folder={folder}",
        ]
        environment = {**os.environ, **given, "HF_TOKEN": "hf_good"}
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("source", ["hf://org/model", "hf://org/model@v1"])
def test_a_repository_is_written_without_other_formats_of_its_weights(
    tmp_path: Path, source: str
) -> None:
    done = from_hub(tmp_path / "one", source, token="hf_good")
    assert done.returncode == 0, done.stderr
    assert files(tmp_path / "one") == {"config.json": b"{}", "model.safetensors": WEIGHTS}


def test_a_repository_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    done = from_hub(tmp_path / "one", "hf://org/other", token="hf_another")
    assert done.returncode == 1
    assert done.stdout.splitlines()[-1].startswith("hf://org/other cannot be listed: ")


async def test_the_operator_reads_how_far_a_download_is(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    folder.items = [sources.Item("w", 4000)]
    (tmp_path / "w").write_bytes(b"x" * 1000)
    server = serve(folder, "127.0.0.1", 0)
    ready = {"type": "Ready", "status": "True"}
    pod = {"metadata": {"name": "a"}, "status": {"podIP": "127.0.0.1", "conditions": [ready]}}
    try:
        async with asked(port=server.server_port) as downloads:
            found = await downloads.ask([pod])
            assert await downloads.ask([{**pod, "status": {}}]) is None
    finally:
        server.shutdown()
        server.server_close()
    assert found == Progress(written=1000, total=4000)
    assert found.percent == 25


async def test_a_pod_that_does_not_answer_has_no_progress() -> None:
    ready = {"type": "Ready", "status": "True"}
    pod = {"metadata": {"name": "a"}, "status": {"podIP": "127.0.0.1", "conditions": [ready]}}
    async with asked(port=1) as downloads:
        assert await downloads.ask([pod]) is None


@pytest.mark.parametrize("body", [b"", b"[]", b'{"written": "x", "total": 1}', b"<html>"])
def test_nonsense_is_no_progress(body: bytes) -> None:
    assert decode_progress(body) is None


@pytest.mark.parametrize(
    ("written", "total", "want"), [(5, 0, 0), (-1, 10, 0), (10, 10, 99), (43, 100, 43)]
)
def test_percent_is_between_0_and_99(written: int, total: int, want: int) -> None:
    assert Progress(written=written, total=total).percent == want
