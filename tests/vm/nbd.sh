#!/bin/bash
# flaz under the kernel's NBD client: a file system is made and used through it, and survives a clean restart, which is
# warm, and kills of the daemon under load.
# shellcheck source=/dev/null
. /flaz/lib.sh

socket=/run/flaz.sock
server=
files=/mnt/files
kills=3

# serve OPTION...: starts the daemon and attaches /dev/nbd0.
serve() {
    flaz serve "$CACHE" --nbd "unix:$socket" "$@" >>/tmp/serve.log 2>&1 &
    server=$!
    wait_for 60 answers "$socket"
    attach "$socket"
}

stop() {
    detach
    flaz stop "$CACHE"
    wait "$server" || fail "flaz serve ended with status $?: $(tail -n 5 /tmp/serve.log)"
}

mount_files() {
    mkdir -p "$files"
    mount "$1" "$files"
}

verify_files() { (cd "$files" && sha256sum --quiet --check /tmp/hashes) || fail "files have other contents"; }

# check_file_system DEVICE: replays the journal, and then finds no error.
check_file_system() {
    e2fsck -p "$1" >/dev/null || [ $? -eq 1 ] || fail "fsck: the file system on $1 needs manual repair"
    e2fsck -fn "$1" >/tmp/fsck.out 2>&1 || fail "fsck: $(cat /tmp/fsck.out)"
}

# write_until_killed N: files that the file system acknowledged are recorded with their hashes in /tmp/ledger.
write_until_killed() {
    local number file
    for number in $(seq 1000); do
        file=load-$1-$number
        head -c $((RANDOM * 8)) /dev/urandom >"/tmp/$file"
        dd if="/tmp/$file" of="$files/$file" bs=64k conv=fsync status=none 2>/dev/null || return 0
        (cd /tmp && sha256sum "$file") >>/tmp/ledger
        rm "/tmp/$file"
    done
}

step "create and serve, write-through"
flaz create "$CACHE" --origin "$ORIGIN"
serve --mode write-through

step "ext4: make, fill, unmount, check"
mkfs.ext4 -q /dev/nbd0
mount_files /dev/nbd0
cp -r /usr/lib/x86_64-linux-gnu/{engines-3,gconv,systemd} /usr/bin "$files/"
(cd "$files" && find . -type f -print0 | xargs -0 sha256sum) >/tmp/hashes
step "$(wc -l </tmp/hashes) files, $(du -sm "$files" | cut -f 1) MB"
umount "$files"
check_file_system /dev/nbd0
mount_files /dev/nbd0
verify_files
umount "$files"

step "clean stop, warm start in write-back"
stop
flaz check "$CACHE" >/dev/null
serve --mode write-back
mount_files /dev/nbd0
verify_files
started_warm "$CACHE" || fail "the start was cold"

# The kernel reports each write that the kills make fail.
dmesg --console-level emerg
: >/tmp/ledger
for kill in $(seq $kills); do
    before=$(wc -l </tmp/ledger)
    write_until_killed "$kill" &
    writer=$!
    enough() { [ "$(wc -l </tmp/ledger)" -ge $((before + 20)) ]; }
    wait_for 60 enough
    kill -KILL "$server"
    wait "$server" 2>/dev/null || true
    wait "$writer"
    step "kill $kill with $(wc -l </tmp/ledger) acknowledged files"
    umount "$files"
    detach
    serve --mode write-back
    started_warm "$CACHE" || fail "the start was cold"
    check_file_system /dev/nbd0
    mount_files /dev/nbd0
    (cd "$files" && sha256sum --quiet --check /tmp/ledger) || fail "acknowledged files were lost"
done

step "clean stop, detach, the origin alone"
umount "$files"
stop
flaz serve "$CACHE" --nbd "unix:$socket" >>/tmp/serve.log 2>&1 &
server=$!
wait_for 60 answers "$socket"
flaz detach "$CACHE"
wait "$server" || fail "flaz serve ended with status $?"
check_file_system "$ORIGIN"
mount_files "$ORIGIN"
verify_files
(cd "$files" && sha256sum --quiet --check /tmp/ledger) || fail "acknowledged files are not on the origin"
umount "$files"
step "all files are on the origin"
