"""The entry of the command `gelato`, which `python -m gelato` is too."""

import sys


def run() -> None:
    """Run the command line; an interrupt while it is still being imported ends as quietly as one later."""
    try:
        from gelato.cli import main

        main()
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    run()
