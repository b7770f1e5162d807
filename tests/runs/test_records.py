from gelato.runs.records import merge_records, read_records


def test_a_record_takes_the_place_of_the_one_with_its_keys_and_numbers_are_in_order(tmp_path):
    path = tmp_path / "results.json"
    merge_records(
        path,
        [{"device": "b", "seeds": seeds, "time": 1.0} for seeds in (20, 5, None)],
        ("device", "seeds"),
    )
    merge_records(path, [{"device": "a", "seeds": 10, "time": 2.0}], ("device", "seeds"))
    merge_records(path, [{"device": "b", "seeds": 5, "time": 3.0}], ("device", "seeds"))
    found = [(record["device"], record["seeds"], record["time"]) for record in read_records(path)]
    assert found == [("a", 10, 2.0), ("b", 5, 3.0), ("b", 20, 1.0), ("b", None, 1.0)]
