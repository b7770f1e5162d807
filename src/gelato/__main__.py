"""The entry point of `gelato` and of `python -m gelato`."""

import io
import os
import signal
import sys

_INTERRUPTED, _TERMINATED = 128 + signal.SIGINT, 128 + signal.SIGTERM


def run() -> None:
    """Run the command line. Ctrl-C during the imports also exits without a traceback."""
    # Some terminals and log files cannot show every character, such as ±.
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")
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
    """Exit immediately. An orderly exit would crash while a program is still being compiled."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    run()
