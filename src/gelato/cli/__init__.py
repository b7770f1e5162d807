"""The command line: `gelato GROUP COMMAND`; a module of this package for each group.

Commands import what they need when they run, so that `--help` answers at once.
"""

import errno
import sys
from collections.abc import Sequence
from importlib.metadata import version

from gelato.cli.bench import bench
from gelato.cli.data import data
from gelato.cli.figure import figure
from gelato.cli.model import model
from gelato.cli.parsing import Commands
from gelato.cli.policy import evaluate, export, table, train
from gelato.cli.uncertainty import trust, uncertainty
from gelato.errors import InputError
from gelato.interrupts import exit_code, remember_interrupts
from gelato.progress import say

_DESCRIPTION = """Offline reinforcement learning that knows where its model can be trusted.

Start with `gelato data list`; then `gelato data info four-rooms`."""

app = Commands()
app.command(data, name="data", help="See, make and import logged transitions.")
app.command(model, name="model", help="Fit the latent model of dynamics and see how good it is.")
app.command(name="uncertainty")(uncertainty)
app.command(name="trust")(trust)
app.command(name="train")(train)
app.command(name="evaluate")(evaluate)
app.command(name="table")(table)
app.command(name="export")(export)
app.command(name="figure", help="Draw a figure of a fitted model's geometry.")(figure)
app.command(bench, name="bench", help="Measure speed and exactness on this machine.")


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a command; bad input ends in one line on standard error and exit code 2."""
    remember_interrupts()
    if (sys.argv[1:] if arguments is None else list(arguments)) == ["--version"]:
        sys.stdout.write(f"{version('gelato-rl')}\n")
        return
    try:
        app.parse(arguments, program="gelato", description=_DESCRIPTION)()
    except InputError as error:
        _fail(str(error), 2)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            _fail("the disk is full; nothing was kept of what was being written. Free some space and run again", 2)
        if isinstance(error, BrokenPipeError):
            sys.exit(1)
        _fail(f"{error.filename or 'system'}: {error.strerror or error}", 2)
    except MemoryError:
        _fail("not enough memory for data of that size; ask for fewer transitions", 2)
    except RuntimeError as error:
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise
        _fail(
            "the device ran out of memory; the last checkpoint is kept. Lower --seeds, train fewer methods at once, or "
            "use --preset small (fewer points to seek neighbours among, fewer imagined steps)",
            2,
        )
    except KeyboardInterrupt:
        _fail("interrupted; what was finished before is kept, nothing half-written is left", exit_code())


def _fail(message: str, code: int) -> None:
    say(f"gelato: {message}")
    sys.exit(code)
