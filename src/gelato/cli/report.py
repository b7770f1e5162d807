"""`gelato report`: one page that shows what a run learned and whether its policy is safe."""

from pathlib import Path

from tyro.conf import Positional

from gelato.cli.arguments import MovedData, OptionalRef, Trainings
from gelato.cli.output import print_json
from gelato.progress import note


def report(
    runs: Positional[Trainings],
    data: OptionalRef = None,
    out: Path | None = None,
    log: tuple[str, ...] = (),
    json: bool = False,
    fitted_to: MovedData = None,
) -> None:
    """Write a page about a run: verdict, data, model, map, policies and trust.

    The page is one file that needs no network. A file of the same name that ends in .json has the
    same content. With several runs the page compares them. An unfinished run gets a page that says
    what is missing.

    Args:
        runs: Folders of `gelato train` or `gelato model fit`.
        data: A new log: the page judges it and draws it on the map.
        out: File to write. Default: report.html in the folder of the first run.
        log: Experiment trackers that also receive the page: wandb, mlflow. They add it to the run
            that tracks the training. TensorBoard stores no files.
        json: Also print the content as one JSON object.
    """
    from gelato.data.reference import load
    from gelato.report.page.write import make_report

    new_log = None if data is None else load(data)
    path, records = make_report(runs, out, data=new_log, fitted_to=fitted_to, log=log)
    if json:
        print_json(records)
    note(f"{path} written; open it in a browser")
