"""Settings of JAX for programs that mostly compile: tests, and the tutorials of the docs."""

import os
from importlib.metadata import version
from pathlib import Path


def compile_quickly(cache: Path) -> None:
    """Compile quickly, and each program once, also across processes. Call it before JAX starts."""
    flags = ["backend_optimization_level=0", "llvm_disable_expensive_passes=true"]
    if version("jaxlib") < "0.11":  # since 0.11, XLA stops at a flag that it does not know
        flags.append("cpu_use_fusion_emitters=false")
    os.environ.setdefault("XLA_FLAGS", " ".join(f"--xla_{flag}" for flag in flags))
    os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(cache))
    os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.3")
