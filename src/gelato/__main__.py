"""The entry of the command `gelato`, which `python -m gelato` is too."""

import os
import signal
import sys

_INTERRUPTED, _TERMINATED = 128 + signal.SIGINT, 128 + signal.SIGTERM


def run() -> None:
    """Run the command line; an interrupt while it is still being imported ends as quietly as one later."""
    try:
        from gelato.cli import main

        main()
    except KeyboardInterrupt:
        _leave(_INTERRUPTED)
    except SystemExit as end:
        if end.code not in (_INTERRUPTED, _TERMINATED):
            raise
        _leave(int(end.code))


def _leave(code: int) -> None:
    """End at once: all is closed, and a program that is still being compiled would crash the orderly way out."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    run()
