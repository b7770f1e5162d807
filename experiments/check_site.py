"""Check the built docs site: every public name has an entry, and nothing comes from other hosts.

`python -m experiments.check_site site` exits with an error that lists what is missing.
"""

import re
import sys
from pathlib import Path

import griffe

# What a browser loads by itself; ordinary links may lead anywhere.
_LOADED = re.compile(r'<(?:script|img|iframe)[^>]+src="https?://|<link[^>]+href="https?://')


def find_problems(site: Path, source: Path = Path("src")) -> list[str]:
    """List public names without an entry or a docstring, and files that load from the web."""
    gelato = griffe.load("gelato", search_paths=[source], resolve_aliases=True)
    problems = _check_package(gelato, site / "api" / "gelato.html")
    for name, module in sorted(gelato.modules.items()):
        if module.is_subpackage and name != "cli":  # `cli` has commands, not names
            problems += _check_package(module, site / "api" / f"{name}.html")
    for page in sorted(site.rglob("*.html")):
        if _LOADED.search(page.read_text()):
            problems.append(f"{page.relative_to(site)}: loads something from another host")
    return problems


def _check_package(package: griffe.Object | griffe.Alias, page: Path) -> list[str]:
    """Check that a page documents the public names of a package and their public methods."""
    if not page.exists():
        return [f"{package.path}: has no page {page}"]
    text, problems = page.read_text(), []
    for export in package.exports or []:
        name = str(export)
        member = package[name]
        target = member.final_target if member.is_alias else member
        if target.is_module:
            continue
        if f'id="{package.path}.{name}"' not in text:
            problems.append(f"{package.path}.{name}: has no entry on {page}")
        if not target.has_docstring:
            problems.append(f"{package.path}.{name}: has no docstring")
        if target.is_class:
            problems += _find_bare_methods(target)
    return problems


def _find_bare_methods(found: griffe.Class) -> list[str]:
    """List public methods that have no docstring, neither here nor in a base class."""
    bare = []
    for name, member in found.members.items():
        if name.startswith("_") or member.is_alias or not member.is_function:
            continue
        owners = [found, *found.mro()]
        if not any(name in each.members and each.members[name].has_docstring for each in owners):
            bare.append(f"{found.path}.{name}: has no docstring")
    return bare


if __name__ == "__main__":
    found = find_problems(Path(sys.argv[1]))
    if found:
        sys.exit("\n".join(found))
    print("every public name has an entry and a docstring; nothing loads from other hosts")
