#!/bin/bash
# The Debian package: installed, configured, mounted, upgraded under load, removed and purged. `make deb` builds it.
# boot: --systemd --timeout 900
# files: target/debian/flaz_*.deb
# shellcheck source=tests/vm/rig/lib.sh
. /flaz/lib.sh

# Not the copy in /flaz.
flaz=/usr/bin/flaz
packages=(/flaz/flaz_*.deb)
package=${packages[0]}
unit=flaz@disk.service
records=/var/lib/flaz

main_pid() { systemctl show --property MainPID --value "$unit"; }
is_active() { systemctl is-active --quiet "$unit"; }
# Files with checksums, as fast as they are stable.
write_files() {
    local number=0
    while [ ! -e /tmp/end ]; do
        number=$((number + 1))
        head -c 256K /dev/urandom >"/mnt/file$number"
        sync "/mnt/file$number"
        (cd /mnt && sha256sum "file$number") >>/tmp/hashes
    done
}

step "install $(basename "$package")"
dpkg --install "$package"
# The machine's images leave out manual pages, so they are only listed.
dpkg --listfiles flaz >/tmp/files
for file in /usr/lib/systemd/system/flaz@.service /usr/lib/udev/rules.d/60-flaz.rules /etc/flaz/example.toml.sample \
    /usr/share/man/man1/flaz.1.gz /usr/share/bash-completion/completions/flaz; do
    grep -qx "$file" /tmp/files || fail "$file is not in the package"
done
"$flaz" list 2>&1 | grep -q 'no configuration' || fail "the example is taken for a configuration"

step "configure, start, mount"
"$flaz" create "$CACHE" --origin "$ORIGIN" --name disk >/dev/null
echo 'mode = "write-back"' >>/etc/flaz/disk.toml
systemctl daemon-reload
systemctl show --property After --value "$unit" | tr ' ' '\n' >/tmp/after
for device in "$CACHE" "$ORIGIN"; do
    grep -qx "$(systemd-escape --path --suffix=device "$device")" /tmp/after || fail "no order after $device: $(cat /tmp/after)"
done
systemctl enable --quiet --now "$unit"
"$flaz" list | grep -q '^disk  *running .* write-back ' || fail "flaz list: $("$flaz" list)"
mkfs.ext4 -q /dev/flaz/disk
mount -o _netdev /dev/flaz/disk /mnt

step "upgrade under load"
write_files &
writer=$!
some_files() { [ "$(wc -l </tmp/hashes)" -ge "$1" ]; }
wait_for 60 some_files 5
before=$(main_pid)
dpkg --install "$package"
[ "$(main_pid)" -ne "$before" ] || fail "the upgrade did not restart the instance"
is_active || fail "$(systemctl status "$unit")"
mountpoint -q /mnt || fail "the file system was unmounted"
wait_for 60 some_files $(($(wc -l </tmp/hashes) + 5))
touch /tmp/end
wait "$writer" || fail "a write failed during the upgrade"
echo 3 >/proc/sys/vm/drop_caches
(cd /mnt && sha256sum --quiet --check /tmp/hashes) || fail "files have other contents after the upgrade"
echo "$(wc -l </tmp/hashes) files written and checked"

step "remove: refused while mounted"
refused 'release it before' dpkg --remove flaz
is_active || fail "the instance was stopped by a removal that was refused"
verify_after() { (mount -o ro "$ORIGIN" /mnt && cd /mnt && sha256sum --quiet --check /tmp/hashes); }
umount /mnt
"$flaz" flush disk >/dev/null
dpkg --remove flaz
! is_active || fail "the instance still runs"
[ ! -e "$flaz" ] || fail "$flaz is still there"
[ -e /etc/flaz/disk.toml ] || fail "a removal deleted the configuration"
verify_after || fail "the origin is not complete"
umount /mnt

step "purge: nothing is deleted that a dirty cache needs"
sed -i 's/"dirty": false/"dirty": true/' "$records"/*.json
dpkg --purge flaz 2>/tmp/purge
grep -q 'flaz detach' /tmp/purge || fail "it says nothing: $(cat /tmp/purge)"
[ -e /etc/flaz/disk.toml ] || fail "a purge deleted the configuration of a dirty cache"

step "purge"
sed -i 's/"dirty": true/"dirty": false/' "$records"/*.json
dpkg --install "$package"
dpkg --purge flaz
for path in /etc/flaz "$records" /run/flaz "$flaz" /usr/lib/systemd/system/flaz@.service \
    /etc/systemd/system/multi-user.target.wants/flaz@disk.service; do
    if [ -e "$path" ] || [ -L "$path" ]; then fail "$path is left"; fi
done
