#!/bin/bash
# Power cuts: no write that flaz flushed is lost, in both modes. The disks forget what was not flushed.
# boot: --cut-at "durable 40" --env MODE=write-through
# boot: --cut-at "durable 80" --env MODE=write-back
# boot: --env MODE=write-back --env CHECK=only
# shellcheck source=/dev/null
. /flaz/lib.sh

socket=/run/flaz.sock

# The last number in the output of earlier boots that was printed after a flush.
durable=0
for log in /flaz/boot*.log; do
    [ -e "$log" ] || continue
    last=$(sed -n 's/^durable //p' "$log" | tail -n 1)
    durable=${last:-$durable}
done

# A negative control of the machine: the cut loses a write that was not flushed.
case "$BOOT" in
1)
    step "control: one write to the spare disk with a flush, one without"
    printf '%-4096s' written >/tmp/block
    dd if=/tmp/block of="$SPARE" bs=4k seek=0 oflag=direct conv=fsync status=none
    dd if=/tmp/block of="$SPARE" bs=4k seek=1 oflag=direct status=none
    flaz create "$CACHE" --origin "$ORIGIN"
    ;;
2)
    printed() { dd if="$SPARE" bs=4k skip="$1" count=1 status=none | tr -d '\0 '; }
    [ "$(printed 0)" = written ] || fail "the spare disk lost a flushed write"
    [ -z "$(printed 1)" ] || fail "the spare disk has kept a write that was not flushed"
    ;;
esac

flaz serve "$CACHE" --nbd "unix:$socket" --mode "$MODE" >/tmp/serve.log 2>&1 &
server=$!
wait_for 60 answers "$socket"
attach "$socket"

# Flush N follows the writes of number N to 16 blocks; they go round a ring of blocks. "durable N" is printed
# after flush N. A later write may be there as well.
step "boot $BOOT, $MODE: $durable flushes must be there"
python3 - "$durable" "${CHECK:-}" <<'END' || fail "a flushed write was lost, or a write failed"
import mmap, os, sys
durable, check_only = int(sys.argv[1]), sys.argv[2] == "only"
ring, flush_blocks, block_bytes = 256, 16, 4096
device = os.open("/dev/nbd0", os.O_RDWR | os.O_DIRECT)
buffer = mmap.mmap(-1, block_bytes)

def blocks_of(number):
    return [(number * flush_blocks + i) % ring for i in range(flush_blocks)]

for number in range(max(1, durable - ring // flush_blocks + 1), durable + 1):
    for block in blocks_of(number):
        os.preadv(device, [buffer], block * block_bytes)
        found = int.from_bytes(buffer[:8], "little")
        if found < number or buffer[:8] * (block_bytes // 8) != buffer[:]:
            sys.exit(f"block {block}: number {found}, expected at least {number}")
number = durable
while not check_only:
    number += 1
    for block in blocks_of(number):
        buffer[:] = number.to_bytes(8, "little") * (block_bytes // 8)
        os.pwritev(device, [buffer], block * block_bytes)
    os.fsync(device)
    print("durable", number, flush=True)
END
detach
flaz stop "$CACHE"
wait "$server"
flaz check "$CACHE" >/dev/null || fail "flaz check found errors"
step "$durable flushes are there"
