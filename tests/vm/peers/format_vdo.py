#!/usr/bin/env python3
"""Formats a device for dm-vdo, because Debian 12 has the driver but not its vdoformat.

The layout follows drivers/md/dm-vdo/encodings.h of Linux 6.12: a geometry block, the deduplication index, a super block, then
the roots of the block map, the slabs, the recovery journal and the slab summary. All of it is little-endian, in blocks of
4 KiB. The index has the smallest size that the driver accepts; the driver creates it at its first start.

Usage: format_vdo.py sizes SLABS                    prints three sizes in sectors, which add up to the device:
                                                    what is before the slabs, the slabs, what is behind them
       format_vdo.py format DEVICE SLABS BLOCKS     with BLOCKS logical blocks
"""

import os
import struct
import sys
import zlib

BLOCK = 4096
SECTORS_PER_BLOCK = 8

# The index of 256 MiB of memory needs 2.2 GiB.
INDEX_MEMORY_256_MIB = 0xFFFF_FFFD
INDEX_BLOCKS = 3 * 1024 * 1024 * 1024 // BLOCK
INDEX_HEAD_BLOCKS = 256

SLAB_BLOCKS = 8192
SLAB_JOURNAL_BLOCKS = 224
COUNTS_PER_REFERENCE_BLOCK = 8 * (512 - 8)
SLAB_JOURNAL_FULL_ENTRIES = (BLOCK - 36) * 8 // 25
USER_REQUESTS_MAX = 2048

ROOT_COUNT = 60
JOURNAL_BLOCKS = 32768
SUMMARY_BLOCKS = 64

DATA_START = 1 + INDEX_BLOCKS
ROOTS_START = DATA_START + 1
SLABS_START = ROOTS_START + ROOT_COUNT

# Identifiers of partitions and components, and the state of a volume that was never started.
BLOCK_MAP_PARTITION, SLAB_PARTITION, JOURNAL_PARTITION, SUMMARY_PARTITION = range(4)
SUPER_BLOCK, LAYOUT, RECOVERY_JOURNAL, SLAB_DEPOT, BLOCK_MAP, GEOMETRY = range(6)
STATE_NEW = 1

NONCE = 0x0F1A_2012


def header(component, major, size):
    return struct.pack("<IIIQ", component, major, 0, size)


def checked(data):
    # The register of the driver's CRC-32 begins with zero.
    return data + struct.pack("<I", zlib.crc32(data, 0xFFFF_FFFF))


def geometry():
    magic = b"dmvdo001"
    body = struct.pack("<IQ16sQ", 0, NONCE, b"flaz peers vdo 1", 0)
    body += struct.pack("<IQIQ", 0, 1, 1, DATA_START)
    body += struct.pack("<IIB", INDEX_MEMORY_256_MIB, 0, 0)
    size = len(magic) + 20 + len(body) + 4
    return checked(magic + header(GEOMETRY, 5, size) + body)


def slab_config():
    """Size, data, reference counts and journal of a slab, with the thresholds at which its journal is written."""
    references = -(-(SLAB_BLOCKS - SLAB_JOURNAL_BLOCKS) // COUNTS_PER_REFERENCE_BLOCK)
    flushing = (SLAB_JOURNAL_BLOCKS * 3 + 3) // 4
    blocking = flushing + (SLAB_JOURNAL_BLOCKS - flushing) * 5 // 7
    scrubbing = SLAB_JOURNAL_BLOCKS - 1 - USER_REQUESTS_MAX // SLAB_JOURNAL_FULL_ENTRIES
    data = SLAB_BLOCKS - SLAB_JOURNAL_BLOCKS - references
    return (SLAB_BLOCKS, data, references, SLAB_JOURNAL_BLOCKS, flushing, min(blocking, scrubbing), scrubbing)


def physical_blocks(slabs):
    return SLABS_START + slabs * SLAB_BLOCKS + JOURNAL_BLOCKS + SUMMARY_BLOCKS


def super_block(slabs, logical_blocks):
    slabs_end = SLABS_START + slabs * SLAB_BLOCKS
    config = (logical_blocks, physical_blocks(slabs), SLAB_BLOCKS, JOURNAL_BLOCKS, SLAB_JOURNAL_BLOCKS)
    volume = struct.pack("<III", 0, 67, 0)
    volume += struct.pack("<IIIQQ5QQ", 41, 0, STATE_NEW, 0, 0, *config, NONCE)

    partitions = [
        (SLAB_PARTITION, SLABS_START, slabs * SLAB_BLOCKS),
        (JOURNAL_PARTITION, slabs_end, JOURNAL_BLOCKS),
        (SUMMARY_PARTITION, slabs_end + JOURNAL_BLOCKS, SUMMARY_BLOCKS),
        (BLOCK_MAP_PARTITION, ROOTS_START, ROOT_COUNT),
    ]
    layout = struct.pack("<QQB", slabs_end, slabs_end, len(partitions))
    for number, start, count in partitions:
        layout += struct.pack("<BQQQ", number, start, 0, count)

    components = volume + header(LAYOUT, 3, len(layout)) + layout
    components += header(RECOVERY_JOURNAL, 7, 24) + struct.pack("<QQQ", 1, 0, 0)
    depot = struct.pack("<7QQQB", *slab_config(), SLABS_START, slabs_end, 1)
    components += header(SLAB_DEPOT, 2, len(depot)) + depot
    components += header(BLOCK_MAP, 2, 32) + struct.pack("<4Q", 1, 0, ROOTS_START, ROOT_COUNT)
    return checked(header(SUPER_BLOCK, 12, len(components) + 4) + components)


def write(device, block, data):
    os.pwrite(device, data.ljust(-(-len(data) // BLOCK) * BLOCK, b"\0"), block * BLOCK)


def format_volume(path, slabs, logical_blocks):
    device = os.open(path, os.O_WRONLY)
    slabs_end = SLABS_START + slabs * SLAB_BLOCKS
    for start, count in [
        (0, INDEX_HEAD_BLOCKS),
        (DATA_START, SLABS_START - DATA_START),
        (slabs_end, JOURNAL_BLOCKS + SUMMARY_BLOCKS),
    ]:
        for block in range(start, start + count, 64):
            write(device, block, bytes(min(64, start + count - block) * BLOCK))
    write(device, DATA_START, super_block(slabs, logical_blocks))
    write(device, 0, geometry())
    os.fsync(device)
    os.close(device)


def main(arguments):
    if arguments[0] == "sizes":
        slabs = int(arguments[1]) * SLAB_BLOCKS
        before, behind = SLABS_START, JOURNAL_BLOCKS + SUMMARY_BLOCKS
        print(*(blocks * SECTORS_PER_BLOCK for blocks in (before, slabs, behind)))
    else:
        format_volume(arguments[1], int(arguments[2]), int(arguments[3]))


main(sys.argv[1:])
