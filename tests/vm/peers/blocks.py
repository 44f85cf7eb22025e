#!/usr/bin/env python3
"""Writes for the comparison of caches, from a seed.

Usage: blocks.py shuffled DEVICE MIB COUNT SEED    writes COUNT blocks of the first MIB in random order, 16 at a time
       blocks.py sorted DEVICE MIB COUNT SEED      writes the same blocks in the order of their addresses, neighbours together,
                                                   and prints the milliseconds
       blocks.py check DEVICE MIB COUNT SEED       whether the device has them
       blocks.py database                          prints SQL that makes a database
       blocks.py transactions COUNT SEED           prints SQL of transactions on it
"""

import mmap
import os
import random
import sys
import time
from concurrent.futures import ThreadPoolExecutor

BLOCK = 4096
WRITERS = 16
RUN_BLOCKS_MAX = 256

ROWS = 300_000
WORDS = 4000
PHRASES = 20_000
WORDS_A_PHRASE = 8
PHRASES_A_ROW = 9


def contents(number, seed):
    """A block of which half is random."""
    chosen = random.Random(f"{seed} {number}")
    return b"".join(chosen.randbytes(256) + bytes(256) for _ in range(BLOCK // 512))


def numbers(mib, count, seed):
    return random.Random(seed).sample(range(mib * 256), count)


def write(device, first, data):
    # O_DIRECT needs aligned memory.
    with mmap.mmap(-1, len(data)) as aligned:
        aligned.write(data)
        written = os.pwrite(device, aligned, first * BLOCK)
    assert written == len(data), f"{written} of {len(data)} bytes written at block {first}"


def write_shuffled(path, mib, count, seed):
    device = os.open(path, os.O_WRONLY | os.O_DIRECT)
    with ThreadPoolExecutor(WRITERS) as writers:
        for _ in writers.map(lambda number: write(device, number, contents(number, seed)), numbers(mib, count, seed)):
            pass
    os.fsync(device)


def runs(ordered):
    """Neighbouring blocks together."""
    run = []
    for number in ordered:
        if run and (number != run[-1] + 1 or len(run) == RUN_BLOCKS_MAX):
            yield run
            run = []
        run.append(number)
    yield run


def write_sorted(path, mib, count, seed):
    device = os.open(path, os.O_WRONLY | os.O_DIRECT)
    ordered = [
        (run[0], b"".join(contents(number, seed) for number in run)) for run in runs(sorted(numbers(mib, count, seed)))
    ]
    begun = time.monotonic()
    with ThreadPoolExecutor(WRITERS) as writers:
        for _ in writers.map(lambda run: write(device, *run), ordered):
            pass
    os.fsync(device)
    print(round((time.monotonic() - begun) * 1000))


def check(path, mib, count, seed):
    with open(path, "rb") as device:
        for number in numbers(mib, count, seed):
            device.seek(number * BLOCK)
            if device.read(BLOCK) != contents(number, seed):
                sys.exit(f"{path}: block {number} is not what was written")


def phrases():
    """As in natural language, a few words are frequent."""
    chosen = random.Random(1)
    letters = "eeeettaaoinnsshrrdlu"
    words = ["".join(chosen.choice(letters) for _ in range(chosen.randint(3, 9))) for _ in range(WORDS)]
    return [" ".join(words[int(WORDS ** chosen.random()) - 1] for _ in range(WORDS_A_PHRASE)) for _ in range(PHRASES)]


def text(chosen, known):
    return " ".join(chosen.choices(known, k=PHRASES_A_ROW))


def print_database():
    chosen, known = random.Random(2), phrases()
    print("PRAGMA journal_mode = WAL; PRAGMA synchronous = OFF;")
    print("CREATE TABLE notes (id INTEGER PRIMARY KEY, version INTEGER, body TEXT); BEGIN;")
    for row in range(ROWS):
        print(f"INSERT INTO notes VALUES ({row}, 0, '{text(chosen, known)}');")
    print("COMMIT; PRAGMA wal_checkpoint(TRUNCATE);")


def popular_row(chosen):
    """Popularity falls with the rank; popular rows are not neighbours."""
    rank = int(ROWS ** chosen.random()) - 1
    return rank * 7919 % ROWS


def print_transactions(count, seed):
    chosen, known = random.Random(seed), phrases()
    print("PRAGMA synchronous = FULL; PRAGMA cache_size = -4000;")
    for _ in range(count):
        print("BEGIN;")
        for _ in range(4):
            print(f"SELECT length(body) FROM notes WHERE id = {popular_row(chosen)};")
        body = text(chosen, known)
        print(f"UPDATE notes SET version = version + 1, body = '{body}' WHERE id = {popular_row(chosen)};")
        print("COMMIT;")


def main(command, *arguments):
    if command in ("shuffled", "sorted", "check"):
        path, figures = arguments[0], [int(one) for one in arguments[1:]]
        {"shuffled": write_shuffled, "sorted": write_sorted, "check": check}[command](path, *figures)
    elif command == "database":
        print_database()
    else:
        print_transactions(*(int(one) for one in arguments))


main(*sys.argv[1:])
