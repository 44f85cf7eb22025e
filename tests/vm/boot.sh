#!/bin/bash
# The shipped unit and the line in /etc/fstab of docs/boot.md, for both kinds of block devices: boots that mount, without the SSD,
# and without the origin; restarts and kills under a mounted file system; a shutdown that unmounts first.
#
# boot: --systemd --env DEVICE=ublk --env SHUTDOWN=clean
# boot: --systemd --env DEVICE=ublk --env SHUTDOWN=clean
# boot: --systemd --env DEVICE=ublk --without cache
# boot: --systemd --env DEVICE=ublk --without origin
# boot: --systemd --env DEVICE=ublk --env SHUTDOWN=clean
# boot: --systemd --env DEVICE=nbd-device --env SHUTDOWN=clean
# boot: --systemd --env DEVICE=nbd-device --without cache
# boot: --systemd --env DEVICE=nbd-device --without origin
# boot: --systemd --env DEVICE=nbd-device
# shellcheck source=tests/vm/rig/lib.sh
. /flaz/lib.sh

cache=/dev/disk/by-id/virtio-cache
unit=flaz@disk.service
mount=srv-disk.mount

# The jobs of the boot, besides this script and the target that waits for it, and those of a start that waits for a missing disk.
waiting='flaz-vm.service|multi-user.target|graphical.target|systemd-update-utmp'
retry='flaz@disk.service|virtio.*\.device'
boot_ended() {
    ! systemctl list-jobs --no-legend | grep -qvE "$waiting${has_started:+|$retry}"
}
# The first attempt to start is over: it has succeeded, or has said why not.
has_started=
is_mounted() { mountpoint -q /srv/disk; }
main_pid() { systemctl show --property MainPID --value "$unit"; }
new_server() { [ "$(main_pid)" -ne 0 ] && [ "$(main_pid)" -ne "$before" ] && [ "$(systemctl is-active "$unit")" = active ]; }
verify_files() {
    echo 3 >/proc/sys/vm/drop_caches
    (cd /srv/disk && sha256sum --quiet --check hashes) || fail "files have other contents $1"
}
# says TEXT: whether the log of the unit contains it.
says() { unit_log | grep -q "$1" || fail "no '$1' in: $(unit_log | tail -n 10)"; }
unit_log() { journalctl --unit "$unit" --boot --output cat; }
# The file system was unmounted before its device stopped: fsck at boot found no journal to replay.
unmounted_cleanly() {
    local found
    found=$(journalctl --unit systemd-fsck@dev-flaz-disk.service --boot --output cat)
    case "$found" in *'recovering journal'*) return 1 ;; esac
    case "$found" in *': clean,'*) ;; *) return 1 ;; esac
}
# The server's memory is locked, and PR_SET_IO_FLUSHER is set: PF_MEMALLOC_NOIO and PF_LOCAL_THROTTLE of the kernel. flaz reports
# the second only at the log level debug.
io_flusher_flags=$((0x00180000))
prepared_for_pressure() {
    local pid flags
    pid=$(main_pid)
    grep -q '^VmLck:[[:space:]]*[1-9]' "/proc/$pid/status" || fail "the memory of the server is not locked"
    flags=$(sed 's/.*) //' "/proc/$pid/stat" | cut -d ' ' -f 7)
    [ $((flags & io_flusher_flags)) -eq "$io_flusher_flags" ] || fail "PR_SET_IO_FLUSHER is not set (flags $flags)"
}

step "boot $BOOT, $DEVICE"
start_is_over() { systemctl is-active "$unit" || unit_log | grep -q 'flaz: '; }
wait_for 300 start_is_over
has_started=yes
wait_for 300 boot_ended
case "$BOOT" in
1)
    ! is_mounted || fail "something is mounted on /srv/disk"
    systemctl stop "$unit"
    flaz create "$cache" --origin /dev/disk/by-id/virtio-origin 2>/dev/null
    systemctl start "$unit"
    mkfs.ext4 -q /dev/flaz/disk
    udevadm settle
    systemctl start "$mount"
    is_mounted || fail "the file system is not mounted"
    cp -r /usr/sbin /srv/disk/
    (cd /srv/disk && find sbin -type f -print0 | xargs -0 sha256sum >/tmp/hashes && mv /tmp/hashes .)
    ;;
2 | 5 | 6 | 9)
    is_mounted || fail "the file system is not mounted: $(systemctl status "$mount")"
    started_warm "$cache" || fail "the start after a shutdown was cold"
    unmounted_cleanly || fail "fsck: $(journalctl -u systemd-fsck@dev-flaz-disk.service -b -o cat)"
    prepared_for_pressure
    ! unit_log | grep -iE 'lock|warn|after a crash' || fail "a warning of the daemon"
    verify_files "after a boot"
    before=$(main_pid)

    step "restart with another file of the program, and a kill, under the file system"
    verify_files "during a restart" &
    reader=$!
    cp /usr/bin/flaz /usr/bin/flaz.new
    mv /usr/bin/flaz.new /usr/bin/flaz
    systemctl restart "$unit"
    new_server || fail "the daemon was not restarted"
    wait "$reader" || fail "files were not read during the restart"
    before=$(main_pid)
    kill -KILL "$before"
    wait_for 60 new_server
    is_mounted || fail "the file system was unmounted"
    verify_files "after a kill"
    ;;
3 | 7)
    ! is_mounted || fail "a file system is mounted without the SSD"
    says '/dev/disk/by-id/virtio-cache: no such cache device'
    ;;
4 | 8)
    ! is_mounted || fail "a file system is mounted without the origin"
    says 'virtio-origin: No such file'
    ;;
esac
