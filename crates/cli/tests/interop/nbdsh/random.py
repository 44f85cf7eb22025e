"""Random commands of every kind and any length, against a copy of the device in memory.

A failure prints the seed; FLAZ_SEED=... replays it.
"""
import os
import random

COMMANDS = 3000
SPAN_MAX = 192 << 10

uri = os.environ["FLAZ_URI"]
seed = int(os.environ["FLAZ_SEED"])
rng = random.Random(seed)

h.add_meta_context(nbd.CONTEXT_BASE_ALLOCATION)
h.connect_uri(uri)
size = h.get_size()
with open(os.environ["FLAZ_ORIGIN"], "rb") as origin:
    model = bytearray(origin.read())
assert len(model) == size, (len(model), size)


def span():
    """An offset and a length: odd ones, sectors and blocks, also across block and stripe boundaries."""
    unit = rng.choice([1, 1, 512, 4096])
    length = rng.choice([unit, unit * rng.randint(1, 8), rng.randint(1, SPAN_MAX)])
    length = max(unit, min(length, SPAN_MAX) // unit * unit)
    if rng.random() < 0.2:
        boundary = rng.choice([4096, 65536, 1 << 20]) * rng.randint(1, 7)
        offset = boundary - length // 2
    else:
        offset = rng.randrange(0, size - length)
    offset = max(0, min(offset, size - length)) // unit * unit
    return offset, length


def payload(length):
    kind = rng.randrange(4)
    if kind == 0:
        return bytes(length)
    if kind == 1:
        return bytes([rng.randrange(256)]) * length
    if kind == 2:
        return rng.randbytes(length)
    return (rng.randbytes(24) * (length // 24 + 1))[:length]


def check(step, what, offset, got):
    want = model[offset:offset + len(got)]
    if got != want:
        at = next(i for i in range(len(got)) if got[i] != want[i])
        raise SystemExit(
            f"FLAZ_SEED={seed}: step {step}, {what}: read {len(got)} bytes at {offset}: byte {offset + at} "
            f"(block {(offset + at) // 4096}) is {got[at]:#04x}, expected {want[at]:#04x}")


for step in range(COMMANDS):
    what = rng.choices(
        ["pread", "structured", "pwrite", "zero", "trim", "cache", "flush", "status"],
        [30, 10, 30, 8, 6, 6, 3, 7])[0]
    offset, length = span()
    fua = nbd.CMD_FLAG_FUA if rng.random() < 0.2 else 0
    if what == "pread":
        check(step, what, offset, h.pread(length, offset))
    elif what == "structured":
        got = bytearray(length)
        seen = []

        def chunk(data, at, status, error):
            got[at - offset:at - offset + len(data)] = data
            seen.append((at, len(data)))

        flags = rng.choice([0, nbd.CMD_FLAG_DF])
        h.pread_structured(length, offset, chunk, flags=flags)
        if flags:
            assert len(seen) == 1, f"FLAZ_SEED={seed}: step {step}: {len(seen)} chunks in spite of DF"
        check(step, what, offset, bytes(got))
    elif what == "pwrite":
        data = payload(length)
        h.pwrite(data, offset, flags=fua)
        model[offset:offset + length] = data
    elif what == "zero":
        h.zero(length, offset, flags=fua | rng.choice([0, nbd.CMD_FLAG_NO_HOLE]))
        model[offset:offset + length] = bytes(length)
    elif what == "trim":
        # A trimmed range may read as anything, but as the same from then on.
        h.trim(length, offset, flags=fua)
        model[offset:offset + length] = h.pread(length, offset)
    elif what == "cache":
        h.cache(length, offset)
    elif what == "flush":
        h.flush()
    else:
        extents = []

        def extent(context, at, entries, error):
            assert context == nbd.CONTEXT_BASE_ALLOCATION
            extents.extend(zip(entries[0::2], entries[1::2]))

        h.block_status(length, offset, extent)
        assert extents, f"FLAZ_SEED={seed}: step {step}: no extents"
        at = offset
        for run, state in extents:
            assert run > 0, f"FLAZ_SEED={seed}: step {step}: an empty extent"
            end = min(at + run, size)
            if state & nbd.STATE_ZERO and any(model[at:end]):
                raise SystemExit(f"FLAZ_SEED={seed}: step {step}: bytes {at}..{end} are called zero and are not")
            at = end

for offset in range(0, size, 1 << 20):
    check(COMMANDS, "the last look", offset, h.pread(min(1 << 20, size - offset), offset))
h.flush()
with open(os.environ["FLAZ_ORIGIN"], "rb") as origin:
    on_origin = origin.read()
if on_origin != model:
    at = next(i for i in range(size) if on_origin[i] != model[i])
    raise SystemExit(f"FLAZ_SEED={seed}: after the flush the origin differs at byte {at} (block {at // 4096})")
h.shutdown()
