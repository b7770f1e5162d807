import subprocess
import sys

import jax.numpy as jnp
import numpy as np
import pytest

from gelato.errors import InputError, import_extra
from gelato.geometry import Euclidean, Shooting, nearest_approximate

OPTIONAL = ("diffrax", "faiss", "sklearn", "scipy.sparse.csgraph", "scipy.spatial", "torch")


def test_importing_geometry_imports_no_optional_package():
    code = f"import sys, gelato.geometry; print([m for m in {OPTIONAL} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("module", "extra", "call"),
    [
        ("diffrax", "geodesics", lambda: Shooting()(Euclidean(), jnp.zeros(2), jnp.ones(2))),
        ("faiss", "search", lambda: nearest_approximate(np.zeros((9, 2)), np.zeros((1, 2)), 3)),
    ],
)
def test_a_missing_package_is_one_line_that_names_the_extra(monkeypatch, module, extra, call):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(InputError) as error:
        call()
    install = f"pip install 'gelato-rl[{extra}]'"
    assert str(error.value) == f"{module} is not installed. Install it with: {install}"


def test_an_installed_package_is_imported():
    assert import_extra("numpy", "nothing") is np
