"""Run the tutorials and write them as pages of the docs site, with their output and figures.

`python -m experiments.tutorials` turns docs/tutorials/NAME.py into NAME.md, NAME.ipynb and the
figures NAME_1.png, NAME_2.png, … beside it. An error in a cell stops the build. A page is kept as
long as neither its text nor the library changes. Names after the command select tutorials.
"""

import ast
import base64
import hashlib
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path

import jupytext
import nbformat
from nbclient import NotebookClient
from nbformat import NotebookNode

from experiments.quick_jax import compile_quickly

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "docs" / "tutorials"
SECONDS_PER_CELL = 600
_AT_ONCE = 2


def list_tutorials(folder: Path = FOLDER) -> list[Path]:
    """List the tutorials, in the order of their names."""
    return sorted(folder.glob("*.py"))


def find_missing(source: str) -> list[str]:
    """Return the packages that a tutorial imports and that are not installed."""
    names = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.add(node.module.partition(".")[0])
    return sorted(name for name in names if find_spec(name) is None)


def build(path: Path) -> str:
    """Write the page of one tutorial. Return what was done, for the build's output."""
    page, source = path.with_suffix(".md"), path.read_text()
    missing = find_missing(source)
    mark = f"<!-- {_digest(source, missing)} -->\n"
    if page.exists() and page.read_text().startswith(mark):
        return f"{path.stem}: unchanged"
    for old in path.parent.glob(f"{path.stem}_*.png"):
        old.unlink()
    notebook, begun = jupytext.read(path), time.monotonic()
    if not missing:
        with tempfile.TemporaryDirectory() as folder:
            client = NotebookClient(
                notebook,
                timeout=SECONDS_PER_CELL,
                kernel_name="python3",
                extra_arguments=["--IPKernelApp.log_level=40"],  # it warns of its own local port
                resources={"metadata": {"path": folder}},
            )
            client.execute()
    nbformat.write(notebook, path.with_suffix(".ipynb"))
    page.write_text(mark + write_page(notebook, path, missing))
    if missing:
        return f"{path.stem}: not run, because {', '.join(missing)} is not installed"
    return f"{path.stem}: {time.monotonic() - begun:.0f} s"


def write_page(notebook: NotebookNode, path: Path, missing: Sequence[str] = ()) -> str:
    """Write a notebook as Markdown; figures go into files beside it."""
    parts: list[str] = []
    figures = 0
    for cell in notebook.cells:
        if cell.cell_type != "code":
            parts.append(cell.source)
            if len(parts) == 1:
                parts.append(_describe(path, missing))
            continue
        parts.append(f"```python\n{cell.source}\n```")
        for output in cell.outputs:
            data = output.get("data", {})
            if "image/png" in data:
                figures += 1
                picture = path.parent / f"{path.stem}_{figures}.png"
                picture.write_bytes(base64.b64decode(data["image/png"]))
                if "alt" not in cell.metadata:
                    raise ValueError(f'{path}: give the figure a description: # %% alt="..."')
                parts.append(f"![{cell.metadata['alt']}]({picture.name})")
            elif text := _find_text(output):
                parts.append(f"```text\n{text.rstrip()}\n```")
    return "\n\n".join(parts) + "\n"


def _find_text(output: NotebookNode) -> str:
    """Return what a cell printed or returned, without notes and progress bars."""
    if output.output_type == "stream" and output.name == "stdout":
        return str(output.text)
    if output.output_type == "execute_result":
        return str(output.data.get("text/plain", ""))
    return ""


def _describe(path: Path, missing: Sequence[str]) -> str:
    """Say where the reader gets the tutorial, and whether its cells were run."""
    lines = [f"[Python script]({path.name}) · [notebook]({path.stem}.ipynb)"]
    if missing:
        lines.append(
            '!!! warning "Not run"\n    The cells of this page were not run when the site was '
            f"built, because {', '.join(missing)} was not installed."
        )
    return "\n\n".join(lines)


def _digest(source: str, missing: Sequence[str]) -> str:
    """Return a digest of everything that a page depends on."""
    digest = hashlib.sha256(source.encode())
    for module in [Path(__file__), *sorted((ROOT / "src").rglob("*.py"))]:
        digest.update(module.read_bytes())
    digest.update(repr(missing).encode())
    return digest.hexdigest()[:16]


def main(names: Sequence[str]) -> None:
    """Build the named tutorials, or all of them."""
    compile_quickly(ROOT / ".cache" / "jax")
    chosen = [path for path in list_tutorials() if not names or path.stem in names]
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        for line in pool.map(build, chosen):
            print(line, flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
