"""The entry of the command `gelato`, which `python -m gelato` is too."""

import os
import sys

_INTERRUPTED = 130


def run() -> None:
    """Run the command line; an interrupt while it is still being imported ends as quietly as one later."""
    try:
        from gelato.cli import main

        main()
    except KeyboardInterrupt:
        _leave()
    except SystemExit as end:
        if end.code != _INTERRUPTED:
            raise
        _leave()


def _leave() -> None:
    """End at once: all is closed, and a program that is still being compiled would crash the orderly way out."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(_INTERRUPTED)


if __name__ == "__main__":
    run()
