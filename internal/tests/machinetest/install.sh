#!/bin/sh
# Unpacks the Debian packages whose daemons the tests of the module system use, with
# what they depend on and this machine does not have. Nothing is installed: a
# daemon of the network that started here would take over the machine's own.
# Usage: install.sh FOLDER
set -eu
to=$1
want="systemd systemd-resolved systemd-timesyncd dbus polkitd network-manager wpasupplicant udisks2 fwupd fwupd-tests packagekit
	systemd-zram-generator dosfstools e2fsprogs iproute2 util-linux udev kmod locales console-setup-linux keyboard-configuration xkb-data
	python3-dbusmock"
new=$to.new
rm -rf "$new"
mkdir -p "$new/archives/partial" "$new/root"
root=
[ "$(id -u)" = 0 ] || root=sudo
all="apt-get -q -y --no-install-recommends --download-only -o Dir::Cache::archives=$PWD/$new/archives -o Acquire::Retries=3 -o DPkg::Lock::Timeout=300 install"
# shellcheck disable=SC2086
$root $all $want >"$new/log" 2>&1 || { $root apt-get -q update && $root $all $want; } >"$new/log" 2>&1 || { cat "$new/log"; exit 1; }
for package in "$new"/archives/*.deb; do
	[ -e "$package" ] && dpkg-deb -x "$package" "$new/root"
done
# Debian's root has links for these, which an overlay would hide.
for folder in bin sbin lib lib64; do
	if [ -d "$new/root/$folder" ] && [ ! -L "$new/root/$folder" ]; then
		mkdir -p "$new/root/usr/$folder"
		cp -a "$new/root/$folder/." "$new/root/usr/$folder/"
		rm -rf "${new:?}/root/$folder"
	fi
done
mkdir -p "$new/root/usr" "$new/root/etc" "$new/root/var"
touch "$new/root" # its time says which version of this script made it
rm -rf "$new/archives" "$to"
mv "$new" "$to"
