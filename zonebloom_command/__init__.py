"""The script ``zonebloom``: Ctrl-C while the package is imported, which takes half a second.

Apart from the package, whose import would come before the first line here.
"""

import os
import signal


def main() -> int:
    signal.signal(signal.SIGINT, _interrupted)
    # Has a handler of its own, and the same words, from here to the command's end.
    from zonebloom.cli.main import main

    return main()


def _interrupted(number: int, frame: object) -> None:
    # A module whose import is interrupted may raise whatever it likes, or go on.
    os.write(2, b"interrupted; nothing is left half done\n")
    os._exit(130)
