"""A machine that cannot have a cluster is told why, and nothing else happens."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from e2e.rig import __main__, components, machine
from e2e.rig.errors import NotHereError


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A machine with no program at all, and root."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("E2E_BINARIES", raising=False)
    monkeypatch.delenv("E2E_KUBECONFIG", raising=False)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(components, "CACHE", tmp_path / "cache")
    return tmp_path


def test_without_root_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(NotHereError, match="root is needed"):
        machine.check()


def test_what_is_missing_is_named_and_where_to_get_it(bare: Path) -> None:
    with pytest.raises(NotHereError, match=r"missing: runc.*install runc containernetworking"):
        machine.check()
    with pytest.raises(NotHereError, match="no apt-get"):
        machine.prepare()


def test_without_go_it_says_so(bare: Path) -> None:
    with pytest.raises(NotHereError, match="there is no go command"):
        components.fetch_modules()


def test_modules_that_cannot_be_had_are_no_failure_of_the_build(bare: Path) -> None:
    go = bare / "go"
    go.write_text("#!/bin/sh\necho 'dial tcp: no route' >&2\nexit 1\n")
    go.chmod(0o755)
    with pytest.raises(NotHereError, match="modules of kubernetes cannot be had: dial tcp"):
        components.fetch_modules()


def test_the_rig_waits_for_the_lock_of_apt(
    bare: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    apt, tries = bare / "apt-get", bare / "tries"
    apt.write_text(
        f"#!/bin/sh\necho >> {tries}\n"
        f"[ $(/usr/bin/wc -l < {tries}) -gt 2 ] && {{ echo 'no such package' >&2; exit 100; }}\n"
        "echo 'E: Could not get lock /var/lib/dpkg/lock-frontend. It is held by process 7 (apt-get)' >&2\nexit 100\n"
    )
    apt.chmod(0o755)
    monkeypatch.setattr(machine, "LOCK_RETRY_S", 0.01)
    with pytest.raises(NotHereError, match="no such package"):
        machine.prepare()
    assert (
        len(tries.read_text()) == 5
    )  # two without the lock, then an install, an update, an install
    assert "another process holds apt's lock" in capsys.readouterr().out


def test_packages_that_apt_cannot_install_are_no_failure_either(bare: Path) -> None:
    apt = bare / "apt-get"
    apt.write_text("#!/bin/sh\necho 'no such package' >&2\nexit 100\n")
    apt.chmod(0o755)
    with pytest.raises(NotHereError, match="cannot install what is missing: no such package"):
        machine.prepare()


def test_the_exit_code_distinguishes_skipped_from_broken(
    bare: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert __main__.main(["prepare"]) == __main__.NOT_HERE
    assert "rig: there is no apt-get" in capsys.readouterr().err
