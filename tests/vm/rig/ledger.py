#!/usr/bin/python3
"""Writes blocks or files, keeps a ledger of what was acknowledged, and checks it.

Usage:
    ledger.py blocks DEVICE FIRST COUNT LEDGER END
        write blocks FIRST to FIRST+COUNT until the file END exists, check meanwhile; continues LEDGER, if it exists
    ledger.py check DEVICE LEDGER [EIO]              check the blocks of the ledger; with EIO, reads may fail with that
    ledger.py files DIRECTORY LEDGER END [LOGGED]    write files with fsync until the file END exists
    ledger.py check-files DIRECTORY LEDGER [COUNT]   check the files of the ledger, or those of its first COUNT lines
    ledger.py history DEVICE FIRST COUNT LEDGER END LOGGED
        write and flush blocks FIRST to FIRST+COUNT until the file END exists; replay.py checks them

A block contains its number and a version, so that an older version, or another block, is told from the right one. A write
of blocks is in the ledger when its write has returned, a file when its fsync has. A block whose write has failed may have the
old or the new version, until it is read. The last line of output says how many writes were acknowledged, how many blocks or
files were checked, and how many requests failed. A block or file with other contents is an error.

LOGGED is the name of a dm-log-writes device. Each acknowledged file or flush N leaves the mark LEDGER:N in its log, with the
file name of LEDGER. A history has a line "BLOCK VERSION" for each block before it is written, and a line "flush N", or "fua N
BLOCKS" for a write of the last BLOCKS blocks, after each flush.
"""

import errno
import fcntl
import hashlib
import mmap
import os
import random
import struct
import sys
import time

BLOCK = 4096
RUN_MAX = 16
FLUSH_EVERY = 64
# struct dm_ioctl and DM_TARGET_MSG of linux/dm-ioctl.h.
DM_HEADER = struct.Struct("=3I4I3IQ128s129s7x")
DM_TARGET_MSG = 0xC138FD0E
NOISE = random.Random(1).randbytes(1 << 16)


def contents(block, version):
    """A block that compresses to about half. Version 0 was never written."""
    if version == 0:
        return bytes(BLOCK)
    text = f"block {block} version {version} ".encode()
    start = (block * 7919 + version * 104729) % (len(NOISE) - 2048)
    return (text * 100)[:1024] + NOISE[start : start + 2048] + bytes(1024)


def direct(device, flags):
    return os.open(device, flags | os.O_DIRECT)


def read(file, buffer, block):
    with memoryview(buffer)[:BLOCK] as room:
        if os.preadv(file, [room], block * BLOCK) != BLOCK:
            sys.exit(f"block {block}: short read")
    return buffer[:BLOCK]


def check_block(file, buffer, block, versions):
    """Returns the version that was found."""
    found = read(file, buffer, block)
    for version in versions:
        if found == contents(block, version):
            return version
    sys.exit(f"LOST: block {block}: expected version {sorted(versions)}, found {bytes(found[:40])!r}")


def write(file, buffer, block, new, flags=0):
    buffer[: len(new) * BLOCK] = b"".join(contents(number, version) for number, version in new.items())
    with memoryview(buffer)[: len(new) * BLOCK] as data:
        if os.pwritev(file, [data], block * BLOCK, flags) != len(data):
            sys.exit(f"block {block}: short write")


def blocks(device, first, count, ledger, end):
    first, count = int(first), int(count)
    file, buffer = direct(device, os.O_RDWR), mmap.mmap(-1, RUN_MAX * BLOCK)
    # The versions that a block may have, and the newest.
    possible = dict(read_ledger(ledger)) if os.path.exists(ledger) else {}
    newest = {block: max(versions) for block, versions in possible.items()}
    acknowledged = checked = failed = 0
    choose = random.Random(first)
    while not os.path.exists(end):
        run = choose.choice([1, 1, 1, 4, RUN_MAX])
        block = first + choose.randrange(count - run)
        try:
            if choose.random() < 0.3:
                if block in possible:
                    possible[block] = {check_block(file, buffer, block, possible[block])}
                    checked += 1
                continue
            new = {number: newest.get(number, 0) + 1 for number in range(block, block + run)}
            newest.update(new)
            for number, version in new.items():
                possible.setdefault(number, {0}).add(version)
            write(file, buffer, block, new)
            possible.update((number, {version}) for number, version in new.items())
            acknowledged += 1
            if acknowledged % FLUSH_EVERY == 0:
                os.fsync(file)
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            failed += 1
            time.sleep(0.01)
    with open(ledger, "w") as lines:
        for block, versions in possible.items():
            lines.write(f"{block} {' '.join(map(str, sorted(versions)))}\n")
    print(f"{acknowledged} acknowledged, {checked} checked, {failed} failed")


def read_ledger(ledger):
    for line in open(ledger):
        block, *versions = map(int, line.split())
        yield block, set(versions)


def check(device, ledger, allowed=None):
    file, buffer = direct(device, os.O_RDONLY), mmap.mmap(-1, BLOCK)
    checked = failed = 0
    for block, versions in read_ledger(ledger):
        try:
            check_block(file, buffer, block, versions)
            checked += 1
        except OSError as error:
            if allowed is None or error.errno != errno.EIO:
                raise
            failed += 1
    print(f"0 acknowledged, {checked} checked, {failed} failed")


def device_mapper(device, command, flags=0, data=b""):
    """One ioctl, without the process that dmsetup would be."""
    size = DM_HEADER.size + len(data)
    header = DM_HEADER.pack(4, 0, 0, size, DM_HEADER.size, 0, 0, flags, 0, 0, 0, device.encode(), b"")
    with open("/dev/mapper/control", "rb") as control:
        fcntl.ioctl(control, command, bytearray(header + data))


def mark(logged, ledger, number):
    """Does what dmsetup message LOGGED 0 mark LEDGER:NUMBER does."""
    message = f"mark {os.path.basename(ledger)}:{number}".encode()
    device_mapper(logged, DM_TARGET_MSG, 0, struct.pack("=Q", 0) + message + b"\0")


def history(device, first, count, ledger, end, logged):
    first, count = int(first), int(count)
    file, buffer = direct(device, os.O_RDWR), mmap.mmap(-1, RUN_MAX * BLOCK)
    newest, written, flushes = {}, 0, 0
    choose = random.Random(first)
    with open(ledger, "w") as lines:
        while not os.path.exists(end):
            run = choose.choice([1, 1, 1, 4, RUN_MAX])
            block = first + choose.randrange(count - run)
            new = {number: newest.get(number, 0) + 1 for number in range(block, block + run)}
            newest.update(new)
            lines.writelines(f"{number} {version}\n" for number, version in new.items())
            how = choose.randrange(10)
            write(file, buffer, block, new, os.RWF_DSYNC if how == 0 else 0)
            written += 1
            if how == 0:
                lines.write(f"fua {flushes} {run}\n")
            elif how == 1:
                os.fsync(file)
                lines.write(f"flush {flushes}\n")
            else:
                continue
            mark(logged, ledger, flushes)
            flushes += 1
    print(f"{written} acknowledged, {flushes} flushes, 0 checked, 0 failed")


def files(directory, ledger, end, logged=None):
    choose, acknowledged = random.Random(7), 0
    with open(ledger, "w") as lines:
        while not os.path.exists(end):
            # Names are used again: a file of the ledger has the contents of its last line.
            name = f"file{choose.randrange(2000)}"
            data = contents(acknowledged, 1)[: choose.randrange(3000)] * choose.choice([1, 3, 20])
            # Renamed when it is complete, as databases do, so that a file has the old or the new contents.
            with open(f"{directory}/new", "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.rename(f"{directory}/new", f"{directory}/{name}")
            parent = os.open(directory, os.O_RDONLY)
            os.fsync(parent)
            os.close(parent)
            lines.write(f"{name} {hashlib.sha256(data).hexdigest()}\n")
            lines.flush()
            acknowledged += 1
            if logged:
                mark(logged, ledger, acknowledged)
    print(f"{acknowledged} acknowledged, 0 checked, 0 failed")


def check_files(directory, ledger, count=None):
    lines = [line.split() for line in open(ledger)]
    count = len(lines) if count is None else int(count)
    possible = {name: {expected} for name, expected in lines[:count]}
    # The next file may have been renamed already.
    for name, expected in lines[count : count + 1]:
        possible.setdefault(name, {None}).add(expected)
    for name, expected in possible.items():
        found = None
        if os.path.exists(f"{directory}/{name}"):
            with open(f"{directory}/{name}", "rb") as file:
                found = hashlib.sha256(file.read()).hexdigest()
        if found not in expected:
            sys.exit(f"LOST: {name} " + ("is missing" if found is None else "has other contents"))
    print(f"0 acknowledged, {min(count, len(possible))} checked, 0 failed")


if __name__ == "__main__":
    commands = {"blocks": blocks, "check": check, "history": history, "files": files, "check-files": check_files}
    commands[sys.argv[1]](*sys.argv[2:])
