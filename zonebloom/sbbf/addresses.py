"""Instructions for kernels: loads and copies of memory, aligned or not, and counts of bits."""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types, uint64

from zonebloom.sbbf.jit import intrinsic, linked


def _loader(bits: int) -> Any:
    @intrinsic
    def load(typing_context, address):
        def generate(context, builder, signature, arguments):
            pointer = builder.inttoptr(arguments[0], ir.IntType(bits).as_pointer())
            value = builder.load(pointer, align=1)
            return builder.zext(value, ir.IntType(64)) if bits < 64 else value

        return uint64(uint64), generate

    return load


def _byte_copier(num_bytes: int) -> Any:
    @intrinsic
    def copy(typing_context, target, source):
        def generate(context, builder, signature, arguments):
            vector = ir.VectorType(ir.IntType(8), num_bytes).as_pointer()
            to, source = (builder.inttoptr(argument, vector) for argument in arguments)
            builder.store(builder.load(source, align=1), to, align=1)
            return context.get_dummy_value()

        return types.void(uint64, uint64), generate

    return copy


@linked
def address_of(array):
    return np.uint64(array.ctypes.data)


load_8 = _loader(8)
load_32 = _loader(32)
load_64 = _loader(64)
copy_1 = _byte_copier(1)
copy_4 = _byte_copier(4)
copy_8 = _byte_copier(8)
copy_16 = _byte_copier(16)
copy_64 = _byte_copier(64)


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
