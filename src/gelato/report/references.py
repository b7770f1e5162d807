"""References to data as tables and titles show them."""

import os
import re


def shorten_reference(reference: str) -> str:
    """Show a file relative to the current folder, if that is shorter than its absolute path.

    Runs store absolute paths, so that they can be used from any folder.
    """
    match = re.fullmatch(r"(\w+:)?(/.*)", reference)
    if match is None:
        return reference
    scheme, path = match[1] or "", match[2]
    return scheme + min(os.path.relpath(path), path, key=len)
