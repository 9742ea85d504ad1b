"""One engine for a measurement, SGLang or another: started, waited for, ended with all it started."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import MappingProxyType
from typing import Final

import httpx
from evenkeel_cli.up import ports
from evenkeel_contract.render import CPU_ENVIRONMENT, CPU_FLAGS, OFFLINE_ENVIRONMENT, SGLANG_MODULE

HOST: Final = "127.0.0.1"
_START_S: Final = 1800.0
_LOOK_S: Final = 0.5
_STOP_S: Final = 5.0
_TAIL_CHARS: Final = 3000


class EngineError(RuntimeError):
    """The engine ended, or was not ready in time; the message has the end of its log."""


@contextmanager
def running_engine(
    *,
    python: Path,
    model: Path,
    policy: str,
    cpu: bool,
    flags: Sequence[str],
    log: Path,
    settings: Mapping[str, str] = MappingProxyType({}),
) -> Iterator[str]:
    """An engine's address. `policy` is what `--schedule-policy` takes; `flags` come last; `settings` go to its environment."""
    port = ports.free_port(HOST)
    command = (
        *(str(python), "-m", SGLANG_MODULE, f"--model-path={model}"),
        *(f"--host={HOST}", f"--port={port}", f"--schedule-policy={policy}"),
        *("--enable-metrics", "--enable-cache-report", "--random-seed=0"),
        *(CPU_FLAGS if cpu else ()),
        *flags,
    )
    environment = {**os.environ, **OFFLINE_ENVIRONMENT, **(CPU_ENVIRONMENT if cpu else {})}
    environment.pop("PYTHONPATH", None)  # this interpreter's, not that one's
    environment.update(settings)
    url = f"http://{HOST}:{port}"
    with running_process(command, environment, url, "/ready", log=log):
        yield url


@contextmanager
def running_process(
    command: Sequence[str], environment: Mapping[str, str], url: str, probe: str, *, log: Path
) -> Iterator[str]:
    """An engine at `url`, from when its path `probe` answers 200."""
    process = launch(command, environment, log=log)
    try:
        await_ready(process, url + probe, log=log)
        yield url
    finally:
        stop(process)


def launch(
    command: Sequence[str], environment: Mapping[str, str], *, log: Path
) -> subprocess.Popen[bytes]:
    """Start a process that outlives this one; its group has the number of the process."""
    with log.open("wb") as output:
        return subprocess.Popen(
            command, env=environment, stdout=output, stderr=output, start_new_session=True
        )


def await_ready(
    process: subprocess.Popen[bytes], url: str, *, log: Path, limit_s: float = _START_S
) -> None:
    """Wait until `url` answers 200; raises `EngineError`."""
    deadline_s = time.monotonic() + limit_s
    while time.monotonic() < deadline_s:
        with suppress(httpx.TransportError):
            if httpx.get(url, timeout=2, trust_env=False).status_code == 200:
                return
        with suppress(subprocess.TimeoutExpired):
            process.wait(_LOOK_S)
            raise EngineError(f"the engine ended; {log} ends:\n{log_tail(log)}")
    raise EngineError(f"the engine was not ready in {limit_s:.0f} s; {log} ends:\n{log_tail(log)}")


def stop(process: subprocess.Popen[bytes]) -> None:
    """End a process and all that it started."""
    process.terminate()
    with suppress(subprocess.TimeoutExpired):
        process.wait(_STOP_S)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def log_tail(log: Path) -> str:
    """The last lines of a log."""
    return log.read_text(errors="replace")[-_TAIL_CHARS:]
