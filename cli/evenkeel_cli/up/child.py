"""How a process of the fleet begins: it runs a module of ours, and ends when its supervisor does.

    python -m evenkeel_cli.up.child LIFELINE RUN MODULE [ARGUMENT …]

LIFELINE is the reading end of a pipe whose only writing end the supervisor holds. However the supervisor
dies, `kill -9` included, the kernel closes that end, and this process asks itself to terminate. That works on
every Unix; Linux's PR_SET_PDEATHSIG would fire when the *thread* that forked ends. RUN is the supervisor's
run id: it stands in the command line, so that a later run can tell a leftover of ours from a stranger that got
its process id. Of the package, the interpreter needs this file only: it may be SGLang's, which lacks the rest.
"""

from __future__ import annotations

import os
import runpy
import signal
import sys
import threading
from typing import Final

GRACE_S: Final = 10.0  # for work in flight; afterwards nobody is there to see the process end


def main() -> None:
    """Run the module as if it had been started by itself."""
    lifeline, _run, module, *arguments = sys.argv[1:]
    watcher = threading.Thread(target=_end_with, args=(int(lifeline),), daemon=True)
    watcher.start()
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def _end_with(lifeline: int) -> None:
    while os.read(lifeline, 1):  # nothing is ever written; an empty read is the end
        pass
    os.kill(os.getpid(), signal.SIGTERM)
    threading.Event().wait(GRACE_S)
    if os.getpgrp() == os.getpid():  # as the launcher made it: nothing that it started stays either
        os.killpg(os.getpid(), signal.SIGKILL)
    os._exit(1)


if __name__ == "__main__":
    main()
