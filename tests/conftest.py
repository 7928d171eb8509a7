"""Settings every test runs under."""

from __future__ import annotations

import os

from hypothesis import settings

import zonebloom

# Spark's queries here are short: the JVM's second compiler would take longer than it saves.
os.environ.setdefault("JAVA_TOOL_OPTIONS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")

# No deadline: the first example of a kernel also loads or compiles it.
settings.register_profile("zonebloom", deadline=None, max_examples=60, print_blob=True)
settings.load_profile("zonebloom")


def pytest_configure(config):
    # Kernels are compiled once, before several processes would write them at a time.
    if not hasattr(config, "workerinput"):
        zonebloom.warmup()
