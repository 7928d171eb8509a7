"""The script ``zonebloom``, which handles Ctrl-C during the import of the package.

That import takes half a second. This module is not in the package, because then the package would
be imported before the first line here.
"""

import gc
import os
import signal


def main() -> int:
    signal.signal(signal.SIGINT, _interrupted)
    # Imports make many objects, but no garbage. With its default threshold, the garbage collector
    # would look at all of them again and again, which takes as long as a lookup.
    gc.set_threshold(200_000)
    # NumPy starts threads for linear algebra when it is imported. No command uses them.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    # From here to the end of the command, this function's own handler prints the same message.
    from zonebloom.cli.main import main_of_process

    return main_of_process()


def _interrupted(number: int, frame: object) -> None:
    # Exit at once: if this raised, the interrupted import could raise another error, or go on.
    os.write(2, b"interrupted; nothing is left half done\n")
    os._exit(130)
