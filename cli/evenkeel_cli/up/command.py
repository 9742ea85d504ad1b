"""The command `evenkeel up`."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from evenkeel_contract.names import ADMIN_PORT, PROBE_PORT, TRAFFIC_PORT
from evenkeel_contract.routerconfig import ListenConfig
from rich.console import Console

import evenkeel_cli
from evenkeel_cli.commands import command_of
from evenkeel_cli.exitcode import ExitCode
from evenkeel_cli.output import print_error
from evenkeel_cli.tracing import traces_to
from evenkeel_cli.up.engines import DEFAULT_ENVIRONMENT, VLLM_ENVIRONMENT, Engines
from evenkeel_cli.up.record import DEFAULT_ROOT
from evenkeel_cli.up.run import Run

EXAMPLE: Final = "quickstart.yaml"


def _port(text: str) -> Any:
    return typer.Option(min=0, max=65535, help=text)


@dataclass(frozen=True, slots=True)
class Given:
    """The options and the argument of the command."""

    file: Annotated[
        Path | None,
        typer.Argument(
            show_default=False,
            help="YAML file with a FairInferenceService, or several and a FairInferenceGateway, and tenants. Default: an example, copied to "
            f"{EXAMPLE} if there is no such file.",
        ),
    ] = None
    port: Annotated[int, _port("Port for requests of clients; 0: any free port.")] = TRAFFIC_PORT
    probe_port: Annotated[
        int | None,
        _port(f"Port for probes and metrics. Default: --port + 1 ({PROBE_PORT})."),
    ] = None
    admin_port: Annotated[
        int | None, _port(f"Port for `evenkeel top`. Default: --probe-port + 1 ({ADMIN_PORT}).")
    ] = None
    state_dir: Annotated[
        Path, typer.Option(help="Folder for logs and the record of processes.")
    ] = DEFAULT_ROOT
    sglang: Annotated[
        Path,
        typer.Option(
            envvar="EVENKEEL_SGLANG",
            help="Runtime SGLang: its virtual environment, or the Python in it.",
        ),
    ] = DEFAULT_ENVIRONMENT
    vllm: Annotated[
        Path,
        typer.Option(
            envvar="EVENKEEL_VLLM",
            help="Runtime VLLM: its virtual environment, or the Python in it.",
        ),
    ] = VLLM_ENVIRONMENT
    model: Annotated[
        Path | None,
        typer.Option(
            help="Runtimes SGLang and VLLM: folder of a model, instead of spec.model.source."
        ),
    ] = None
    tracing: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="Send a trace of every request to the collector at URL (OTLP over HTTP), instead of "
            "spec.router.tracing.",
        ),
    ] = None


def _command(given: Given) -> None:
    """Run the fleet of a file as local processes, and apply edits.

    A process that ends is restarted. Edits are applied when the file is saved. Ctrl-C stops all processes
    in order.
    """
    port, probe_port, admin_port = given.port, given.probe_port, given.admin_port
    probe = (port + 1 if port else 0) if probe_port is None else probe_port
    admin = (probe + 1 if probe else 0) if admin_port is None else admin_port
    listen = ListenConfig(traffic_port=port, probe_port=probe, admin_port=admin)
    engines = Engines(environment=given.sglang, vllm=given.vllm, model=given.model)
    console = Console()
    run = Run(
        path=given.file if given.file is not None else _example(console),
        listen=listen,
        engines=engines,
        tracing=traces_to(given.tracing),
        state_root=given.state_dir,
        console=console,
    )
    raise typer.Exit(run.up())


up = command_of(_command, Given)


def _example(console: Console) -> Path:
    """The example in the current folder, where it can be edited while it runs."""
    file = Path(EXAMPLE)
    if not file.exists():
        try:
            shutil.copyfile(example_file(), file)
        except OSError as error:
            print_error(f"{file.absolute()}: {error.strerror}; change to a folder of yours")
            raise typer.Exit(ExitCode.FAILED) from error
        console.print(f"copied an example to {file}: edit it while the fleet runs", highlight=False)
    return file


def example_file() -> Path:
    """The example that is shipped: in the installed package, or else in the source tree."""
    package = Path(evenkeel_cli.__file__).parent
    installed = package / EXAMPLE
    return installed if installed.exists() else package.parents[1] / "examples" / EXAMPLE
