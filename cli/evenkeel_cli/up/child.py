"""The entry point of every process of the fleet: it runs a module, and ends when `evenkeel up` ends.

    python -m evenkeel_cli.up.child PIPE RUN MODULE [ARGUMENT …]

PIPE is the reading end of a pipe. Only `evenkeel up` has the writing end. When `evenkeel up` ends, even by
`kill -9`, the kernel closes that end, and this process sends itself SIGTERM. This works on every Unix; Linux's
PR_SET_PDEATHSIG would fire when the *thread* that forked ends. RUN is the id of the run. It is in the command
line, so that a later run can distinguish a leftover process from another one with the same process id. This file
imports nothing else of the package: the interpreter may be SGLang's, which lacks the rest.
"""

from __future__ import annotations

import os
import runpy
import signal
import sys
import threading
from typing import Final

GRACE_S: Final = 10.0  # to finish requests; afterwards the process kills itself


def main() -> None:
    """Run the module as `python -m MODULE` would."""
    pipe, _run, module, *arguments = sys.argv[1:]
    watcher = threading.Thread(target=_end_with, args=(int(pipe),), daemon=True)
    watcher.start()
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def _end_with(pipe: int) -> None:
    while os.read(pipe, 1):  # nothing is ever written; an empty read means a closed pipe
        pass
    os.kill(os.getpid(), signal.SIGTERM)
    threading.Event().wait(GRACE_S)
    if os.getpgrp() == os.getpid():  # made a group leader by the launcher: kill its children too
        os.killpg(os.getpid(), signal.SIGKILL)
    os._exit(1)


if __name__ == "__main__":
    main()
