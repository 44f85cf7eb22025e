#!/usr/bin/python3
"""Replays a log of dm-log-writes, and checks what is found there.

Usage:
    replay.py cuts IMAGE BEGIN SECONDS SEED [--no-flush PART] LOG PART=START:LENGTH... [LOG PART=...]... LEDGER...
        rebuild the device in the file IMAGE as power cuts would have left it
    replay.py copy DEVICE BEGIN SECONDS SEED LOG
        write the log to DEVICE, with its flushes
    replay.py freeze END LOGGED...
        until the file END exists, stop the dm-log-writes devices LOGGED now and then, and leave a mark cut:N in each log

The first two stop at the flushes, FUA writes and marks after the mark BEGIN; with several logs, at the marks of freeze. They stop
at as many as SECONDS allow, spread evenly, but at POINTS_MIN at least. They obey commands on standard input, each with one line
of answer:
    next                    go to the next point; "end" after the last one
    marked LEDGER           the number in the last mark of this ledger
    check DEVICE [AHEAD]    whether the ledgers' blocks on DEVICE are those of this point, or of AHEAD marks later:
                            "ok BLOCKS" or "LOST ..."
    quit                    no answer

A log contains writes in the order in which they were completed, each before the first flush after it or, with FUA, at once. So
everything before a point has happened. It is stable after a flush, or with FUA. Of the other writes, a cut leaves none, half or
all, as SEED says for each point and each part of the device.

One log has the order of all writes, but not the part that was flushed: there, each flush counts for all parts. With a log for
each part, the parts are disks of their own. With --no-flush, the flushes of one count for nothing, as if none had been sent.

The format of the log is that of drivers/md/dm-log-writes.c: a sector with the superblock, then for each entry a sector with
its header and, in a mark, the text, followed by the data that was written.
"""

import fcntl
import mmap
import os
import random
import struct
import sys
import time
from collections import namedtuple

from ledger import BLOCK, contents, device_mapper, mark

MAGIC, VERSION = 0x6A736677736872, 1
SUPER, HEADER = struct.Struct("<QQQI"), struct.Struct("<QQQQ")
FLUSH, FUA, DISCARD, MARK = 1, 2, 4, 8
BLKDISCARD = 0x1277
DM_DEV_SUSPEND, DM_SUSPEND_FLAG, DM_SKIP_LOCKFS_FLAG = 0xC138FD06, 2, 1 << 10
CHUNK = 64 * BLOCK
POINTS_MIN = 4

Entry = namedtuple("Entry", "flags start length data mark")


def read_log(path):
    """The log's file and its entries; positions and lengths in bytes."""
    log = open(path, "rb", buffering=0)
    magic, version, count, sector = SUPER.unpack(log.read(SUPER.size))
    if (magic, version) != (MAGIC, VERSION):
        sys.exit(f"{path}: no log, or another version of it: {magic:x}, {version}")
    entries, place = [], sector
    for _ in range(count):
        header = os.pread(log.fileno(), sector, place)
        start, length, flags, data_length = HEADER.unpack_from(header)
        text = header[HEADER.size : HEADER.size + data_length].decode() if flags & MARK else None
        place += sector
        entries.append(Entry(flags, start * sector, length * sector, place, text))
        if not flags & DISCARD:
            place += length * sector
    return log, entries


class Log:
    """A log that is replayed from its beginning on."""

    def __init__(self, path):
        self.file, self.entries = read_log(path)
        self.done, self.parts = 0, []

    def until(self, last):
        """The entries that were not replayed yet, up to number `last`."""
        entries, self.done = self.entries[self.done : last + 1], last + 1
        return entries

    def data(self, entry):
        return os.pread(self.file.fileno(), entry.length, entry.data)

    def index(self, mark):
        return next(i for i, entry in enumerate(self.entries) if entry.mark == mark)


class Replay:
    """Goes from point to point."""

    def __init__(self, logs, begin, seconds, seed):
        self.logs, self.marked, self.seed = logs, {}, seed
        log = logs[0]
        first = log.index(begin)
        found = [i for i, entry in enumerate(log.entries) if i > first and entry.flags & (FLUSH | FUA | MARK)]
        what = "flushes, FUA writes and marks"
        if len(logs) > 1:
            found = [i for i in found if (log.entries[i].mark or "").startswith("cut:")]
            what = "cuts"
        self.points, self.at = found, -1
        self.began_s, self.seconds = time.monotonic(), int(seconds)
        print(f"{len(found)} {what}, in {sum(len(log.entries) for log in logs)} entries", flush=True)

    def next(self):
        """Returns the number of the entry, or None after the last point."""
        due = int(len(self.points) * (time.monotonic() - self.began_s) / self.seconds)
        self.at += max(1, min(due - self.at, len(self.points) // POINTS_MIN))
        if self.at >= len(self.points):
            return None
        point = self.points[self.at]
        mark = self.logs[0].entries[point].mark
        for log in self.logs:
            for entry in log.until(point if log is self.logs[0] else log.index(mark)):
                if entry.mark and ":" in entry.mark:
                    ledger, number = entry.mark.split(":")
                    self.marked[ledger] = int(number)
                self.apply(log, entry)
        return point


class Copy(Replay):
    """Writes to a device what was written to the other one."""

    def __init__(self, device, begin, seconds, seed, log):
        super().__init__([Log(log)], begin, seconds, seed)
        self.device = os.open(device, os.O_RDWR | os.O_DIRECT)
        lengths = [entry.length for entry in self.logs[0].entries if not entry.flags & DISCARD]
        self.buffer = mmap.mmap(-1, max(lengths))

    def apply(self, log, entry):
        if entry.flags & FLUSH:
            os.fsync(self.device)
        if entry.flags & DISCARD:
            fcntl.ioctl(self.device, BLKDISCARD, struct.pack("=QQ", entry.start, entry.length))
        elif entry.length:
            self.buffer[: entry.length] = log.data(entry)
            with memoryview(self.buffer)[: entry.length] as data:
                written = os.pwritev(self.device, [data], entry.start, os.RWF_DSYNC if entry.flags & FUA else 0)
            if written != entry.length:
                sys.exit(f"short write at {entry.start}")

    def next(self):
        point = super().next()
        return "end" if point is None else f"entry {point}"


class Part:
    """A part of the device, and its writes since the last flush. One with FUA has its place in their order, and is stable."""

    def __init__(self, text):
        self.name, place = text.split("=")
        self.start, length = map(int, place.split(":"))
        self.end, self.pending = self.start + length, []


class Cuts(Replay):
    """Rebuilds the device after a power cut."""

    def __init__(self, image, begin, seconds, seed, *words):
        words, logs, self.histories = list(words), [], []
        self.no_flush = words.pop(1) if words[0] == "--no-flush" else None
        for word in words:
            if word.startswith("/dev/"):
                logs.append(Log(word))
            elif "=" in word:
                logs[-1].parts.append(Part(word))
            elif word != "--no-flush":
                self.histories.append(History(word))
        size = max(part.end for log in logs for part in log.parts)
        self.stable = mmap.mmap(-1, size)
        with open(image, "r+b") as file:
            self.image = mmap.mmap(file.fileno(), size)
        super().__init__(logs, begin, seconds, seed)

    def write(self, target, log, part, entry):
        # A log of one part does not know where the part is.
        start = entry.start + (part.start if len(self.logs) > 1 else 0)
        target[start : start + entry.length] = bytes(entry.length) if entry.flags & DISCARD else log.data(entry)

    def apply(self, log, entry):
        if entry.flags & FLUSH:
            for part in log.parts:
                if part.name != self.no_flush:
                    for write in part.pending:
                        self.write(self.stable, log, part, write)
                    part.pending = []
        if entry.length:
            part = log.parts[0]
            if len(self.logs) == 1:
                part = next(part for part in log.parts if part.start <= entry.start < part.end)
            part.pending.append(entry)
            if entry.flags & FUA:
                self.write(self.stable, log, part, entry)

    def next(self):
        point = super().next()
        if point is None:
            return "end"
        memoryview(self.image)[:] = memoryview(self.stable)
        kept, choose = [], random.Random(f"{self.seed} {point}")
        for log in self.logs:
            for part in log.parts:
                share = 0 if self.no_flush else choose.choice([0, 0.5, 1])
                left = [write for write in part.pending if write.flags & FUA or choose.random() < share]
                for write in left:
                    self.write(self.image, log, part, write)
                kept.append(f"{part.name} {len(left)} of {len(part.pending)}")
        return f"entry {point}; writes left since the flush: {', '.join(kept)}"

    def check(self, device, ahead=0):
        return f"ok {sum(history.check(device, self.marked, int(ahead)) for history in self.histories)}"


class Lost(Exception):
    pass


class History:
    """A ledger of `ledger.py history`."""

    def __init__(self, path):
        self.name = os.path.basename(path)
        self.events = [line.split() for line in open(path)]

    def possible(self, last):
        """Versions of each block when flush `last` has been acknowledged, and the next one has not left its mark."""
        versions, recent = {}, []
        for event in self.events:
            if event[0] in ("flush", "fua"):
                if int(event[1]) > last:
                    break
                stable = recent if event[0] == "flush" else recent[-int(event[2]) :]
                for block in stable:
                    versions[block] = versions[block][-1:]
                recent = [] if event[0] == "flush" else recent
            else:
                block = int(event[0])
                versions.setdefault(block, [0]).append(int(event[1]))
                recent.append(block)
        return versions

    def check(self, device, marked, ahead):
        """Returns the number of blocks that must have a version that was written."""
        possible = self.possible(marked.get(self.name, -1) + ahead)
        with open(os.open(device, os.O_RDONLY | os.O_DIRECT), "rb", buffering=0) as file:
            self.compare(file, possible)
        return sum(versions[0] > 0 for versions in possible.values())

    def compare(self, file, possible):
        buffer, chunk = mmap.mmap(-1, CHUNK), None
        for block in sorted(possible):
            start = block * BLOCK // CHUNK * CHUNK
            if start != chunk:
                os.preadv(file.fileno(), [buffer], start)
                chunk = start
            found = buffer[block * BLOCK - start : (block + 1) * BLOCK - start]
            if not any(found == contents(block, version) for version in reversed(possible[block])):
                raise Lost(f"{self.name}: block {block}: expected version {possible[block]}, found {found[:40]!r}")


def freeze(end, *devices):
    choose, cuts = random.Random(1), 0
    while not os.path.exists(end):
        time.sleep(choose.random() / 4)
        # When all are stopped, nothing is in flight: the marks are one moment.
        for device in devices:
            device_mapper(device, DM_DEV_SUSPEND, DM_SUSPEND_FLAG | DM_SKIP_LOCKFS_FLAG)
        for device in devices:
            mark(device, "cut", cuts)
        for device in reversed(devices):
            device_mapper(device, DM_DEV_SUSPEND, 0)
        cuts += 1
    print(f"{cuts} cuts")


def obey(replay):
    for line in sys.stdin:
        command, *words = line.split()
        try:
            if command == "quit":
                return
            if command == "next":
                answer = replay.next()
            elif command == "marked":
                answer = replay.marked.get(words[0], 0)
            else:
                answer = replay.check(*words)
        except (Lost, OSError) as error:
            answer = f"LOST {error}"
        print(answer, flush=True)


command, *arguments = sys.argv[1:]
if command == "freeze":
    freeze(*arguments)
else:
    obey({"cuts": Cuts, "copy": Copy}[command](*arguments))
