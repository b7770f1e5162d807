"""The harness that disturbs gelato stays able to fail."""

import pytest

from experiments.chaos.broken import BREAKS, ROOT, Break


@pytest.mark.parametrize("broken", BREAKS, ids=lambda broken: broken.name)
def test_every_broken_copy_can_be_made_of_the_present_sources(broken: Break) -> None:
    for name, old, new in broken.changes:
        assert (ROOT / "src" / "gelato" / name).read_text().count(old) == 1
        assert new != old
