"""A sweep: two datasets, two methods and three seeds, in about a minute on a laptop.

gelato sweep examples/sweep.py --run runs/rooms
"""

from gelato.sweep import Sweep

sweep = Sweep(
    datasets=["four-rooms,transitions=2000", "four-rooms-hole,transitions=2000"],
    methods=["bc", "iql"],
    seeds=3,
    preset="small",
    updates=2_000,
    evaluations=2,
)
