"""The package is usable without anything of reinforcement learning."""

import subprocess
import sys

FOREIGN = ("mujoco", "minari", "gymnasium", "h5py", "tyro", "optax", "highway_env")
STAGES = ("tasks", "data", "model", "uncertainty", "dynamics", "mdp", "agents", "policy", "runs")


def test_importing_geometry_imports_no_simulator_and_no_other_stage():
    code = (
        "import sys, gelato.geometry\n"
        f"foreign = [name for name in {FOREIGN} if name in sys.modules]\n"
        f"stages = [name for name in {STAGES} if 'gelato.' + name in sys.modules]\n"
        "print(foreign, stages)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[] []"
