#!/bin/bash
# The shipped unit under systemd: enable, start, restart warm, restart after a kill, stop.
# boot: --systemd
# shellcheck source=tests/vm/rig/lib.sh
. /flaz/lib.sh

unit=flaz@disk.service
socket=/run/flaz/disk.sock

main_pid() { systemctl show --property MainPID --value "$unit"; }

step "$(systemctl --version | head -n 1), up $(cut -d ' ' -f 1 /proc/uptime) s"
cp /flaz/flaz /usr/bin/
cp /flaz/flaz@.service /etc/systemd/system/
cp /flaz/flaz-generator /usr/lib/systemd/system-generators/
flaz create "$CACHE" --origin "$ORIGIN" --name disk >/dev/null
cat >/etc/flaz/disk.toml <<CONFIGURATION
cache = "$CACHE"
origin = "$ORIGIN"
nbd = ["unix:$socket"]
CONFIGURATION
systemctl daemon-reload
systemctl cat "$unit" | grep -q "^After=$(systemd-escape --path --suffix=device "$CACHE")\$" || fail "no order after the cache"
systemd-analyze verify --man=no "$unit" 2>/tmp/verify || fail "systemd-analyze verify: $(cat /tmp/verify)"
[ ! -s /tmp/verify ] || fail "systemd-analyze verify: $(cat /tmp/verify)"
systemctl enable --quiet --now "$unit"
answers "$socket" >/dev/null || fail "the unit is active, but nothing listens on $socket"

step "restart, with a stored setting"
flaz set disk mode=write-back >/dev/null
systemctl restart "$unit"
answers "$socket" >/dev/null || fail "no answer after a restart"
started_warm "$CACHE" || fail "the start after a restart was cold"
flaz list >/tmp/list
grep -q '^disk  *running .* write-back ' /tmp/list || fail "flaz list: $(cat /tmp/list)"

step "kill"
killed=$(main_pid)
kill -KILL "$killed"
restarted() { [ "$(main_pid)" -ne 0 ] && [ "$(main_pid)" -ne "$killed" ] && answers "$socket"; }
wait_for 60 restarted
started_warm "$CACHE" || fail "the start after a kill was cold"

step "a configuration that is refused"
cp /etc/flaz/disk.toml /tmp/disk.toml
echo 'moed = "write-back"' >>/etc/flaz/disk.toml
! systemctl restart "$unit" 2>/dev/null || fail "the restart succeeded"
journalctl --unit "$unit" --output cat | grep -q "disk.toml:4: unknown key 'moed'" || fail "$(systemctl status "$unit")"
[ "$(systemctl show --property ActiveState --value "$unit")" = failed ] || fail "it is tried again: $(systemctl status "$unit")"
rm /etc/flaz/disk.toml
! systemctl start "$unit" 2>/dev/null || fail "it starts without a configuration"
journalctl --unit "$unit" --output cat | grep -q "disk.toml: no such configuration" || fail "$(systemctl status "$unit")"
[ "$(systemctl show --property ActiveState --value "$unit")" = failed ] || fail "it is tried again: $(systemctl status "$unit")"
cp /tmp/disk.toml /etc/flaz/disk.toml
systemctl start "$unit"

step "a missing disk: it is named, and waited for again and again"
printf '%s\n' 'cache = "/dev/disk/by-id/none"' "origin = \"$ORIGIN\"" >/etc/flaz/gone.toml
systemctl daemon-reload
! systemctl start flaz@gone.service 2>/dev/null || fail "it starts without a cache device"
journalctl --unit flaz@gone.service --output cat | grep -q 'no such cache device' || fail "$(systemctl status flaz@gone.service)"
tried_again() { [ "$(systemctl show --property NRestarts --value flaz@gone.service)" -ge 2 ]; }
wait_for 200 tried_again
systemctl stop flaz@gone.service

step "images below /home, which the unit may only read"
mkdir -p /home/user/images
truncate -s 64M /home/user/images/origin
flaz create /home/user/images/cache --size 32M --origin /home/user/images/origin >/dev/null
printf '%s\n' 'cache = "/home/user/images/cache"' 'origin = "/home/user/images/origin"' >/etc/flaz/image.toml
systemctl daemon-reload
systemctl start flaz@image.service
systemctl stop flaz@image.service

step "stop"
systemctl stop "$unit"
[ "$(systemctl show --property Result --value "$unit")" = success ] || fail "$(systemctl status "$unit")"
flaz check "$CACHE" >/dev/null || fail "flaz check found errors"
