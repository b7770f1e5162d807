"""Reference returns of the benchmark tasks, and the D4RL-normalised score they define."""

import re

# (random, expert) returns, as D4RL fixes them.
REFERENCE_RETURNS = {
    "hopper": (-20.272305, 3234.3),
    "walker2d": (1.629008, 4592.3),
    "halfcheetah": (-280.178953, 12135.0),
}


def task_of(environment: str | None) -> str | None:
    """The benchmark task an environment id or file name belongs to: `Hopper-v5` → `hopper`; None if unknown.

    Others are called alike and are not the same: `HopperBulletEnv-v0`, `dm_control/hopper-hop-v0`.
    """
    found = re.match(rf"({'|'.join(REFERENCE_RETURNS)})(?![a-z0-9])", (environment or "").lower())
    return found[1] if found else None


def normalised_score(environment: str | None, mean_return: float) -> float | None:
    """`100 (R − random) / (expert − random)`, or None for an environment without reference returns."""
    task = task_of(environment)
    if task is None:
        return None
    random, expert = REFERENCE_RETURNS[task]
    return 100 * (mean_return - random) / (expert - random)
