from experiments.tables import histories_penalties, histories_table


def test_returns_are_compared_with_the_full_state_and_penalties_listed_by_shift() -> None:
    def policy(view: str, seed: int, value: float) -> dict[str, str | int | float | bool | None]:
        row = {"kind": "policy", "task": "hopper", "view": view, "seed": seed}
        return {**row, "delta_r2": 0.9, "return": value, "score": value / 10}

    records = [
        policy(view, seed, value)
        for view, value in (("4", 90.0), ("full", 100.0))
        for seed in (0, 1)
    ]
    lines = histories_table(records).splitlines()
    assert lines[2:] == [
        "| hopper | full state | 0.900 | 100 ± 0 | 10.0 | 100% | 2 |",
        "| hopper | positions, history of 4 | 0.900 | 90 ± 0 | 9.0 | 90% | 2 |",
    ]
    judged = {"kind": "penalty", "task": "hopper", "view": "4", "seed": 0, "penalty": "guard"}
    rows = [{**judged, "shift": shift, "spearman": 0.5} for shift in ("held-out", "random")]
    assert histories_penalties([*records, *rows]).splitlines()[-1] == (
        "| hopper | positions, history of 4 | guard | 0.50 | 0.50 |"
    )
