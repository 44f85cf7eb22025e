#!/bin/bash
# Power cuts under ext4 on the block device: every file that was synced before the cut is there, in both modes. The disks forget
# what was not flushed; powercut.sh has the control of that.
#
# boot: --memory 3G --origin 512M --cut-at "durable 40 " --env MODE=write-through
# boot: --memory 3G --origin 512M --cut-at "durable 40 " --env MODE=write-back
# boot: --memory 3G --origin 512M --env MODE=write-back
# shellcheck source=tests/vm/rig/lib.sh
. /flaz/lib.sh

device=/dev/flaz/disk
files=/mnt/files
boots=3
mkdir -p "$files"

modprobe ublk_drv

# The ledger: lines "durable NUMBER FILE HASH" on the consoles of earlier boots.
sed -n 's/^durable [0-9]* \(boot[0-9]*-[0-9]*\) \([0-9a-f]\{64\}\)$/\2  \1/p' /flaz/boot*.log >/tmp/hashes 2>/dev/null || true
files_min=$((40 * (BOOT - 1)))
[ "$(wc -l </tmp/hashes)" -ge "$files_min" ] || fail "$(wc -l </tmp/hashes) files in the ledger, expected $files_min"

if [ "$BOOT" -eq 1 ]; then
    flaz create "$CACHE" --origin "$ORIGIN" 2>/dev/null
fi
serve --ublk=disk --threads 2 --mode "$MODE" --block-size 4096
if [ "$BOOT" -eq 1 ]; then
    mkfs.ext4 -q "$device"
fi

step "boot $BOOT, $MODE: $(wc -l </tmp/hashes) files must be there"
mount "$device" "$files"
if [ -s /tmp/hashes ]; then
    (cd "$files" && sha256sum --quiet --check /tmp/hashes) || fail "synced files were lost"
fi

# Each name is used once, so that a file has the contents of the ledger or was not acknowledged.
number=0
while [ "$BOOT" -lt "$boots" ]; do
    number=$((number + 1))
    name=boot$BOOT-$number
    head -c $((RANDOM * 2)) /dev/urandom | base64 >"$files/new"
    hash=$(sha256sum <"$files/new")
    sync "$files/new"
    mv "$files/new" "$files/$name"
    sync "$files"
    echo "durable $number $name ${hash%% *}"
done

umount "$files"
e2fsck -fn "$device" >/tmp/fsck.out 2>&1 || fail "fsck: $(cat /tmp/fsck.out)"
stop
flaz check "$CACHE" >/dev/null || fail "flaz check found errors"
! grep -E 'panicked|checksum' "$serve_log" || fail "the log of the daemon"
