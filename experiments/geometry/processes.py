"""Run commands in several processes, each on a core of its own, until a time limit."""

import os
import subprocess
import time
from collections.abc import Sequence

from gelato.progress import note, progress

# How often the processes are looked at, in seconds.
PERIOD = 0.2


def run_jobs(commands: Sequence[Sequence[str]], jobs: int, seconds: float) -> None:
    """Run the commands in order, `jobs` at a time; after `seconds`, end those that still run."""
    end = time.monotonic() + seconds
    cores = sorted(os.sched_getaffinity(0))
    free = [cores[i % len(cores)] for i in range(jobs)]
    waiting = list(commands)
    running: list[tuple[subprocess.Popen[bytes], int]] = []
    with progress("running", len(commands)) as advance:
        while (waiting or running) and time.monotonic() < end:
            while waiting and free:
                core = free.pop(0)
                environment = os.environ | {"OMP_NUM_THREADS": "1"}
                command = ["taskset", "-c", str(core), *waiting.pop(0)]
                running.append((subprocess.Popen(command, env=environment), core))
            time.sleep(PERIOD)
            for process, core in list(running):
                if process.poll() is not None:
                    running.remove((process, core))
                    free.append(core)
                    advance(1)
                    if process.returncode:
                        note(f"failed ({process.returncode}): {' '.join(map(str, process.args))}")
    for process, _ in running:
        process.terminate()
        process.wait()
    if waiting or running:
        note(f"{len(waiting) + len(running)} of {len(commands)} did not finish in time")
