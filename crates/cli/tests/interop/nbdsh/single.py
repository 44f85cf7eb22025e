"""Single commands at the limits of the device and of the protocol, and commands that must be refused."""
import errno
import os

uri = os.environ["FLAZ_URI"]
h.add_meta_context(nbd.CONTEXT_BASE_ALLOCATION)
h.connect_uri(uri)
size = h.get_size()

assert h.get_structured_replies_negotiated()
assert h.can_meta_context(nbd.CONTEXT_BASE_ALLOCATION)
assert h.get_block_size(nbd.SIZE_MINIMUM) == 1
assert h.get_block_size(nbd.SIZE_PREFERRED) == 4096
maximum = h.get_block_size(nbd.SIZE_MAXIMUM)
assert maximum == 32 << 20, maximum

# The last bytes of the device, read back by another request.
h.pwrite(b"the end", size - 7)
assert h.pread(4096, size - 4096)[-7:] == b"the end"
h.pwrite(b"\x5a", size - 1, nbd.CMD_FLAG_FUA)
assert h.pread(1, size - 1) == b"\x5a"

# A write of one byte does not change the rest of its block.
h.pwrite(b"a" * 8192, 65536)
h.pwrite(b"B", 65536 + 4095)
h.zero(1, 65536 + 4097)
want = bytearray(b"a" * 8192)
want[4095], want[4097] = ord("B"), 0
assert h.pread(8192, 65536) == want

# The largest allowed request, or the whole device, and a prefetch of the whole device.
whole = h.pread(min(size, maximum), 0)
assert whole[65536:65536 + 8192] == want
h.cache(size, 0)
assert h.pread(min(size, maximum), 0) == whole

# Let libnbd send requests that it would refuse itself.
h.set_strict_mode(0)


def refused(call, *errnos):
    try:
        call()
    except nbd.Error as error:
        assert error.errnum in errnos, (error.errnum, error)
    else:
        raise SystemExit(f"expected one of {[errno.errorcode[e] for e in errnos]}, and it succeeded")


beyond = (errno.EINVAL, errno.ENOSPC)
refused(lambda: h.pread(1, size), errno.EINVAL)
refused(lambda: h.pread(2, size - 1), errno.EINVAL)
refused(lambda: h.pread(512, (1 << 64) - 512), errno.EINVAL)
refused(lambda: h.pwrite(b"xy", size - 1), *beyond)
refused(lambda: h.pwrite(b"x", 1 << 62), *beyond)
refused(lambda: h.zero(2, size - 1), *beyond)
refused(lambda: h.trim(2, size - 1), *beyond)
refused(lambda: h.cache(2, size - 1), errno.EINVAL)
refused(lambda: h.block_status(2, size - 1, lambda *_: 0), errno.EINVAL)
refused(lambda: h.pread(512, 0, nbd.CMD_FLAG_NO_HOLE), errno.EINVAL)
refused(lambda: h.pread(maximum + 4096, 0), errno.EINVAL, errno.EOVERFLOW)

# An error ends the request, not the connection, and nothing was written.
assert h.pread(1, size - 1) == b"\x5a"
h.flush()
with open(os.environ["FLAZ_ORIGIN"], "rb") as origin:
    origin.seek(65536)
    assert origin.read(8192) == want
h.shutdown()

# A client without structured replies and without meta contexts.
plain = nbd.NBD()
plain.set_request_structured_replies(False)
plain.connect_uri(uri)
assert not plain.get_structured_replies_negotiated()
assert plain.pread(8192, 65536) == want
plain.pwrite(b"c" * 1000, 100)
assert plain.pread(1000, 100) == b"c" * 1000
plain.shutdown()

# A client that disconnects during the handshake, and one that disconnects with requests in flight.
gone = nbd.NBD()
gone.set_opt_mode(True)
gone.connect_uri(uri)
del gone
busy = nbd.NBD()
busy.connect_uri(uri)
buffers = [nbd.Buffer(1 << 20) for _ in range(4)]
for number, buffer in enumerate(buffers):
    busy.aio_pread(buffer, number << 20)
del busy

last = nbd.NBD()
last.connect_uri(uri)
assert last.pread(1000, 100) == b"c" * 1000
last.shutdown()
