"""Vector instructions of the sliced layout. Each is an LLVM intrinsic that takes addresses.

A block of a filter is one ``<4 x i64>``, so 64 blocks, one from each of 64 zones, are four 64x64
bit matrices side by side. Transposing a matrix takes six steps of masked swaps (H. S. Warren,
"Hacker's Delight", 7-3). Three steps together touch eight vectors, which fit the registers.
"""

from __future__ import annotations

from llvmlite import ir
from numba import uint64, void

from zonebloom.sbbf.jit import intrinsic

_INT = ir.IntType(64)
_VECTOR_4X64 = ir.VectorType(_INT, 4)
_GROUP = 8


def _constant(value: int) -> ir.Constant:
    return ir.Constant(_INT, value)


def _repeat_constant(value: int) -> ir.Constant:
    return ir.Constant(_VECTOR_4X64, [value] * 4)


def _lane(number: int) -> ir.Constant:
    return ir.Constant(ir.IntType(32), number)


def _at(builder, address, stride, number: int):
    return builder.add(address, builder.mul(stride, _constant(number)))


def _load(builder, address, kind):
    return builder.load(builder.inttoptr(address, kind.as_pointer()), align=1)


def _store(builder, value, address):
    builder.store(value, builder.inttoptr(address, value.type.as_pointer()), align=1)


def _gather(builder, address, lane_stride):
    block = ir.Constant(_VECTOR_4X64, ir.Undefined)
    for lane in range(4):
        value = _load(builder, _at(builder, address, lane_stride, lane), _INT)
        block = builder.insert_element(block, value, _lane(lane))
    return block


def _scatter(builder, block, address, lane_stride):
    for lane in range(4):
        value = builder.extract_element(block, _lane(lane))
        _store(builder, value, _at(builder, address, lane_stride, lane))


def _low_halves(width: int) -> int:
    """Return a mask of the lower half of each group of ``2 * width`` bits."""
    return sum(((1 << width) - 1) << start for start in range(0, 64, 2 * width))


def _swaps(first: int, *, gather: bool, scatter: bool):
    """Make an intrinsic that swaps ``first``, then ``first / 2``, then ``first / 4`` rows.

    Its arguments are ``source, source_stride, source_lanes, target, stride, lanes``: two addresses,
    each with the bytes between its eight vectors and the bytes between the lanes of a vector. The
    lanes of a vector lie together, unless ``gather`` (source) or ``scatter`` (target) is set.
    """

    @intrinsic
    def swaps(typing_context, source, source_stride, source_lanes, target, stride, lanes):
        def generate(context, builder, signature, arguments):
            source, source_stride, source_lanes, target, stride, lanes = arguments
            blocks = []
            for number in range(_GROUP):
                address = _at(builder, source, source_stride, number)
                blocks.append(
                    _gather(builder, address, source_lanes)
                    if gather
                    else _load(builder, address, _VECTOR_4X64)
                )
            width = first
            for distance in (4, 2, 1):
                mask, shift = _repeat_constant(_low_halves(width)), _repeat_constant(width)
                for low in (n for n in range(_GROUP) if not n & distance):
                    high = low + distance
                    moved = builder.xor(builder.lshr(blocks[low], shift), blocks[high])
                    moved = builder.and_(moved, mask)
                    blocks[low] = builder.xor(blocks[low], builder.shl(moved, shift))
                    blocks[high] = builder.xor(blocks[high], moved)
                width //= 2
            for number, block in enumerate(blocks):
                address = _at(builder, target, stride, number)
                if scatter:
                    _scatter(builder, block, address, lanes)
                else:
                    _store(builder, block, address)
            return context.get_dummy_value()

        return void(uint64, uint64, uint64, uint64, uint64, uint64), generate

    return swaps


swaps_of_blocks = _swaps(32, gather=False, scatter=False)
swaps_into_rows = _swaps(4, gather=False, scatter=True)
swaps_of_rows = _swaps(32, gather=True, scatter=False)
swaps_into_blocks = _swaps(4, gather=False, scatter=False)


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
