#!/bin/bash
# A write-back cache that is full of dirty blocks, in front of a slow origin: writers get no error and go on at the speed of the
# origin, everything is read back, and a detach makes the origin complete.
#
# boot: --timeout 1200 --origin 256M --cache 48M
# shellcheck source=tests/vm/rig/lib.sh
. /flaz/lib.sh

device=/dev/flaz/disk
slow_disk=/dev/mapper/origin
write_delay_ms=20

modprobe -a ublk_drv dm-mod
dmsetup create origin --table "0 $(blockdev --getsz "$ORIGIN") delay $ORIGIN 0 0 $ORIGIN 0 $write_delay_ms"

dirty_blocks() {
    flaz status "$served" --json |
        python3 -c 'import json, sys; print(json.load(sys.stdin)["live"]["write_back"]["dirty_blocks"])'
}

flaz create "$CACHE" --origin "$slow_disk" >/dev/null 2>&1
serve --ublk=disk --threads 2 --mode write-back --block-size 4096

step "twice the cache in random writes of data that does not compress, verified"
fio --name=full --filename="$device" --direct=1 --ioengine=io_uring --iodepth=32 --rw=randwrite --bs=4k --size=96M \
    --refill_buffers --fsync=512 --do_verify=0 --verify=crc32c >/tmp/fio.out 2>&1 || fail "fio: $(tail -n 20 /tmp/fio.out)"
dirty=$(dirty_blocks)
echo "$dirty dirty blocks after 24576 writes"
[ "$dirty" -gt 2000 ] || fail "the cache is not full of dirty blocks: $dirty"
fio --name=full --filename="$device" --direct=1 --ioengine=io_uring --iodepth=32 --rw=randwrite --bs=4k --size=96M \
    --verify_only --verify=crc32c --verify_fatal=1 >/tmp/fio.out 2>&1 || fail "fio: $(tail -n 20 /tmp/fio.out)"

step "full again, and killed"
fio --name=full --filename="$device" --direct=1 --ioengine=io_uring --iodepth=32 --rw=randwrite --bs=4k --offset=128M --size=64M \
    --refill_buffers --fsync=512 --do_verify=0 --verify=crc32c >/tmp/fio.out 2>&1 || fail "fio: $(tail -n 20 /tmp/fio.out)"
kill_server
serve --ublk=disk --threads 2 --mode write-back --block-size 4096
started_warm "$served" || fail "the start after a kill was cold"
fio --name=full --filename="$device" --direct=1 --ioengine=io_uring --iodepth=32 --rw=randwrite --bs=4k --offset=128M --size=64M \
    --verify_only --verify=crc32c --verify_fatal=1 >/tmp/fio.out 2>&1 || fail "fio: $(tail -n 20 /tmp/fio.out)"

step "detach"
sum=$(sha256sum <"$device")
started_s=$SECONDS
flaz detach "$served" >/dev/null
wait_for_server
echo "detached in $((SECONDS - started_s)) s"
[ "$sum" = "$(sha256sum <"$ORIGIN")" ] || fail "the origin differs from the device"
