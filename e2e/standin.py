"""The simulator under the name of SGLang's command: only runtimes with an engine request devices and read the files of a model."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from e2e.installed import Namespace, registry
from e2e.rig.images import TAG

_COMMAND: Final = "launch-server"


def stand_in(team: Namespace, **fields: Any) -> dict[str, Any]:
    """`spec.engine` of such replicas in the namespace, with more fields."""
    script = Path(__file__).with_name("launch_server.py").read_text()
    plain = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": _COMMAND}}
    team.apply({**plain, "data": {"launch_server.py": script}})
    return {
        "runtime": "SGLang",
        "image": f"{registry()}/simulator:{TAG}",
        "template": {
            "spec": {
                "resources": {"requests": {"cpu": "50m", "memory": "128Mi"}},
                "volumes": [{"name": _COMMAND, "configMap": {"name": _COMMAND}}],
                "volumeMounts": [{"name": _COMMAND, "mountPath": "/opt/evenkeel/sglang"}],
            }
        },
        **fields,
    }
