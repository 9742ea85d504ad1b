"""The command `evenkeel up`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from evenkeel_contract.names import ADMIN_PORT, PROBE_PORT, TRAFFIC_PORT
from evenkeel_contract.routerconfig import ListenConfig
from rich.console import Console

from evenkeel_cli.up.run import up as run_up
from evenkeel_cli.up.sglang import DEFAULT_ENVIRONMENT, Engines


def _port(text: str) -> Any:
    return typer.Option(min=0, max=65535, help=text)


def up(
    file: Annotated[
        Path, typer.Argument(help="YAML file with one FairInferenceService and its tenants.")
    ],
    port: Annotated[int, _port("Port for requests of clients; 0: any free port.")] = TRAFFIC_PORT,
    probe_port: Annotated[
        int | None,
        _port(f"Port for probes and metrics. Default: --port + 1 ({PROBE_PORT})."),
    ] = None,
    admin_port: Annotated[
        int | None, _port(f"Port for `evenkeel top`. Default: --probe-port + 1 ({ADMIN_PORT}).")
    ] = None,
    state_dir: Annotated[
        Path, typer.Option(help="Folder for logs and the record of processes.")
    ] = Path(".evenkeel"),
    sglang: Annotated[
        Path,
        typer.Option(
            envvar="EVENKEEL_SGLANG",
            help="Runtime SGLang: its virtual environment, or the Python in it.",
        ),
    ] = DEFAULT_ENVIRONMENT,
    model: Annotated[
        Path | None,
        typer.Option(help="Runtime SGLang: folder of a model, instead of spec.model.source."),
    ] = None,
) -> None:
    """Run the fleet of a file as local processes, and apply edits.

    A process that ends is restarted. Edits are applied when the file is saved. Ctrl-C stops all processes
    in order.
    """
    probe = (port + 1 if port else 0) if probe_port is None else probe_port
    admin = (probe + 1 if probe else 0) if admin_port is None else admin_port
    listen = ListenConfig(traffic_port=port, probe_port=probe, admin_port=admin)
    engines = Engines(environment=sglang, model=model)
    raise typer.Exit(
        run_up(file, listen=listen, engines=engines, state_root=state_dir, console=Console())
    )
