"""The figure of a dataset."""

import numpy as np

from gelato.data import make_dataset
from gelato.report import data_figure


def test_the_names_of_columns_appear_in_the_figure_of_the_data(tmp_path, monkeypatch):
    drawn = []
    monkeypatch.setattr(data_figure, "save", lambda figure, _: drawn.append(figure))
    rng = np.random.default_rng(0)
    for keys in (("angle", "speed"), ("angle", "speed", "load")):
        observations = {key: rng.normal(size=8) for key in keys}
        dataset = make_dataset(observations, np.zeros((8, 1)), rng.normal(size=8))
        data_figure.draw_dataset(dataset, tmp_path / "data.png")
        states = drawn[-1].axes[1]
        shown = [states.get_xlabel(), states.get_ylabel()]
        if len(keys) > 2:
            shown = [label.get_text() for label in states.get_yticklabels()]
        assert shown == sorted(keys)
