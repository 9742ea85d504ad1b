"""The verb `replay`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from evenkeel_simulator.experiments.traces import (
    TraceError,
    hash_clients,
    named_clients,
    programs,
    read_trace,
)
from evenkeel_simulator.experiments.workload import Program
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from evenkeel_cli.outfolder import make_sure_of
from evenkeel_cli.replay.clients import (
    ClientsError,
    Headers,
    assign_keys,
    headers_by_key,
    headers_by_name,
    no_headers,
    read_keys,
)
from evenkeel_cli.replay.report import make_report, table_of, write_report
from evenkeel_cli.replay.run import Outcome, Run
from evenkeel_cli.replay.sender import (
    UNAUTHENTICATED,
    Sender,
    SenderError,
    api_root,
    credentials_hint,
    open_session,
    served_model,
)
from evenkeel_cli.screen import report_console


class UsageError(ValueError):
    """Options that do not go together."""


def _option(text: str) -> Any:
    """An option whose default says nothing."""
    return typer.Option(help=text, show_default=False)


Trace = Annotated[Path, typer.Option(help="CSV or Mooncake JSONL, plain or gzip.")]
Url = Annotated[str, typer.Option(help="Where to send.")]
Speed = Annotated[float, typer.Option(help="1: at the trace's own timing; 2: in half the time.")]
Clients = Annotated[str | None, _option("hash:N spreads the trace's sessions over N clients.")]
ApiKeys = Annotated[
    Path | None, _option("Client → API key as a YAML or JSON mapping, or an Evenkeel file.")
]
ClientHeader = Annotated[
    str | None,
    _option("Send the client's name in a header: `NAME`, or `NAME: tenant/{client}`."),
]
Model = Annotated[str | None, _option("Default: the first that is served.")]
Limit = Annotated[int, typer.Option(min=0, help="Only the first N requests; 0: all.")]
MaxConcurrency = Annotated[
    int, typer.Option(min=0, help="Requests in flight at most; 0: as the trace wants.")
]
ForceLength = Annotated[
    bool, typer.Option(help="Answers as long as the trace says, by `ignore_eos`.")
]
Out = Annotated[Path | None, _option("JSON file for the figures.")]
Seed = Annotated[
    int,
    typer.Option(
        help="Of the texts, and of hash:N. The same seed again meets a cache that is warm."
    ),
]


def replay(  # noqa: PLR0913, PLR0917  (one parameter per option)
    trace: Trace,
    url: Url = "http://127.0.0.1:8080",
    speed: Speed = 1.0,
    clients: Clients = None,
    api_keys: ApiKeys = None,
    client_header: ClientHeader = None,
    model: Model = None,
    limit: Limit = 0,
    max_concurrency: MaxConcurrency = 0,
    force_length: ForceLength = True,
    out: Out = None,
    seed: Seed = 0,
) -> None:
    """Send a trace to an OpenAI endpoint, and report per client."""
    errors = Console(stderr=True)
    try:
        work = _programs(trace, clients, speed, limit, seed)
        plan = _Plan(
            trace=trace,
            url=api_root(url),
            speed=speed,
            model=model,
            headers=_headers(work, api_keys, client_header),
            max_concurrency=max_concurrency,
            seed=seed,
            force_length=force_length,
            out=out,
        )
    except (TraceError, ClientsError, SenderError, UsageError) as error:
        errors.print(f"[red]error[/]: {escape(str(error))}", highlight=False, soft_wrap=True)
        raise typer.Exit(2) from error
    try:
        if out is not None:
            make_sure_of(out.parent)
        status = asyncio.run(_replay(plan, work, report_console()))
    except SenderError as error:
        errors.print(f"[red]error[/]: {escape(str(error))}", highlight=False, soft_wrap=True)
        raise typer.Exit(1) from error
    except OSError as error:
        errors.print(f"[red]error[/]: --out {out}: {error.strerror}", highlight=False)
        raise typer.Exit(1) from error
    raise typer.Exit(status)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Plan:
    trace: Path
    url: str
    speed: float
    model: str | None
    headers: Headers
    max_concurrency: int
    seed: int
    force_length: bool
    out: Path | None


def _programs(
    trace: Path, clients: str | None, speed: float, limit: int, seed: int
) -> Sequence[Program]:
    if not 0 < speed < float("inf"):
        raise UsageError(f"--speed is {speed}, must be above 0")
    client_of = named_clients(trace)
    if clients is not None:
        kind, _, number = clients.partition(":")
        if kind != "hash" or not number.isdecimal() or int(number) < 1:
            raise UsageError(f"--clients is {clients!r}, must be hash:N with N at least 1")
        client_of = hash_clients(int(number), seed=seed)
    rows = read_trace(trace)
    return programs(rows[:limit] if limit else rows, client_of, speed=speed)


def _headers(work: Sequence[Program], api_keys: Path | None, client_header: str | None) -> Headers:
    if api_keys is not None and client_header is not None:
        raise UsageError("give --api-keys or --client-header, not both")
    if client_header is not None:
        return headers_by_name(client_header)
    if api_keys is not None:
        keys = read_keys(api_keys)
        assigned = assign_keys((program.client for program in work), keys)
        for client, name in assigned.items():
            if client != name:  # not what the trace says, so the reader should know
                Console(stderr=True).print(f"client {client} is sent as {name}", highlight=False)
        return headers_by_key(assigned, keys)
    return no_headers


async def _replay(plan: _Plan, work: Sequence[Program], console: Console) -> int:
    """Send, report, write; the exit status: 130 if it was interrupted, 1 if no request succeeded."""
    loop = asyncio.get_running_loop()
    interrupted = False
    async with open_session() as session:
        headers = plan.headers(work[0].client)
        model = plan.model or await served_model(session, plan.url, headers)
        began_s = loop.time()
        sender = Sender(
            url=plan.url,
            model=model,
            session=session,
            now=lambda: loop.time() - began_s,
            headers_of=plan.headers,
            force_length=plan.force_length,
        )
        with _progress(len(work)) as note:
            run = Run(
                send=sender.send,
                now=sender.now,
                max_concurrency=plan.max_concurrency,
                seed=plan.seed,
                on_outcome=lambda outcome: note(outcome, run.in_flight),
            )
            try:
                await run.run(work)
            except asyncio.CancelledError:  # Ctrl-C: report what there is
                interrupted = True
        report = make_report(
            run.outcomes,
            elapsed_s=sender.now(),
            url=plan.url,
            model=model,
            trace=plan.trace.name,
            speed=plan.speed,
            interrupted=interrupted,
        )
    console.print(table_of(report, run.outcomes), highlight=False)
    if str(UNAUTHENTICATED) in report.errors:
        console.print(credentials_hint(named=bool(headers)), highlight=False, soft_wrap=True)
    if plan.out is not None:
        write_report(report, plan.out)
        console.print(f"written to {plan.out}", highlight=False)
    if interrupted:
        return 130
    return 0 if any(outcome.answer.error is None for outcome in run.outcomes) else 1


@contextmanager
def _progress(total: int) -> Iterator[Callable[[Outcome, int], None]]:
    """A bar; call what it yields with every outcome and the number still in flight."""
    columns = (
        TextColumn("[bold]replaying"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.description}"),
        TimeElapsedColumn(),
    )
    failed = 0
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=total)

        def note(outcome: Outcome, in_flight: int) -> None:
            nonlocal failed
            failed += outcome.answer.error is not None
            words = f"{in_flight} in flight" + (f", {failed} failed" if failed else "")
            bar.update(task, advance=1, description=words)

        yield note
