"""Reads and writes until the server is killed, then notes down what was acknowledged and what was on its way.

The next run begins by reading the whole device: an acknowledged write must be there; of one that was on its way each
sector is old or new, and stays what it was at the first read. With FLAZ_VERIFY_ONLY a run ends there, for after the last
kill there is no next one.
"""
import os
import pickle
import random
import sys

SECTOR = 512
DEPTH = 8
LENGTH_MAX = 48 << 10

uri = os.environ["FLAZ_URI"]
state_path = os.environ["FLAZ_STATE"]
seed = int(os.environ["FLAZ_SEED"])
rng = random.Random(seed)
h.connect_uri(uri)
size = h.get_size()

if os.path.exists(state_path):
    with open(state_path, "rb") as state:
        model, lost = pickle.load(state)
else:
    with open(os.environ["FLAZ_ORIGIN"], "rb") as origin:
        model, lost = bytearray(origin.read()), []
assert len(model) == size, (len(model), size)

device = b"".join(h.pread(1 << 20, offset) for offset in range(0, size, 1 << 20))
for start in (at for at in range(0, size, SECTOR) if device[at:at + SECTOR] != model[at:at + SECTOR]):
    got = device[start:start + SECTOR]
    for offset, data in lost:
        first, end = max(start, offset), min(start + SECTOR, offset + len(data))
        if first < end:
            new = bytearray(model[start:start + SECTOR])
            new[first - start:end - start] = data[first - offset:end - offset]
            if got == new:
                break
    else:
        raise SystemExit(f"round of seed {seed}: sector at {start} (block {start // 4096}) is neither what was "
                         f"acknowledged nor what was on its way when the server was killed")
again = b"".join(h.pread(1 << 20, offset) for offset in range(0, size, 1 << 20))
assert again == device, f"round of seed {seed}: a second read gives something else"
model = bytearray(device)


def save(lost):
    with open(state_path, "wb") as state:
        pickle.dump((model, lost), state)


if "FLAZ_VERIFY_ONLY" in os.environ:
    save([])
    sys.exit()
open(os.environ["FLAZ_READY"], "w").close()

writes, reads, acknowledged = {}, {}, 0


def overlaps(offset, length, others):
    return any(offset < at + len(data) and at < offset + length for at, data in others)


def submit():
    unit = rng.choice([1, SECTOR, 4096])
    length = rng.randint(1, LENGTH_MAX // unit) * unit
    offset = rng.randrange(0, (size - length) // unit) * unit
    if overlaps(offset, length, writes.values()):
        return
    if rng.random() < 0.3:
        buffer = nbd.Buffer(length)
        reads[h.aio_pread(buffer, offset)] = (offset, buffer)
    elif not overlaps(offset, length, ((at, range(buffer.size())) for at, buffer in reads.values())):
        data = (rng.randbytes(32) * (length // 32 + 1))[:length]
        flags = nbd.CMD_FLAG_FUA if rng.random() < 0.1 else 0
        cookie = h.aio_pwrite(nbd.Buffer.from_bytearray(bytearray(data)), offset, flags=flags)
        writes[cookie] = (offset, data)


def completed(cookie):
    try:
        return h.aio_command_completed(cookie)
    except nbd.Error:
        return False


def collect():
    global acknowledged
    for cookie in [cookie for cookie in writes if completed(cookie)]:
        offset, data = writes.pop(cookie)
        model[offset:offset + len(data)] = data
        acknowledged += 1
    for cookie in [cookie for cookie in reads if completed(cookie)]:
        offset, buffer = reads.pop(cookie)
        got = buffer.to_bytearray()
        assert got == model[offset:offset + len(got)], f"round of seed {seed}: {len(got)} bytes at {offset} are wrong"


while not (h.aio_is_dead() or h.aio_is_closed()):
    try:
        while len(writes) + len(reads) < DEPTH:
            submit()
        h.poll(1000)
    except nbd.Error:
        break
    collect()
collect()
save(list(writes.values()))
print(f"{acknowledged} acknowledged")
