"""Datasets of logged transitions: load, check, split and summarise them."""

from typing import TYPE_CHECKING

from gelato.lazy import import_on_use

if TYPE_CHECKING:
    from gelato.data.columns import make_dataset
    from gelato.data.importing import import_columns
    from gelato.data.quality import Finding, find_warnings, judge_data
    from gelato.data.reference import load
    from gelato.data.sources import Reference, list_sources, register_source
    from gelato.data.spaces import Continuous, Discrete
    from gelato.data.summary import episode_lengths, episode_returns, summarise
    from gelato.data.transitions import Dataset, Standardiser, Transitions, split

__all__ = [
    "Continuous",
    "Dataset",
    "Discrete",
    "Finding",
    "Reference",
    "Standardiser",
    "Transitions",
    "episode_lengths",
    "episode_returns",
    "find_warnings",
    "import_columns",
    "judge_data",
    "list_sources",
    "load",
    "make_dataset",
    "register_source",
    "split",
    "summarise",
]

# Importing `reference` registers the built-in sources.
_HOMES = {
    "load": "gelato.data.reference",
    "register_source": "gelato.data.reference",
    "list_sources": "gelato.data.reference",
    "Reference": "gelato.data.sources",
    "make_dataset": "gelato.data.columns",
    "import_columns": "gelato.data.importing",
    "Finding": "gelato.data.quality",
    "judge_data": "gelato.data.quality",
    "find_warnings": "gelato.data.quality",
    "Continuous": "gelato.data.spaces",
    "Discrete": "gelato.data.spaces",
    "episode_lengths": "gelato.data.summary",
    "episode_returns": "gelato.data.summary",
    "summarise": "gelato.data.summary",
    "Dataset": "gelato.data.transitions",
    "Standardiser": "gelato.data.transitions",
    "Transitions": "gelato.data.transitions",
    "split": "gelato.data.transitions",
}

__getattr__, __dir__ = import_on_use(__name__, _HOMES)
