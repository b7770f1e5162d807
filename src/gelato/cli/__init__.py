"""The command line: `gelato GROUP COMMAND`, with one module per group.

Commands import what they need when they run, so that `--help` answers quickly.
"""

import errno
import sys
import traceback
from collections.abc import Sequence
from importlib.metadata import version

from gelato.cli.parsing import Commands
from gelato.errors import InputError, UserCodeError
from gelato.plugins import load_plugins
from gelato.progress import say
from gelato.runs.signals import exit_code, remember_interrupts

_DESCRIPTION = """Offline reinforcement learning that knows where its model can be trusted.

Start with `gelato data info file:log.npz` for your own log, or with `gelato data list` for named
datasets. `gelato --version` prints the version."""


def build_app(*, brief: bool = False) -> Commands:
    """Collect the commands; with `brief`, their help is one sentence each.

    The help lists what plugins registered, so load the plugins first.
    """
    from gelato.cli.data import data
    from gelato.cli.figure import run_figure
    from gelato.cli.model import model
    from gelato.cli.policy import methods, run_training, settings
    from gelato.cli.report import report
    from gelato.cli.results import compare, evaluate, export
    from gelato.cli.selection import run_selection
    from gelato.cli.sweep import sweep
    from gelato.cli.trust import trust
    from gelato.cli.uncertainty import uncertainty

    app = Commands()
    app.command(data, name="data", help="List, generate, summarise and import datasets.")
    app.command(model, name="model", help="Fit the latent dynamics model and measure its accuracy.")
    commands = {
        "uncertainty": uncertainty,
        "trust": trust,
        "train": run_training,
        "sweep": sweep,
        "methods": methods,
        "settings": settings,
        "select": run_selection,
        "evaluate": evaluate,
        "table": compare,
        "export": export,
        "figure": run_figure,
        "report": report,
    }
    for name, command in commands.items():
        summary = (command.__doc__ or "").partition("\n")[0]
        app.command(command, name=name, help=summary if brief else None)
    return app


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a command. Bad input prints one line on standard error and exits with code 2."""
    remember_interrupts()
    given = sys.argv[1:] if arguments is None else list(arguments)
    if given == ["--version"]:
        sys.stdout.write(f"{version('gelato-rl')}\n")
        return
    try:
        load_plugins()
        app = build_app(brief=not given or given[0].startswith("-"))
        app.parse(given, program="gelato", description=_DESCRIPTION)()
    except UserCodeError as error:
        traceback.print_exception(error.__cause__)
        _fail(str(error), 2)
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
        _fail("not enough memory for this dataset; use fewer transitions", 2)
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
            "interrupted; finished work is saved. Repeat the command to continue",
            exit_code(),
        )


def _fail(message: str, code: int) -> None:
    say(f"gelato: {message}")
    sys.exit(code)
