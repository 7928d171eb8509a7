"""Walk the query plans of a classic session."""

from __future__ import annotations

from typing import Any


def scala_items(seq: Any) -> list[Any]:
    # Indexed access to a linked list takes n steps for item n.
    seq = seq.toIndexedSeq()
    return [seq.apply(index) for index in range(seq.size())]


def node_name(node: Any) -> str:
    """Return the class name of a plan node, without its package."""
    return node.getClass().getSimpleName()


def class_name(node: Any) -> str:
    return node.getClass().getName()
