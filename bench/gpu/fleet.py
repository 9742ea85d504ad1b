"""The engines of a call: started in their order of attempts, side by side on one GPU, and found again by a later call."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import httpx
from evenkeel_cli.up import ports
from evenkeel_contract.enginesettings import ON_MISMATCH_VARIABLE, REPORTS_PORT_VARIABLE
from evenkeel_contract.queueorder import OnMismatch
from evenkeel_contract.render import (
    COMMON_FLAGS,
    CPU_ENVIRONMENT,
    CPU_FLAGS,
    OFFLINE_ENVIRONMENT,
    SGLANG_MODULE,
)

from bench.gpu.bundle import FALLBACK, ROOT
from bench.gpu.engine import HOST, EngineError, await_ready, launch, log_tail, stop
from bench.gpu.loops import Note

POLICIES: Final[Mapping[str, str]] = {
    "fcfs": "fcfs",  # SGLang's own
    "lpm": "lpm",  # SGLang's own, which becomes FCFS beyond 128 waiting requests
    "vtc": "vtc",
    "dlpm": "dlpm",
    "dlpm-2": "dlpm",
}
"""Name of an engine → `--schedule-policy`."""
STOCK: Final = ("fcfs", "lpm")
_STATE: Final = "engines.json"
_PACKAGES: Final = ("plugins/sglang", "plugins/common", "contract", "fairshare")
_GPU_FLAGS: Final = (
    *("--load-format=dummy", "--attention-backend=triton", "--sampling-backend=pytorch"),
    *("--grammar-backend=none", "--dtype=bfloat16", "--mem-fraction-static=0.9"),
)
_BATCHES: Final = ("1", "2", "4", "8", "16", "32", "64")


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """The size of each engine. Tokens."""

    pool_tokens: int
    chunk_tokens: int
    context_tokens: int
    max_running: int

    def flags(self) -> tuple[str, ...]:
        """SGLang's flags for it."""
        return (
            f"--max-total-tokens={self.pool_tokens}",
            f"--chunked-prefill-size={self.chunk_tokens}",
            f"--context-length={self.context_tokens}",
            f"--max-running-requests={self.max_running}",
        )


def shape_of(*, scale: float, pool_tokens: int) -> Shape:
    """The shape of the measurements on a GPU, or of a toy whose token counts are multiplied by `scale`."""
    return Shape(
        pool_tokens=round(pool_tokens * scale),
        chunk_tokens=max(64, round(4096 * scale)),
        context_tokens=max(2048, round(32_768 * scale)),
        max_running=64,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One way to start the engines."""

    about: str
    flags: tuple[str, ...]
    fallback: bool = False
    """SGLang 0.5.16 instead of the newest."""
    probe: str = "/ready"
    """Path that answers 200 when the engine serves."""
    limit_s: float = 150.0


CPU_ATTEMPTS: Final = (
    Attempt(about="SGLang 0.5.23 on the CPU", flags=CPU_FLAGS, limit_s=600.0),
    Attempt(
        about="SGLang 0.5.16 on the CPU",
        flags=CPU_FLAGS,
        limit_s=600.0,
        fallback=True,
        probe="/health",
    ),
)
GPU_ATTEMPTS: Final = (
    Attempt(
        about="SGLang 0.5.23",
        flags=(
            *_GPU_FLAGS,
            *("--disable-prefill-cuda-graph", "--cuda-graph-bs-decode", *_BATCHES),
        ),
        limit_s=200.0,
    ),
    Attempt(
        about="SGLang 0.5.23 without CUDA graphs",
        flags=(*_GPU_FLAGS, "--disable-prefill-cuda-graph", "--disable-decode-cuda-graph"),
    ),
    Attempt(
        about="SGLang 0.5.16",
        flags=(*_GPU_FLAGS, "--cuda-graph-bs", *_BATCHES),
        fallback=True,
        probe="/health",
    ),
)


@dataclass(slots=True, kw_only=True)
class Engines:
    """Starts engines by name, and keeps their addresses in a file for a later call."""

    python: Path
    model: Path
    shape: Shape
    attempts: Sequence[Attempt]
    work: Path
    """Folder of logs and of that file. It outlives a call."""
    site: Path
    """The unpacked bundle."""
    cpu: bool
    """Whether the environment of `python` has SGLang. Of the bundle then only the fallback is used."""
    flags: Sequence[str]
    note: Note
    deadline_s: float
    """Monotonic time at which a start gives up."""
    urls: dict[str, str] = field(default_factory=dict)
    reports: dict[str, int] = field(default_factory=dict)
    """Ports of the plug-in's reports."""
    failed: dict[str, str] = field(default_factory=dict)
    """Engines that started in no attempt, with the reason. They are not tried again: each try takes minutes."""
    sglang: str = ""
    """SGLang's version, of the engine that was started last."""
    _pids: dict[str, int] = field(default_factory=dict)
    _processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    """Engines that this call started."""
    first: int = 0
    """The attempt that is tried first: after a start the one that worked."""

    def recover(self) -> None:
        """Find the engines of an earlier call that still answer. Those of an attempt before the first one end."""
        with suppress(OSError, ValueError):
            state = json.loads((self.work / _STATE).read_text())
            attempt = min(state["attempt"], len(self.attempts) - 1)
            for name, (url, pid, reports) in state["engines"].items():
                if not _answers(url + self.attempts[attempt].probe):
                    continue
                self.urls[name], self._pids[name], self.reports[name] = url, pid, reports
                if attempt < self.first:
                    self.stop(name)
            if self.urls:
                self.first = attempt

    def start(self, names: Sequence[str]) -> None:
        """Start those that do not run, at the same time.

        Raises `EngineError` for those that did not start in the last attempt. While an engine runs, others are not started in another
        attempt: what is compared has one version.
        """
        while missing := [one for one in names if one not in self.urls and one not in self.failed]:
            attempt = self.attempts[self.first]
            began_s = time.monotonic()
            failures = self._start_all(missing, attempt)
            if ready := [name for name in missing if name not in failures]:
                self._note_start(ready, attempt, began_s)
            for name, reason in failures.items():
                self._note_start([name], attempt, began_s, error=reason)
            if failures and (self.urls or self.first + 1 >= len(self.attempts)):
                self.failed |= failures
            elif failures:
                self.first += 1
        if lost := [name for name in names if name in self.failed]:
            raise EngineError("; ".join(f"{name}: {self.failed[name]}" for name in lost))

    def versions(self, packages: Sequence[str]) -> dict[str, str]:
        """Versions of Python and of packages, as the engines find them."""
        program = (
            "import sys, json; from importlib.metadata import distributions\n"
            "found = {(one.name or '').lower(): one.version for one in distributions()}\n"
            "print(json.dumps({'python': sys.version.split()[0], **found}))"
        )
        environment = self.environment(self.attempts[self.first])
        done = subprocess.run(
            [str(self.python), "-c", program],
            env=environment, capture_output=True, text=True, check=False, timeout=60,
        )  # fmt: skip
        found = json.loads(done.stdout) if done.returncode == 0 else {}
        return {name: str(found.get(name)) for name in ("python", *packages)}

    def stop(self, name: str) -> None:
        """End an engine and all that it started."""
        self.urls.pop(name, None)
        pid, process = self._pids.pop(name, None), self._processes.pop(name, None)
        self._write()
        if process is not None:
            stop(process)
        elif pid is not None:  # of an earlier call
            with suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)

    def stop_all(self) -> None:
        """End every engine, also those that are starting."""
        for name in list(self._pids):
            self.stop(name)

    def metrics(self, name: str) -> dict[str, float]:
        """The plug-in's metrics of an engine, by name with labels; empty for SGLang's own policies."""
        try:
            text = httpx.get(f"{self.urls[name]}/metrics", timeout=30, trust_env=False).text
        except httpx.HTTPError:
            return {}
        lines = [line for line in text.splitlines() if line.startswith("evenkeel")]
        return {sample: float(value) for sample, value in (line.rsplit(" ", 1) for line in lines)}

    def log(self, name: str) -> Path:
        """The file of an engine's output."""
        return self.work / f"engine-{name}.log"

    def environment(self, attempt: Attempt) -> dict[str, str]:
        """Variables of an engine's process."""
        path = [str(ROOT / package) for package in _PACKAGES]
        if not self.cpu:
            path = [str(self.site), *path]
        if attempt.fallback:
            path = [str(self.site / FALLBACK), *path]
        return {
            **os.environ,
            **OFFLINE_ENVIRONMENT,
            **(CPU_ENVIRONMENT if self.cpu else {"OMP_NUM_THREADS": "4"}),
            ON_MISMATCH_VARIABLE: OnMismatch.REFUSE.value,
            "PYTHONPATH": os.pathsep.join(path),
            "PYTHONUNBUFFERED": "1",
            "SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN": "1",
            "SGLANG_SKIP_SGL_KERNEL_VERSION_CHECK": "1",
            "SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION": "0",  # a probe computes nothing
            "SGLANG_JIT_CACHE_DIR": str(self.work / "jit"),
            "TRITON_CACHE_DIR": str(self.work / "triton"),
        }

    def _start_all(self, names: Sequence[str], attempt: Attempt) -> dict[str, str]:
        """Start these at the same time; name → reason of those that did not start."""
        until_s = min(time.monotonic() + attempt.limit_s, self.deadline_s)
        begun = [(name, *self._launch(name, attempt)) for name in names]
        failures = {}
        for name, url, process in begun:
            left_s = max(1.0, until_s - time.monotonic())
            try:
                await_ready(process, url + attempt.probe, log=self.log(name), limit_s=left_s)
                self._first_answer(name, url, limit_s=max(1.0, until_s - time.monotonic()))
            except EngineError as error:
                self.stop(name)
                failures[name] = str(error)
            else:
                self.urls[name] = url
        self._write()
        return failures

    def _first_answer(self, name: str, url: str, *, limit_s: float) -> None:
        """Ask for some tokens: kernels are compiled, and one that fails does so here. Raises `EngineError`."""
        sampling = {"max_new_tokens": 4, "ignore_eos": True, "temperature": 0}
        body = {"input_ids": [11, 12, 13, 14, 15], "sampling_params": sampling}
        try:
            answer = httpx.post(f"{url}/generate", json=body, timeout=limit_s, trust_env=False)
            answer.raise_for_status()
        except httpx.HTTPError as error:
            log = self.log(name)
            raise EngineError(
                f"the engine did not answer: {error!r}; {log} ends:\n{log_tail(log)}"
            ) from error

    def _launch(self, name: str, attempt: Attempt) -> tuple[str, subprocess.Popen[bytes]]:
        port, reports = ports.free_port(HOST), ports.free_port(HOST)
        command = (
            *(str(self.python), "-m", SGLANG_MODULE, f"--model-path={self.model}"),
            *(f"--host={HOST}", f"--port={port}", f"--schedule-policy={POLICIES[name]}"),
            *("--random-seed=0", "--skip-server-warmup", *COMMON_FLAGS),
            *(*self.shape.flags(), *attempt.flags, *self.flags),
        )
        environment = {**self.environment(attempt), REPORTS_PORT_VARIABLE: str(reports)}
        if name in STOCK:
            environment["SGLANG_PLUGINS"] = "none"
        process = launch(command, environment, log=self.log(name))
        self._processes[name] = process
        self._pids[name], self.reports[name] = process.pid, reports
        return f"http://{HOST}:{port}", process

    def _note_start(
        self, names: Sequence[str], attempt: Attempt, began_s: float, *, error: str | None = None
    ) -> None:
        record: dict[str, Any] = {
            "kind": "start",
            "engines": list(names),
            "attempt": attempt.about,
            "seconds": round(time.monotonic() - began_s, 1),
            "status": "failed" if error else "ready",
        }
        if error:
            record["error"] = error
        else:
            self.sglang = record["sglang"] = _version(self.urls[names[0]])
        self.note(record)

    def _write(self) -> None:
        engines = {
            name: (url, self._pids[name], self.reports[name]) for name, url in self.urls.items()
        }
        state = {"attempt": self.first, "engines": engines}
        (self.work / _STATE).write_text(json.dumps(state))


def _version(url: str) -> str:
    answer = httpx.get(f"{url}/server_info", timeout=60, trust_env=False)
    return str(answer.raise_for_status().json()["version"])


def _answers(url: str) -> bool:
    with suppress(httpx.TransportError):
        return httpx.get(url, timeout=2, trust_env=False).status_code == 200
    return False
