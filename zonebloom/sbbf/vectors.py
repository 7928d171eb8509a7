"""Vector instructions behind the bit-sliced layout, each an LLVM intrinsic at addresses.

A block of a filter is one ``<4 x i64>``: lane ``p`` holds words ``2 p`` and ``2 p + 1``, that
is rows ``64 p`` to ``64 p + 63`` of the sliced block. So 64 blocks, one of each of 64 zones,
are four 64x64 bit matrices side by side, and turning a matrix over its diagonal takes six
steps of masked swaps (H. S. Warren, "Hacker's Delight", 7-3): halves of 32, 16, 8, 4, 2 and 1.
Three steps at a time touch eight vectors, which fit the registers.
"""

from __future__ import annotations

from llvmlite import ir
from numba import uint64, void
from numba.core import cgutils

from zonebloom.sbbf.jit import intrinsic

_INT = ir.IntType(64)
_BLOCK = ir.VectorType(_INT, 4)
_STRIP = ir.VectorType(_INT, 8)
_GROUP = 8

PRIME_1 = 0x9E3779B185EBCA87
PRIME_2 = 0xC2B2AE3D27D4EB4F


def _constant(value: int) -> ir.Constant:
    return ir.Constant(_INT, value)


def _splat(value: int) -> ir.Constant:
    return ir.Constant(_BLOCK, [value] * 4)


def _lane(number: int) -> ir.Constant:
    return ir.Constant(ir.IntType(32), number)


def _at(builder, address, stride, number: int):
    return builder.add(address, builder.mul(stride, _constant(number)))


def _load(builder, address, kind):
    return builder.load(builder.inttoptr(address, kind.as_pointer()), align=1)


def _store(builder, value, address):
    builder.store(value, builder.inttoptr(address, value.type.as_pointer()), align=1)


def _gather(builder, address, lane_stride):
    block = ir.Constant(_BLOCK, ir.Undefined)
    for lane in range(4):
        value = _load(builder, _at(builder, address, lane_stride, lane), _INT)
        block = builder.insert_element(block, value, _lane(lane))
    return block


def _scatter(builder, block, address, lane_stride):
    for lane in range(4):
        value = builder.extract_element(block, _lane(lane))
        _store(builder, value, _at(builder, address, lane_stride, lane))


def _low_halves(width: int) -> int:
    """The lower half of each run of ``2 width`` bits."""
    return sum(((1 << width) - 1) << at for at in range(0, 64, 2 * width))


def _swaps(first: int, *, gather: bool, scatter: bool):
    """Make an intrinsic of three swap steps, of ``first``, ``first / 2`` and ``first / 4`` rows.

    ``(source, source_stride, source_lanes, target, target_stride, target_lanes)``: addresses,
    and bytes between the eight vectors and between the lanes of one. Lanes lie together
    unless they are gathered, or scattered.
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
                    else _load(builder, address, _BLOCK)
                )
            width = first
            for distance in (4, 2, 1):
                mask, shift = _splat(_low_halves(width)), _splat(width)
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


def _copier(kind):
    @intrinsic
    def copy(typing_context, source, target):
        def generate(context, builder, signature, arguments):
            _store(builder, _load(builder, arguments[0], kind), arguments[1])
            return context.get_dummy_value()

        return void(uint64, uint64), generate

    return copy


copy_32_bytes = _copier(_BLOCK)
copy_64_bytes = _copier(_STRIP)


@intrinsic
def load_word(typing_context, address):
    """Read a 64-bit word."""

    def generate(context, builder, signature, arguments):
        return _load(builder, arguments[0], _INT)

    return uint64(uint64), generate


@intrinsic
def trailing_zeros(typing_context, value):
    """Number of the lowest bit set; 64 when there is none."""

    def generate(context, builder, signature, arguments):
        return builder.cttz(arguments[0], ir.Constant(ir.IntType(1), 0))

    return uint64(uint64), generate


@intrinsic
def and_64_bytes(typing_context, rows, at, out):
    """AND 64 bytes of eight rows, whose addresses lie at ``rows``, into ``out``.

    Returns a number that is not zero if a bit is left.
    """

    def generate(context, builder, signature, arguments):
        rows, at, out = arguments
        found = None
        for number in range(8):
            row = _load(builder, builder.add(rows, _constant(8 * number)), _INT)
            strip = _load(builder, builder.add(row, at), _STRIP)
            found = strip if found is None else builder.and_(found, strip)
        _store(builder, found, out)
        half = builder.or_(
            *(
                builder.shuffle_vector(
                    found,
                    ir.Constant(_STRIP, ir.Undefined),
                    ir.Constant(ir.VectorType(ir.IntType(32), 4), lanes),
                )
                for lanes in ([0, 1, 2, 3], [4, 5, 6, 7])
            )
        )
        left = builder.extract_element(half, _lane(0))
        for lane in range(1, 4):
            left = builder.or_(left, builder.extract_element(half, _lane(lane)))
        return left

    return uint64(uint64, uint64, uint64), generate


@intrinsic
def absorb_stripes(typing_context, address, stride, stripes, seeds, out):
    """Run eight rows through XXH64's four accumulators.

    ``stripes`` is how many times 32 bytes are taken of each row; rows lie ``stride`` bytes
    apart, their seeds at ``seeds``, and the accumulators are written to ``out``, 32 bytes a
    row. Eight chains side by side hide the latency of the multiplication.
    """

    def generate(context, builder, signature, arguments):
        address, stride, stripes, seeds, out = arguments
        initial = ir.Constant(_BLOCK, [(PRIME_1 + PRIME_2) % 2**64, PRIME_2, 0, -PRIME_1 % 2**64])
        prime_1, prime_2 = _splat(PRIME_1), _splat(PRIME_2)
        left, right = _splat(31), _splat(33)
        states = []
        for row in range(_GROUP):
            seed = _load(builder, builder.add(seeds, _constant(8 * row)), _INT)
            block = ir.Constant(_BLOCK, ir.Undefined)
            for lane in range(4):
                block = builder.insert_element(block, seed, _lane(lane))
            state = cgutils.alloca_once(builder, _BLOCK)
            builder.store(builder.add(block, initial), state)
            states.append(state)
        with cgutils.for_range(builder, stripes) as loop:
            start = builder.add(address, builder.mul(loop.index, _constant(32)))
            for row, state in enumerate(states):
                data = _load(builder, _at(builder, start, stride, row), _BLOCK)
                value = builder.add(builder.load(state), builder.mul(data, prime_2))
                value = builder.or_(builder.shl(value, left), builder.lshr(value, right))
                builder.store(builder.mul(value, prime_1), state)
        for row, state in enumerate(states):
            _store(builder, builder.load(state), builder.add(out, _constant(32 * row)))
        return context.get_dummy_value()

    return void(uint64, uint64, uint64, uint64, uint64), generate
