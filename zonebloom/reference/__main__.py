"""Write the reference: ``python -m zonebloom.reference [FOLDER]``, by default to ``reference``."""

import sys
from pathlib import Path

from zonebloom.reference.pages import write_pages

folder = Path(sys.argv[1] if len(sys.argv) > 1 else "reference")
write_pages(folder)
print(folder / "index.html")
