"""Numbers of the paper: mean returns of Table 1, over five seeds on D4RL v0 data."""

from gelato.runs.records import Record

TASKS = ("hopper", "walker2d", "halfcheetah")
KINDS = ("random", "medium", "medium-expert")
DATASETS = tuple(f"{task}-{kind}" for task in TASKS for kind in KINDS)
RETURNS = {
    "gelato": (685, 1676, 574, 412, 1269, 1515, 2560, 5168, 7989),
    "gelato-l2": (544, 1320, 815, 388, 312, 1255, 512, 4096, 7304),
    "mopo": (677, 1202, 1063, 396, 518, 1296, 4114, 4974, 7594),
    "mbpo": (444, 457, 2105, 251, 370, 222, 3527, 3228, 907),
    "sac": (664, 325, 1850, 120, 27, -2, 3502, -839, -78),
    "bc": (615, 1234, 3907, 47, 193, 329, -41, 4201, 4164),
}
_METHODS = ("gelato", "gelato-l2", "gelato-ensemble", "mopo", "mbpo", "sac", "bc")


def paper_return(dataset: str, method: str) -> int | None:
    """Return the paper's return for a dataset and method, or None if the paper has none."""
    if method not in RETURNS or dataset not in DATASETS:
        return None
    return RETURNS[method][DATASETS.index(dataset)]


def sort_as_paper(records: list[Record]) -> list[Record]:
    """Sort records as in the paper's table; other datasets and methods come last."""

    def place(record: Record) -> tuple[int, int, str, str]:
        dataset, method = str(record["dataset"]), str(record["method"])
        row = DATASETS.index(dataset) if dataset in DATASETS else len(DATASETS)
        column = _METHODS.index(method) if method in _METHODS else len(_METHODS)
        return row, column, dataset, method

    return sorted(records, key=place)
