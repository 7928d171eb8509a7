"""Count what the parts of the harness tried, which cases were refused, and which failed."""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

# The phase of a case in which another library works. A crash in this phase is not ours.
PEER = "another library reads"


@dataclass
class Report:
    """The counts of one part by kind, and its failures with their case numbers."""

    part: str
    seed: int = 0
    case: int = 0
    tried: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    failures: list[tuple[int, str]] = field(default_factory=list)

    on_phase: Callable[[str], object] = field(default=lambda _: None, repr=False)

    def phase(self, name: str) -> None:
        """Report which phase begins, so that a crash can be attributed to it."""
        self.on_phase(name)

    def begin(self, case: int) -> random.Random:
        """Start a case and return its random number generator.

        Its numbers depend only on the seed, the part and the number of the case.
        """
        self.case = case
        return random.Random(f"{self.seed} {self.part} {case}")

    def fail(self, text: str) -> None:
        """Record a failure of the current case."""
        self.failures.append((self.case, text))

    def add(self, other: Report) -> None:
        """Add the counts and failures of another process."""
        self.tried += other.tried
        self.refused += other.refused
        self.failures += other.failures

    def command(self, case: int) -> str:
        """Return the command that runs one case again."""
        return f"python -m tests.trust --only {self.part} --seed {self.seed} --case {case}"

    def __str__(self) -> str:
        total = sum(self.tried.values())
        lines = [f"{self.part}: {total:,} tried, {len(self.failures):,} failed"]
        lines += [f"  {count:>9,} {kind}" for kind, count in sorted(self.tried.items())]
        lines += [f"  {count:>9,} refused: {kind}" for kind, count in sorted(self.refused.items())]
        # Failures that differ only in numbers are shown once.
        groups: dict[str, list[tuple[int, str]]] = {}
        for case, text in self.failures:
            pattern = re.sub("[0-9a-f]*[0-9][0-9a-f]*", "0", text)
            groups.setdefault(pattern, []).append((case, text))
        for failures in groups.values():
            case, text = failures[0]
            lines += [f"  FAILED {len(failures):,} times: {text}", f"    {self.command(case)}"]
        return "\n".join(lines)


def check(report: Report) -> None:
    """Fail if a part failed or tried nothing."""
    assert report.tried
    assert not report.failures, str(report)
