#!/bin/bash
# The machine itself: its kernel has the drivers that the scenarios need, and a dm-cache works on its disks.
# shellcheck source=/dev/null
. /flaz/lib.sh

step "kernel $(uname -r), $(nproc) processors"
for module in ublk_drv nbd dm-cache dm-cache-smq dm-delay dm-flakey dm-log-writes bcache loop null_blk nvmet-tcp; do
    modprobe "$module"
done
[ -c /dev/ublk-control ] || fail "/dev/ublk-control is missing"
[ -b /dev/nbd0 ] || fail "/dev/nbd0 is missing"

step "dm-cache over $ORIGIN and $CACHE"
mib=2048
metadata_sectors=$((8 * mib)) cache_sectors=$((128 * mib)) origin_sectors=$((512 * mib))
dmsetup create metadata --table "0 $metadata_sectors linear $CACHE 0"
dmsetup create ssd --table "0 $cache_sectors linear $CACHE $metadata_sectors"
dmsetup create cached --table "0 $origin_sectors cache /dev/mapper/metadata /dev/mapper/ssd $ORIGIN 128 1 writeback smq 0"

step "fio writes and verifies"
fio --name=verify --filename=/dev/mapper/cached --direct=1 --ioengine=libaio --iodepth=16 --rw=randwrite --bs=4k \
    --size=256M --io_size=16M --verify=crc32c --do_verify=1 --randrepeat=0 --minimal >/tmp/fio.out || {
    cat /tmp/fio.out
    fail "fio found wrong data"
}
dmsetup status cached

step "dm-cache writes its dirty blocks back"
dmsetup suspend cached
dmsetup reload cached --table "0 $origin_sectors cache /dev/mapper/metadata /dev/mapper/ssd $ORIGIN 128 0 cleaner 0"
dmsetup resume cached
clean() { [ "$(dmsetup status cached | awk '{ print $14 }')" = 0 ]; }
wait_for 60 clean
cmp /dev/mapper/cached "$ORIGIN" -n $((origin_sectors * 512)) || fail "the origin differs from the cached device"
dmsetup remove cached
dmsetup remove ssd
dmsetup remove metadata
