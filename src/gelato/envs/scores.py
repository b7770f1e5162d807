"""Reference returns of the benchmark tasks, and the D4RL-normalised score they define."""

# (random, expert) returns, as D4RL fixes them.
REFERENCE_RETURNS = {
    "hopper": (-20.272305, 3234.3),
    "walker2d": (1.629008, 4592.3),
    "halfcheetah": (-280.178953, 12135.0),
}


def task_of(environment: str | None) -> str | None:
    """The benchmark task an environment id or file name belongs to: `Hopper-v5` → `hopper`; None if unknown."""
    name = (environment or "").lower()
    return next((task for task in REFERENCE_RETURNS if task in name), None)


def normalised_score(environment: str | None, mean_return: float) -> float | None:
    """`100 (R − random) / (expert − random)`, or None for an environment without reference returns."""
    task = task_of(environment)
    if task is None:
        return None
    random, expert = REFERENCE_RETURNS[task]
    return 100 * (mean_return - random) / (expert - random)
