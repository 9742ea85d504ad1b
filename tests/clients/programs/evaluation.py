"""lm-eval: log likelihoods of choices, which it reads from an echo of the prompt. They are those that a replica gives without a router."""

from __future__ import annotations

import json
import math
import re
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from tests.clients.fleet import MODEL
from tests.clients.programs.check import LIMIT_S, Found, Place, Program

TASK: Final = """
task: seas
dataset_path: json
dataset_kwargs: {{data_files: {{test: {documents}}}}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{{{question}}}}"
doc_to_choice: "{{{{choices}}}}"
doc_to_target: answer
metric_list: [{{metric: acc, aggregation: mean, higher_is_better: true}}]
"""
CHOICES: Final = ("the Baltic", "the Alps", "the Sahara")
QUESTIONS: Final = 8
_TOKENIZER: Final = Path(__file__).with_name("byte_tokenizer.py")
_REPLICA: Final = re.compile(r"replica-0: ready at (\S+)")


def _lm_eval(place: Place) -> Iterator[Found]:
    name = f"lm-eval {place.programs.version('lm_eval')}"
    _write_task(place.folder)
    tokenizer = place.model
    if tokenizer is None:
        tokenizer = place.folder / "tokenizer"
        _run(place, "python", (str(_TOKENIZER), str(tokenizer)))
    [replica] = _REPLICA.findall(place.fleet.output)
    likelihoods = {
        which: _samples(place, url, tokenizer)
        for which, url in (("router", place.fleet.url), ("replica", replica))
    }
    through = likelihoods["router"]
    yield Found(
        program=name,
        check="local-completions, loglikelihood: those of the replica",
        passed=len(set(through)) > QUESTIONS
        and all(_same(*pair) for pair in zip(through, likelihoods["replica"], strict=True)),
        figure=f"{len(through)} choices, from {min(through):.2f} to {max(through):.2f}",
    )


def _same(one: float, other: float) -> bool:
    """Whether two values are those of one prompt: an engine rounds by what else is in the batch."""
    return math.isclose(one, other, rel_tol=1e-3)


def _write_task(folder: Path) -> None:
    documents = folder / "seas.jsonl"
    documents.write_text(
        "".join(
            json.dumps({"question": f"Sea {n}: which is one?", "choices": CHOICES, "answer": 0})
            + "\n"
            for n in range(QUESTIONS)
        )
    )
    (folder / "seas.yaml").write_text(TASK.format(documents=documents))


def _samples(place: Place, url: str, tokenizer: Path) -> list[float]:
    """The log likelihood of every choice of every question."""
    out = place.folder / f"out-{url.rpartition(':')[2]}"
    arguments = {
        "model": MODEL,
        "base_url": f"{url}/v1/completions",
        "tokenizer": tokenizer,
        "tokenizer_backend": "huggingface",
        "num_concurrent": 2,
        "max_length": 2048,
    }
    words = (
        "run", "--model", "local-completions", "--tasks", "seas",
        "--include_path", str(place.folder),
        "--model_args", ",".join(f"{key}={value}" for key, value in arguments.items()),
        "--batch_size", "4", "--output_path", str(out), "--log_samples",
    )  # fmt: skip
    _run(place, "lm_eval", words)
    [samples] = out.glob("**/samples_seas_*.jsonl")
    found: list[Any] = [json.loads(line) for line in samples.read_text().splitlines()]
    found.sort(key=lambda one: one["doc_id"])
    return [float(answer[0][0]) for one in found for answer in one["resps"]]


def _run(place: Place, program: str, words: Sequence[str]) -> None:
    done = subprocess.run(
        [str(place.programs.python(program)), *words],
        env={
            "PATH": "/usr/bin:/bin",
            "HOME": str(place.folder),
            "NO_PROXY": "127.0.0.1",
            "HF_HUB_OFFLINE": "1",
            "HF_DATASETS_OFFLINE": "1",
            "OPENAI_API_KEY": place.key,
        },
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]


PROGRAMS: Final = (Program("lm-eval", _lm_eval, of_engines=True),)
