"""``python -m zonebloom.reference [FOLDER]`` writes the reference; the folder is ``reference``."""

import sys
from pathlib import Path

from zonebloom.reference.pages import build

folder = Path(sys.argv[1] if len(sys.argv) > 1 else "reference")
build(folder)
print(folder / "index.html")
