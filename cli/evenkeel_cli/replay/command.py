"""The command `evenkeel replay`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import typer
from evenkeel_simulator.traffic.summary import summarise
from evenkeel_simulator.traffic.traces import TraceError
from evenkeel_simulator.traffic.workload import Client, Program
from msgspec import structs
from rich.console import Console
from rich.progress import MofNCompleteColumn, TextColumn

from evenkeel_cli.commands import command_of
from evenkeel_cli.exitcode import ExitCode
from evenkeel_cli.output import make_output_folder, print_error, print_json, report_console, working
from evenkeel_cli.progress import progress_bar
from evenkeel_cli.replay.clients import (
    ClientsError,
    Headers,
    assign_keys,
    headers_by_key,
    headers_by_name,
    read_keys,
    read_weights,
)
from evenkeel_cli.replay.idle import idle_total_s
from evenkeel_cli.replay.report import ReplayReport, make_report, table_of, write_report
from evenkeel_cli.replay.run import Outcome, Replay
from evenkeel_cli.replay.sender import (
    UNAUTHENTICATED,
    Sender,
    SenderError,
    api_root,
    credentials_hint,
    open_session,
    served_model,
)
from evenkeel_cli.trace_options import Speed, UsageError, option, read_programs


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayOptions:
    """One field for each option of the command."""

    trace: Annotated[Path, typer.Option(help="Trace file: CSV or Mooncake JSONL, plain or gzip.")]
    url: Annotated[str, typer.Option(help="Address of the endpoint.")] = "http://127.0.0.1:8080"
    speed: Speed = 1.0
    clients: Annotated[
        str | None, option("hash:N assigns the sessions of the trace to N clients.")
    ] = None
    api_keys: Annotated[
        Path | None,
        option(
            "Client → API key: a YAML or JSON mapping, or a file for evenkeel up, whose weights the verdict then uses."
        ),
    ] = None
    client_header: Annotated[
        str | None,
        option("Send the client's name in a header: `NAME`, or `NAME: tenant/{client}`."),
    ] = None
    model: Annotated[
        str | None, option("Name of the model. Default: the first one of the endpoint.")
    ] = None
    limit: Annotated[int, typer.Option(min=0, help="Send only the first N requests; 0: all.")] = 0
    max_concurrency: Annotated[
        int, typer.Option(min=0, help="Maximum number of requests in flight; 0: no limit.")
    ] = 0
    force_length: Annotated[
        bool,
        typer.Option(help="Request exactly the output length of the trace (`ignore_eos`)."),
    ] = True
    out: Annotated[Path | None, option("JSON file for the results.")] = None
    seed: Annotated[
        int,
        typer.Option(
            help="Random seed of texts and of hash:N. A repeated seed finds its texts in the caches."
        ),
    ] = 0
    json: Annotated[bool, typer.Option("--json", help="Print the results as JSON.")] = False


def _command(options: ReplayOptions) -> None:
    """Send a trace to an OpenAI endpoint, and report per client."""
    out = options.out
    try:
        with working("reading the trace"):
            work = read_programs(
                options.trace,
                clients=options.clients,
                speed=options.speed,
                seed=options.seed,
                limit=options.limit,
            )
        options = replace(options, url=api_root(options.url))
        headers, weighted = _identities(work, options.api_keys, options.client_header)
    except (TraceError, ClientsError, SenderError, UsageError) as error:
        print_error(error)
        raise typer.Exit(ExitCode.INVALID) from error
    try:
        if out is not None:
            make_output_folder(out.parent)
        status = asyncio.run(_replay(options, headers, work, weighted))
    except SenderError as error:
        print_error(error)
        raise typer.Exit(ExitCode.FAILED) from error
    except OSError as error:
        print_error(f"--out {out}: {error.strerror}")
        raise typer.Exit(ExitCode.FAILED) from error
    raise typer.Exit(status)


replay = command_of(_command, ReplayOptions)


def _identities(
    work: Sequence[Program], api_keys: Path | None, client_header: str | None
) -> tuple[Headers, Mapping[str, Client]]:
    """The headers of each client, and the tenants and weights that are known."""
    if api_keys is not None and client_header is not None:
        raise UsageError("use --api-keys or --client-header, not both")
    if client_header is not None:
        return headers_by_name(client_header), {}
    if api_keys is not None:
        keys = read_keys(api_keys)
        assigned = assign_keys((program.client for program in work), keys)
        for client, name in assigned.items():
            if client != name:  # the user cannot know this from the trace
                Console(stderr=True).print(
                    f"client {client} uses the API key of {name}", highlight=False
                )
        return headers_by_key(assigned, keys), read_weights(api_keys, assigned)
    return lambda _: {}, {}  # no client is identified


async def _replay(
    options: ReplayOptions,
    headers_of: Headers,
    work: Sequence[Program],
    clients: Mapping[str, Client],
) -> int:
    """Send, report and write; the exit code: INTERRUPTED after an interrupt, FAILED if no request succeeded."""
    loop = asyncio.get_running_loop()
    interrupted = False
    async with open_session() as session:
        headers = headers_of(work[0].client)
        model = options.model or await served_model(session, options.url, headers)
        idle_before_s = await idle_total_s(session, options.url)
        began_s = loop.time()
        sender = Sender(
            url=options.url,
            model=model,
            session=session,
            now=lambda: loop.time() - began_s,
            headers_of=headers_of,
            force_length=options.force_length,
        )
        with _progress(len(work)) as note:
            run = Replay(
                send=sender.send,
                now=sender.now,
                max_concurrency=options.max_concurrency,
                seed=options.seed,
                on_outcome=lambda outcome: note(outcome, run.in_flight),
            )
            try:
                await run.run(work)
            except asyncio.CancelledError:  # Ctrl-C: report the results so far
                interrupted = True
        elapsed_s, idle_s = sender.now(), await idle_total_s(session, options.url)
        with working("computing the results"):
            records = [outcome.record() for outcome in run.outcomes]
            summary = summarise(records, elapsed_s, clients=clients)
            if idle_s is not None and idle_before_s is not None:
                summary = structs.replace(summary, idle_s=max(0.0, idle_s - idle_before_s))
            report = make_report(
                run.outcomes,
                summary=summary,
                url=options.url,
                model=model,
                trace=options.trace.name,
                speed=options.speed,
                max_concurrency=options.max_concurrency,
                interrupted=interrupted,
            )
    if options.out is not None:
        write_report(report, options.out)
    if options.json:
        print_json(report)
    else:
        _print(report, run.outcomes, named=bool(headers), out=options.out)
    if interrupted:
        return ExitCode.INTERRUPTED
    succeeded = any(outcome.answer.error is None for outcome in run.outcomes)
    return ExitCode.OK if succeeded else ExitCode.FAILED


def _print(
    report: ReplayReport, outcomes: Sequence[Outcome], *, named: bool, out: Path | None
) -> None:
    """Print the table and a remedy for refused keys. `named`: requests identified their client."""
    console = report_console()
    console.print(table_of(report, outcomes), highlight=False)
    if str(UNAUTHENTICATED) in report.errors:
        console.print(credentials_hint(named=named), highlight=False, soft_wrap=True)
    if out is not None:
        console.print(f"written to {out}", highlight=False)


@contextmanager
def _progress(total: int) -> Iterator[Callable[[Outcome, int], None]]:
    """A progress bar; call the yielded function with every outcome and the number of requests in flight."""
    failed = 0
    with progress_bar("replaying", MofNCompleteColumn(), TextColumn("{task.description}")) as bar:
        task = bar.add_task("", total=total)

        def note(outcome: Outcome, in_flight: int) -> None:
            nonlocal failed
            failed += outcome.answer.error is not None
            words = f"{in_flight} in flight" + (f", {failed} failed" if failed else "")
            bar.update(task, advance=1, description=words)

        yield note
