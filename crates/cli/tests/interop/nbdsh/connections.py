"""Several connections at once: each owns every fourth stretch of the device, and a flush of one covers all."""
import os
import random
import threading

CONNECTIONS = 4
ROUNDS = 250
STRETCH = 96 << 10  # crosses blocks, extents and stripes at different places

uri = os.environ["FLAZ_URI"]
seed = int(os.environ["FLAZ_SEED"])
with open(os.environ["FLAZ_ORIGIN"], "rb") as origin:
    model = bytearray(origin.read())
size = len(model)
handles = []
for _ in range(CONNECTIONS):
    handle = nbd.NBD()
    handle.connect_uri(uri)
    assert handle.can_multi_conn()
    handles.append(handle)
problems = []


def work(number):
    try:
        handle, rng = handles[number], random.Random(seed * CONNECTIONS + number)
        mine = [at for at in range(0, size - STRETCH, STRETCH) if at // STRETCH % CONNECTIONS == number]
        for turn in range(ROUNDS):
            start = rng.choice(mine) + rng.randrange(STRETCH // 2)
            length = rng.randint(1, STRETCH // 2)
            if rng.random() < 0.5:
                data = (rng.randbytes(16) * (length // 16 + 1))[:length]
                handle.pwrite(data, start)
                model[start:start + length] = data
            elif handle.pread(length, start) != model[start:start + length]:
                problems.append(f"FLAZ_SEED={seed}: connection {number}, turn {turn}: {length} bytes at {start}")
                return
    except Exception as error:
        problems.append(f"FLAZ_SEED={seed}: connection {number}: {error}")


threads = [threading.Thread(target=work, args=(number,)) for number in range(CONNECTIONS)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
if problems:
    raise SystemExit("\n".join(problems))

# A write of one connection is visible to all others before any flush.
for number, handle in enumerate(handles):
    handle.pwrite(bytes([number + 1]) * 5000, 1000)
    model[1000:6000] = bytes([number + 1]) * 5000
    for other in handles:
        assert other.pread(5000, 1000) == model[1000:6000], number

handles[0].flush()
with open(os.environ["FLAZ_ORIGIN"], "rb") as origin:
    assert origin.read() == model, f"FLAZ_SEED={seed}: the origin differs after the flush"
for handle in handles:
    handle.shutdown()
