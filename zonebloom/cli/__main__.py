"""The script ``zonebloom``, which ``python -m zonebloom.cli`` also runs.

It imports the command only in `main`, so that Ctrl-C during that import, which takes a quarter of a
second, prints a message and no traceback.
"""

import os
import signal
import sys


def main() -> int:
    signal.signal(signal.SIGINT, _interrupted)
    # NumPy starts threads for linear algebra when it is imported, which takes 50 ms. No command
    # uses them.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    # From here to the end of the command, this function's own handler prints the same message.
    from zonebloom.cli.main import main_of_process

    return main_of_process()


def _interrupted(number: int, frame: object) -> None:
    # Exit at once: if this raised, the interrupted import could raise another error, or go on.
    os.write(2, b"interrupted; nothing is left half done\n")
    os._exit(130)


if __name__ == "__main__":
    sys.exit(main())
