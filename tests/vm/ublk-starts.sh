#!/bin/bash
# The server of a ublk device is killed while it starts, at every point of the take-over. The next one takes the device over.
#
# The device has one queue: Linux 6.12 gives a device to no other server if one was killed between the fetches of two queues.
#
# boot: --timeout 1200
# shellcheck source=tests/vm/rig/lib.sh
. /flaz/lib.sh

kills=${KILLS:-24}
device=/dev/flaz/disk
depth=64

modprobe -a ublk_drv dm-mod

options=(--ublk=disk --ublk-queues 1 --ublk-depth "$depth" --threads 2 --mode write-back --block-size 4096)
serve_disk() {
    starts=$(grep -c '^ready: ' "$serve_log" || true)
    serve "${options[@]}"
}

# kill_start MILLISECONDS: starts the server, and kills it then.
kill_start() {
    flaz serve "$CACHE" "${options[@]}" >>"$serve_log" 2>&1 &
    server=$!
    sleep "$(printf '0.%03d' "$1")"
    kill -0 "$server" || fail "flaz serve: $(tail -n 5 "$serve_log")"
    kill_server
}

# Begins to take /dev/ublkb0 over, as a server does, and dies: after START_USER_RECOVERY, or after as many fetches as the
# argument says. The commands are those of linux/ublk_cmd.h, and the offsets those of linux/io_uring.h.
cat >/tmp/take-over.py <<'PYTHON'
import ctypes, mmap, os, signal, struct, sys
ENTRIES, SQE128, URING_CMD = 128, 1 << 10, 46
libc = ctypes.CDLL(None, use_errno=True)
params = (ctypes.c_uint32 * 30)()
params[2] = SQE128
ring = libc.syscall(425, ENTRIES, params)
assert ring >= 0, os.strerror(ctypes.get_errno())
sq_tail, sq_array, cq_tail, cq_entries = params[11], params[16], params[21], params[25]
queues = mmap.mmap(ring, max(sq_array + 4 * ENTRIES, cq_entries + 16 * params[1]))
entries = mmap.mmap(ring, 128 * ENTRIES, offset=0x10000000)
sent = 0

def send(fd, number, command):
    global sent
    entry = struct.pack("<BBHiQQIIQQ", URING_CMD, 0, 0, fd, number, 0, 0, 0, sent, 0) + command
    entries[128 * sent : 128 * sent + len(entry)] = entry
    queues[sq_array + 4 * sent : sq_array + 4 * sent + 4] = struct.pack("<I", sent)
    sent += 1
    queues[sq_tail : sq_tail + 4] = struct.pack("<I", sent)

def enter(count, answers):
    assert libc.syscall(426, ring, count, answers, 1, None, 0) == count, os.strerror(ctypes.get_errno())

send(os.open("/dev/ublk-control", os.O_RDWR), 0x10, struct.pack("<IHHQQ", 0, 0xFFFF, 0, 0, 0))
enter(1, 1)
result = struct.unpack_from("<i", queues[cq_entries : cq_entries + 16], 8)[0]
assert result == 0, os.strerror(-result)
if len(sys.argv) > 1:
    memory = mmap.mmap(-1, 1 << 20)
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    device = os.open("/dev/ublkc0", os.O_RDWR)
    depth = int(sys.argv[1])
    for tag in range(depth):
        send(device, 0x20, struct.pack("<HHiQ", 0, tag, 0, address))
    enter(depth, 0)
os.kill(os.getpid(), signal.SIGKILL)
PYTHON

# take_over [DEPTH]: as soon as the driver has noticed that the server has ended.
take_over() {
    local deadline_s=$((SECONDS + 20))
    until python3 /tmp/take-over.py "$@" 2>/tmp/take-over.log || [ $? -eq 137 ]; do
        [ "$SECONDS" -lt "$deadline_s" ] || fail "take-over.py: $(cat /tmp/take-over.log)"
        sleep 0.1
    done
}

flaz create "$CACHE" --origin "$ORIGIN" 2>/dev/null
serve_disk
parts "$device"
start_writers /dev/mapper/blocks

step "killed after START_USER_RECOVERY"
kill_server
take_over
serve_disk
kill_server
take_over
kill_start 300
serve_disk

step "killed after the fetches, and before END_USER_RECOVERY"
kill_server
take_over "$depth"
serve_disk

step "killed $kills times at random"
kill_server
for _ in $(seq "$kills"); do
    kill_start $((RANDOM % 1000))
done
serve_disk
stop_writers
[ "$failed" -eq 0 ] || fail "$failed requests failed"

step "all is there"
verify_blocks /dev/mapper/blocks
unparts
flaz detach "$CACHE" >/dev/null
wait_for_server
parts "$ORIGIN"
verify_blocks /dev/mapper/blocks
unparts
! grep -E 'panicked|checksum' "$serve_log" || fail "the log of the daemon"
