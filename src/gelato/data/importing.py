"""Import a dataset into a column store, in blocks; a repeated command continues."""

from pathlib import Path

import gelato.data.reference  # noqa: F401  (It registers the sources.)
from gelato.data.column_store import open_store, open_writer
from gelato.data.pieces import BLOCK_ROWS, Pieces, cut_dataset, open_pieces
from gelato.data.sources import load_reference, make_absolute, parse_reference
from gelato.data.transitions import Dataset
from gelato.errors import InputError
from gelato.progress import note, progress


def import_columns(reference: str, path: Path | str, *, block_rows: int = BLOCK_ROWS) -> Dataset:
    """Import the data of a reference into a column store at `path`, and open the store.

    Minari datasets, HDF5, .npz and Parquet files are read in blocks; memory holds a few of them.
    Other sources are loaded first. After an interruption, the same call continues behind the last
    finished block.
    """
    target = Path(path).expanduser().absolute()
    parsed = make_absolute(parse_reference(reference))
    with open_pieces(parsed, block_rows) as pieces:
        if pieces is None:
            note(f"{reference}: cannot be read in blocks, so it is loaded into memory first")
            dataset = load_reference(parsed)
            if dataset.whole_states is not None or dataset.transitions.past is not None:
                raise InputError(
                    f"{reference}: import it without observe= and history=; add history= when you "
                    "use the store"
                )
            pieces = cut_dataset(dataset, block_rows)
        _write(pieces, str(parsed), target)
    return open_store(target, f"columns:{target}")


def _write(pieces: Pieces, reference: str, target: Path) -> None:
    source = {"reference": reference, "stamp": pieces.stamp}
    with open_writer(target, source, pieces.rows) as writer:
        if writer.done:
            note(f"{target}: continuing the import behind row {writer.done:,}")
        with progress("importing", pieces.rows) as advance:
            advance(writer.done)
            if writer.done < pieces.rows:
                for piece in pieces.read(writer.token):
                    writer.append(piece.rows, piece.token, piece.notes)
                    advance(len(piece.rows))
        pieces.complete(writer)
        writer.finish({"reference": reference, **pieces.describe()})
