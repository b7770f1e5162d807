"""The records of the report page, and their HTML."""

import json
from dataclasses import replace

import numpy as np
import pytest

from gelato.data.columns import make_dataset
from gelato.report.page.collect.commands import flatten
from gelato.report.page.collect.data import collect_data, find_suspicious_columns
from gelato.report.page.collect.plane import find_plane
from gelato.report.page.collect.policies import average_seeds, correlate
from gelato.report.page.collect.run import list_differences
from gelato.report.page.collect.weak_spots import (
    describe_paths,
    describe_states,
    find_weak_regions,
)
from gelato.report.page.records import Comparison, Interval, PathsSection, to_plain
from gelato.report.page.render.html import Html, element, embed_json
from gelato.report.page.render.learned import describe_learning
from gelato.report.page.render.numbers import write_number, write_share
from gelato.report.page.render.page import render_page
from gelato.report.page.render.pictures import draw_intervals
from tests.report.page_example import make_example


def test_text_and_attributes_are_escaped_and_html_is_not():
    written = element("p", "<b>", Html("<i>x</i>"), title='"&')
    assert written == '<p title="&quot;&amp;">&lt;b&gt;<i>x</i></p>'


def test_no_text_in_the_records_can_end_their_element():
    text = embed_json({"name": "</script><script>&"})
    assert "<" not in text and "&" not in text
    assert json.loads(text) == {"name": "</script><script>&"}


def test_numbers_that_are_not_finite_become_null_and_others_are_rounded():
    values = {"a": np.array([1.23456789, np.nan]), "b": float("inf"), "c": np.int64(7), "d": 2.0}
    assert to_plain(values) == {"a": [1.235, None], "b": None, "c": 7, "d": 2}


def test_the_records_of_a_page_are_json():
    json.dumps(to_plain(make_example()), allow_nan=False)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1234567.0, "1,234,567"),
        (1050.4, "1,050"),
        (0.012345, "0.0123"),
        (-2.5, "\u22122.5"),
        (0.0, "0"),
        (1e-7, "1.00e\u221207"),
        (float("nan"), "–"),
        (None, "–"),
    ],
)
def test_numbers_are_written_with_a_few_digits(value, text):
    assert write_number(value) == text


def test_small_shares_keep_a_digit():
    assert [write_share(value) for value in (0.004, 0.25, 1.0, None)] == [
        "0.4%",
        "25%",
        "100%",
        "–",
    ]


def test_intervals_are_described_in_words_for_readers_who_cannot_see_them():
    picture = draw_intervals([("log", Interval(2.0, 1.0, 3.0), "square")], "Returns")
    assert 'aria-label="Returns. log: 2 (1 to 3)."' in picture
    assert draw_intervals([("log", Interval(None), "square")], "Returns") == ""


def test_the_page_names_the_verdict_and_every_section():
    page = render_page(make_example())
    assert "Better than the data" in page and "✓" in page
    for name in ("verdict", "data", "model", "map", "policies", "trust", "reproduce"):
        assert f'<section id="{name}"' in page and f'href="#{name}"' in page


def test_the_page_escapes_names_from_files():
    hostile = "<script>alert(1)</script>"
    page = render_page(make_example(name=hostile, dataset=hostile, environment=hostile))
    assert hostile not in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page


def test_a_page_without_a_selection_says_what_is_missing():
    verdict = replace(
        make_example().verdict, word="no verdict", reasons=(), missing=("Run gelato select.",)
    )
    page = render_page(make_example(verdict=verdict))
    assert "No verdict yet" in page and "Run gelato select." in page


def test_the_page_says_what_was_learned_and_which_policy_it_is_about():
    example = make_example()
    assert describe_learning(example) == (
        "From 20,000 steps in 40 logged episodes, this run learned a model of the environment and, "
        "in this model, 6 policies.",
        "On logged episodes that it never saw, the model predicts the change of the state in one "
        "step with R² 0.93 (1 is perfect, 0 is useless).",
        "gelato select ranked the policies by the log alone and chose gelato λ=3, seed 1.",
    )
    unranked = replace(example, verdict=replace(example.verdict, estimate=None))
    assert describe_learning(unranked)[-1].startswith("No policy is selected yet.")
    assert describe_learning(replace(example, model=None))[0].endswith("learned 6 policies.")
    assert example.model is not None
    (seed,) = example.model.check["seeds"]
    weak = replace(example.model, check={"seeds": [{**seed, "delta_r2": 0.3}]})
    assert describe_learning(replace(example, model=weak))[2].startswith("The model is poor")
    alone = replace(example, policies=None)
    assert describe_learning(alone)[0].endswith("learned a model of the environment.")


def test_the_page_explains_the_estimators_that_it_names():
    example = make_example()
    words = render_page(example).partition('<section id="words"')[2]
    assert example.policies is not None
    for name in ("penalty U", "guard", *example.policies.estimators):
        assert f'<th scope="row">{name}</th>' in words
    assert "doubly robust" not in words


def test_a_measured_return_over_longer_episodes_is_not_drawn_next_to_the_estimate():
    example = make_example()
    assert example.paths is not None
    longer = replace(example, paths=replace(example.paths, comparable=False))
    assert "measured return: 1,302" in render_page(example)
    page = render_page(longer)
    assert "measured return: 1,302" not in page and "do not compare the two" in page


def test_a_comparison_lists_only_settings_that_differ():
    assert list_differences([{"a": "1", "b": "2"}, {"a": "1", "b": "3", "c": "4"}]) == [
        ("b", "2", "3"),
        ("c", "–", "4"),
    ]
    runs = (make_example(name="one"), make_example(name="two"))
    page = render_page(Comparison(runs, (("seeds", "2", "3"),), same_data=False))
    assert "Different data." in page and "Settings that differ" in page


def test_nested_settings_get_dotted_names():
    assert flatten({"fit": {"decoders": 3}, "name": "x"}, "m") == {
        "m.fit.decoders": "3",
        "m.name": "x",
    }


def test_curves_average_seeds_and_leave_out_what_is_not_finite():
    rows = []
    for step, values in ((10, ("1", "3")), (20, ("nan", "5")), (30, ("", ""))):
        for seed, value in enumerate(values):
            rows.append({"step": str(step), "seed": str(seed), "value": value})
    curve = average_seeds(rows, "value")
    assert curve is not None
    assert curve["steps"] == [10, 20] and curve["mean"] == [2.0, 5.0]
    assert curve["low"][0] < 1 and curve["seeds"] == 2 and curve["not_finite"] == 1
    assert average_seeds(rows, "other") is None


def test_estimators_are_compared_by_rank_where_both_are_known():
    def policy(first, second, measured):
        estimates = []
        for name, value in (("a", first), ("b", second)):
            problem = None if value is not None else "too wide"
            estimates.append({"estimator": name, "estimate": value, "problem": problem})
        return {"estimates": estimates, "return": measured}

    policies = [policy(1.0, 9.0, 5.0), policy(2.0, 7.0, 6.0), policy(3.0, None, 7.0)]
    table = correlate(policies, ["a", "b", "measured return"])
    assert table[0][2] == pytest.approx(1.0)
    assert table[0][1] is None


def test_a_weak_region_is_found_where_trust_is_low():
    states = np.random.default_rng(0).uniform(size=(2000, 3)).astype(np.float32)
    (region,) = find_weak_regions(states, states[:, 1] < 0.8, ["x", "y", "z"])
    assert region[0] == "y" and region[1] > 0.7 and region[3] < 0.1
    assert find_weak_regions(states, np.ones(len(states), bool), ["x", "y", "z"]) == []


def test_the_states_of_a_small_world_that_lack_trust_are_named():
    cells = np.array([[x, y] for x in range(3) for y in range(3)] * 4, np.float32)
    trusted = ~((cells[:, 0] == 2) & (cells[:, 1] == 1))
    (text,) = describe_states(cells, trusted, ["row", "column"], "the action")
    assert text == (
        "In 1 of 9 logged states, the action is mostly not trusted, for example at row 2, column 1."
    )
    assert describe_states(cells, np.ones(36, bool), ["row", "column"], "the action") == []


def test_the_column_in_which_untrusted_states_differ_is_named():
    rng = np.random.default_rng(0)
    states = rng.normal(size=(3000, 6)).astype(np.float32)
    # Too few in every fifth of the column to be a region of its own.
    trusted = (states[:, 2] < 0.5) | (rng.uniform(size=3000) < 0.93)
    (text,) = describe_states(states, trusted, list("abcdef"), "the action")
    assert text.startswith("The states in which the action is not trusted have a large c:")


def test_the_place_where_all_paths_lose_trust_is_named():
    place = np.array([0.25, -1.0])
    path = {"first_outside": 5, "first_place": place, "trusted_share": 0.98}
    paths = PathsSection("Maze-v0", (path, {**path, "first_outside": 7}), ("x", "y"))
    (text,) = describe_paths(paths, 0.05)
    assert text == (
        "In 2 of 2 episodes in Maze-v0, the policy takes a step that is not trusted, first at "
        "steps 5 to 7, always at x 0.25, y -1."
    )
    other = {**path, "first_place": -place}
    assert describe_paths(PathsSection("Maze-v0", (path, other), ("x", "y")), 0.05) == []


def test_rounding_errors_are_no_region():
    rng = np.random.default_rng(0)
    states = rng.uniform(size=(2000, 1)) * 1e-16
    states[0] = 1.0
    trusted = (states[:, 0] < 2e-17) | (states[:, 0] > 4e-17)
    assert find_weak_regions(states, trusted, ["x"]) == []
    assert len(find_weak_regions(states[1:], trusted[1:], ["x"])) == 1


def test_a_plane_shows_two_latent_dimensions_as_they_are_and_projects_more():
    rng = np.random.default_rng(0)
    flat = rng.normal(size=(50, 2))
    plane = find_plane(flat)
    assert plane.variance is None and np.array_equal(plane(flat), flat)
    deep = rng.normal(size=(200, 4)) * np.array([5.0, 3.0, 0.1, 0.1])
    plane = find_plane(deep)
    assert plane.variance is not None and plane.variance > 0.99
    assert np.abs(np.corrcoef(plane(deep)[:, 0], deep[:, 0])[0, 1]) > 0.99
    line = rng.normal(size=(9, 1))
    assert find_plane(line)(line)[:, 1].tolist() == [0.0] * 9


def dataset_of(states: np.ndarray):
    rows = len(states)
    ends = np.zeros(rows, bool)
    ends[-1] = True
    return make_dataset(
        observations=states,
        actions=np.linspace(-1, 1, rows)[:, None],
        rewards=np.ones(rows),
        timeouts=ends,
        next_observations=states,
    )


def test_suspicious_columns_are_named_with_a_reason():
    rng = np.random.default_rng(0)
    states = rng.normal(size=(1000, 5))
    states[:, 1] = 3.0
    states[5, 2] = 1e9
    states[:, 3] = 2 * states[:, 0] + 1
    states[:, 4] = 0.0
    states[7, 4] = 1.0
    found = find_suspicious_columns(states, "abcde")
    assert found[1] == "never changes"
    assert found[2].startswith("has values up to 1e+09")
    assert found[3] == "is the same as a, up to scale"
    assert found[4] == "has the same value in 99.9% of the steps"
    assert 0 not in found


def test_thousands_of_columns_and_a_single_step_are_described():
    wide = collect_data(dataset_of(np.random.default_rng(0).normal(size=(30, 3000))))
    assert wide.columns == 3000 and len(wide.states) == 24
    single = collect_data(dataset_of(np.ones((1, 2))))
    assert single.summary["transitions"] == 1
    page = render_page(make_example(data=single))
    assert "There are only 1 episodes" not in page and "only 1 episode" in page
    assert "24 of 3,000 columns" in render_page(make_example(data=wide))
