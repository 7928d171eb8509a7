"""Becomes zonebloom/__init__.py of the package that `send_package` sends: it unpacks the real one,
which lies in the archive one folder deeper, once for a user, with the kernels the driver compiled.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import os
import shutil
import sys
import tempfile
import zipfile

# The folder of the real package in the archive.
INSIDE = "unpacked"


def unpacked(archive: str) -> str:
    """The folder with what the archive holds, or a path into the archive."""
    home = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    parent = os.path.join(home, "zonebloom")
    folder = os.path.join(parent, os.path.splitext(os.path.basename(archive))[0])
    try:
        # Modules are run from here, so nobody else may have made it.
        os.makedirs(parent, mode=0o700, exist_ok=True)
        if hasattr(os, "getuid") and os.stat(parent).st_uid != os.getuid():
            raise PermissionError(parent)
        if not os.path.isdir(folder):
            making = tempfile.mkdtemp(dir=parent)
            try:
                with zipfile.ZipFile(archive) as file:
                    file.extractall(making)
                # Of several workers at once one is first; the others find the same.
                os.rename(os.path.join(making, INSIDE), folder)
            except OSError:
                if not os.path.isdir(folder):
                    raise
            finally:
                shutil.rmtree(making, ignore_errors=True)
    except OSError:
        return os.path.join(archive, INSIDE)
    return folder


def become(name: str, folder: str) -> None:
    """Import a package from a folder in place of the module that runs this."""
    spec = importlib.machinery.PathFinder.find_spec(name, [folder])
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)


if __name__ == "zonebloom":
    become(__name__, unpacked(os.path.dirname(os.path.dirname(__file__))))
