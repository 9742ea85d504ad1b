"""`evenkeel up` as a process of its own, with a fleet of two simulated replicas."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import httpx
import msgspec
from evenkeel_cli.up.record import FleetRecord
from evenkeel_contract.adminstate import STATE_PATH, RouterState, decode_state

DEADLINE_S = 60.0
FILE = """\
apiVersion: evenkeel.dev/v1alpha1
kind: FairInferenceService
metadata: {name: sample}
spec:
  model: {source: hf://org/model, servedName: m}
  engine: {runtime: Simulator, replicas: 2, args: [--speed=20]}
  scheduling: {replicaPolicy: DLPM}
---
apiVersion: evenkeel.dev/v1alpha1
kind: InferenceTenant
metadata: {name: ads}
spec:
  weight: 4
  clients: [{name: chat}]
  apiKeys: [{name: k, client: chat, secretRef: {name: keys, key: chat}}]
---
apiVersion: v1
kind: Secret
metadata: {name: keys}
stringData: {chat: sk-chat}
"""


class Up:
    """One `evenkeel up`: its output, its ports and its processes."""

    def __init__(self, folder: Path, *arguments: str, log: str = "up.log") -> None:
        self.folder = folder
        self.file = folder / "fleet.yaml"
        if not self.file.exists():
            self.file.write_text(FILE)
        self.log = folder / log
        command = "from evenkeel_cli.main import main; main()"
        with self.log.open("wb") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-c", command, "up", str(self.file), "--port=0", *arguments],
                cwd=folder,
                stdout=output,
                stderr=output,
                stdin=subprocess.DEVNULL,
            )

    @property
    def output(self) -> str:
        return self.log.read_text()

    def until(self, condition: Callable[[], object]) -> None:
        deadline_s = time.monotonic() + DEADLINE_S
        while not condition():
            assert self.process.poll() is None, f"it ended:\n{self.output}"
            assert time.monotonic() < deadline_s, f"it took too long:\n{self.output}"
            time.sleep(0.02)

    def until_reported(self, text: str, times: int = 1) -> None:
        self.until(lambda: self.output.count(text) >= times)

    def until_ready(self) -> None:
        self.until_reported("Try it:")

    @property
    def url(self) -> str:
        return self._found(r"router  (http://\S+)/v1")

    @property
    def admin_url(self) -> str:
        return self._found(r"evenkeel top --url (http://\S+)")

    def _found(self, pattern: str) -> str:
        found = re.search(pattern, self.output)
        assert found is not None, self.output
        return found[1]

    def state(self) -> RouterState:
        return decode_state(httpx.get(self.admin_url + STATE_PATH, trust_env=False).content)

    def pids(self) -> dict[str, int]:
        """The recorded processes of the fleet."""
        (file,) = (self.folder / ".evenkeel").glob("*/state.json")
        record = msgspec.json.decode(file.read_bytes(), type=FleetRecord)
        return {process.name: process.pid for process in record.processes}

    def edit(self, old: str, new: str) -> None:
        text = self.file.read_text()
        assert old in text
        self.file.write_text(text.replace(old, new))

    def ask(self, *, url: str | None = None, **changes: object) -> httpx.Response:
        return httpx.post(
            f"{url or self.url}/v1/chat/completions",
            json={
                "model": "m",
                "messages": [{"role": "user", "content": "hello"}],
                "max_tokens": 4,
                **changes,
            },
            headers={"Authorization": "Bearer sk-chat"},
            timeout=DEADLINE_S,
            trust_env=False,
        )

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Send a signal and wait for the end; the exit status."""
        self.process.send_signal(number)
        return self.process.wait(DEADLINE_S)
