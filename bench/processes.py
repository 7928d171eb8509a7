"""Run modules of the bench in processes of their own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

_ROOT = Path(__file__).resolve().parent.parent


def run_module(module: str, *arguments: str, timeout: float = 600) -> Any:
    """Run a module in a new process, and return the JSON value that it prints."""
    path = os.pathsep.join([str(_ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    process = subprocess.run(
        [sys.executable, "-m", module, *arguments],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    if process.returncode:
        raise RuntimeError(f"{module} {' '.join(arguments)} failed:\n{process.stderr[-2000:]}")
    return json.loads(process.stdout)
