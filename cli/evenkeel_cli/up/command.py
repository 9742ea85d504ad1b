"""The verb `up`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from evenkeel_contract.names import ADMIN_PORT, PROBE_PORT, TRAFFIC_PORT
from evenkeel_contract.routerconfig import ListenConfig
from rich.console import Console

from evenkeel_cli.up.run import up as run_up
from evenkeel_cli.up.sglang import DEFAULT_ENVIRONMENT, Engines


def up(
    file: Annotated[
        Path, typer.Argument(help="YAML with one FairInferenceService and its tenants.")
    ],
    port: Annotated[
        int,
        typer.Option(min=0, max=65535, help="Where clients send requests; 0: any that is free."),
    ] = TRAFFIC_PORT,
    probe_port: Annotated[
        int | None,
        typer.Option(
            min=0, max=65535, help=f"Probes and metrics. Default: {PROBE_PORT}, or after --port."
        ),
    ] = None,
    admin_port: Annotated[
        int | None,
        typer.Option(
            min=0, max=65535, help=f"For `top`. Default: {ADMIN_PORT}, or after --probe-port."
        ),
    ] = None,
    state_dir: Annotated[Path, typer.Option(help="Logs, and what runs.")] = Path(".evenkeel"),
    sglang: Annotated[
        Path,
        typer.Option(
            envvar="EVENKEEL_SGLANG",
            help="For runtime SGLang: the virtual environment that has it, or its python.",
        ),
    ] = DEFAULT_ENVIRONMENT,
    model: Annotated[
        Path | None,
        typer.Option(help="For runtime SGLang: a model's folder, in place of spec.model.source."),
    ] = None,
) -> None:
    """Run a file's fleet on this machine, and follow the file.

    Replicas and a router run as processes of this machine. They are watched and started again; edits of the
    file are applied as they are saved; Ctrl-C stops all of it in order.
    """
    probe = (port + 1 if port else 0) if probe_port is None else probe_port
    admin = (probe + 1 if probe else 0) if admin_port is None else admin_port
    listen = ListenConfig(traffic_port=port, probe_port=probe, admin_port=admin)
    engines = Engines(environment=sglang, model=model)
    raise typer.Exit(
        run_up(file, listen=listen, engines=engines, state_root=state_dir, console=Console())
    )
