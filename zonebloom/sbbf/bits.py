"""Instructions on the bits of a word. Each is an LLVM intrinsic."""

from __future__ import annotations

from llvmlite import ir
from numba import uint64

from zonebloom.sbbf.jit import intrinsic


@intrinsic
def count_ones(typing_context, value):
    def generate(context, builder, signature, arguments):
        return builder.ctpop(arguments[0])

    return uint64(uint64), generate


@intrinsic
def trailing_zeros(typing_context, value):
    def generate(context, builder, signature, arguments):
        return builder.cttz(arguments[0], ir.Constant(ir.IntType(1), 0))

    return uint64(uint64), generate
