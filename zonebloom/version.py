"""The version of the package; workers and drivers must agree on it."""

__version__ = "0.1.0"
