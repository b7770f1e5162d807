"""The command line: `gelato GROUP COMMAND`, with one module per group.

Commands import what they need when they run, so that `--help` answers quickly.
"""

import errno
import sys
from collections.abc import Sequence
from importlib.metadata import version

from gelato.cli.data import data
from gelato.cli.figure import figure
from gelato.cli.model import model
from gelato.cli.parsing import Commands
from gelato.cli.plugins import load_plugins
from gelato.cli.policy import evaluate, export, methods, settings, table, train
from gelato.cli.selection import select
from gelato.cli.uncertainty import trust, uncertainty
from gelato.errors import InputError
from gelato.progress import say
from gelato.runs.signals import exit_code, remember_interrupts

_DESCRIPTION = """Offline reinforcement learning that knows where its model can be trusted.

Start with `gelato data list`, then `gelato data info four-rooms`. `gelato --version` prints the
version."""

app = Commands()
app.command(data, name="data", help="See, make and import logged transitions.")
app.command(model, name="model", help="Fit the latent model of dynamics and see how good it is.")
app.command(name="uncertainty")(uncertainty)
app.command(name="trust")(trust)
app.command(name="train")(train)
app.command(name="methods")(methods)
app.command(name="settings")(settings)
app.command(name="select")(select)
app.command(name="evaluate")(evaluate)
app.command(name="table")(table)
app.command(name="export")(export)
app.command(name="figure")(figure)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a command. Bad input prints one line on standard error and exits with code 2."""
    remember_interrupts()
    if (sys.argv[1:] if arguments is None else list(arguments)) == ["--version"]:
        sys.stdout.write(f"{version('gelato-rl')}\n")
        return
    try:
        load_plugins()
        app.parse(arguments, program="gelato", description=_DESCRIPTION)()
    except InputError as error:
        _fail(str(error), 2)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            _fail(
                "the disk is full; the file being written was removed. Free space and repeat",
                2,
            )
        if isinstance(error, BrokenPipeError):
            sys.exit(1)
        _fail(f"{error.filename or 'system'}: {error.strerror or error}", 2)
    except MemoryError:
        _fail("not enough memory for data of that size; use fewer transitions", 2)
    except RuntimeError as error:
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise
        _fail(
            "the device ran out of memory; the last checkpoint is kept. Use fewer --seeds, train "
            "fewer methods together, or use --preset small",
            2,
        )
    except KeyboardInterrupt:
        _fail(
            "interrupted; finished work is kept, and no half-written file is left",
            exit_code(),
        )


def _fail(message: str, code: int) -> None:
    say(f"gelato: {message}")
    sys.exit(code)
