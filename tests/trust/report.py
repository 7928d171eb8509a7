"""What the parts of the harness tried, what was refused, and what failed."""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

# A phase of a case in which another library works: a crash there is its own.
PEER = "another library reads"


@dataclass
class Report:
    """Counts of one part, by kind, and its failures with the number of their case."""

    part: str
    seed: int = 0
    case: int = 0
    tried: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    failures: list[tuple[int, str]] = field(default_factory=list)

    on_phase: Callable[[str], object] = field(default=lambda _: None, repr=False)

    def phase(self, name: str) -> None:
        """Say what begins, to whom wants to know what a case died of."""
        self.on_phase(name)

    def begin(self, case: int) -> random.Random:
        """Start a case; its random numbers are those of seed, part and number alone."""
        self.case = case
        return random.Random(f"{self.seed} {self.part} {case}")

    def fail(self, text: str) -> None:
        """Note that something is wrong in the case at hand."""
        self.failures.append((self.case, text))

    def add(self, other: Report) -> None:
        """Put what another process found to this."""
        self.tried += other.tried
        self.refused += other.refused
        self.failures += other.failures

    def command(self, case: int) -> str:
        """What runs one case again."""
        return f"python -m tests.trust --only {self.part} --seed {self.seed} --case {case}"

    def __str__(self) -> str:
        total = sum(self.tried.values())
        lines = [f"{self.part}: {total:,} tried, {len(self.failures):,} failed"]
        lines += [f"  {count:>9,} {kind}" for kind, count in sorted(self.tried.items())]
        lines += [f"  {count:>9,} refused: {kind}" for kind, count in sorted(self.refused.items())]
        # Failures that differ in numbers alone are shown once.
        alike: dict[str, list[tuple[int, str]]] = {}
        for case, text in self.failures:
            alike.setdefault(re.sub("[0-9a-f]*[0-9][0-9a-f]*", "0", text), []).append((case, text))
        for found in alike.values():
            case, text = found[0]
            lines += [f"  FAILED {len(found):,} times: {text}", f"    {self.command(case)}"]
        return "\n".join(lines)


def check(report: Report) -> None:
    """Fail where a part failed, or tried nothing."""
    assert report.tried
    assert not report.failures, str(report)
