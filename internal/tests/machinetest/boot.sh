# Makes a root folder of the machine's own /usr, /etc and /var, below what install.sh
# unpacked, with every change in memory, and becomes systemd. It runs as process 1 in
# namespaces of its own. Arguments: an empty folder, what install.sh unpacked, the
# folder of the repository, the test's program, the capabilities that nothing gets, a
# folder for /test/files or nothing.
set -eu
work=$1 packages=$2 repository=$3 program=$4 withheld=$5 files=$6
mount --make-rprivate /
mount -t tmpfs -o mode=755 tmpfs "$work"
mkdir "$work/up" "$work/new" "$work/root"
mount --bind "$work/root" "$work/root"
cd "$work/root"
for d in usr etc var; do
	mkdir "$d" "$work/up/$d" "$work/new/$d"
	mount -t overlay -o "lowerdir=$packages/$d:/$d,upperdir=$work/up/$d,workdir=$work/new/$d" overlay "$d"
done
mkdir proc sys run tmp dev root home mnt
for l in bin sbin lib lib64; do ln -s "usr/$l" "$l"; done
mount -t proc proc proc
# Settings of the kernel belong to all of the machine, but for those of the network.
mount --bind proc/sys proc/sys
mount -o remount,bind,ro proc/sys
mount -t proc proc mnt
mount --bind mnt/sys/net proc/sys/net
umount mnt
[ ! -e proc/sysrq-trigger ] || mount --bind /dev/null proc/sysrq-trigger
mount -t sysfs sysfs sys
mount -t cgroup2 cgroup2 sys/fs/cgroup
mount -t tmpfs -o mode=755 tmpfs run
mount -t tmpfs -o mode=1777 tmpfs tmp
mount -t tmpfs -o mode=755 tmpfs dev
for n in null zero full random urandom tty loop-control; do
	[ -e "/dev/$n" ] || continue
	: >"dev/$n"
	mount --bind "/dev/$n" "dev/$n"
done
mkdir -p dev/pts dev/shm dev/net
if [ -e /dev/net/tun ]; then
	: >dev/net/tun
	mount --bind /dev/net/tun dev/net/tun
fi
i=0
while [ $i -lt 64 ]; do
	mknod "dev/loop$i" b 7 $i
	i=$((i + 1))
done
mount -t devpts -o newinstance,ptmxmode=666 devpts dev/pts
ln -s pts/ptmx dev/ptmx
ln -s /proc/self/fd dev/fd
rm -rf etc/systemd/system/*.wants etc/systemd/system/*.requires etc/machine-id etc/fstab etc/hostname
: >etc/machine-id
: >etc/fstab
echo testmachine >etc/hostname
mkdir -p var/log/journal
# What the packages' own scripts would have added.
grep -q ^netdev: etc/group || echo netdev:x:499: >>etc/group
# Coldplug would tell the machine's own udev of each device again.
for u in systemd-udev-trigger systemd-sysctl systemd-modules-load systemd-binfmt proc-sys-fs-binfmt_misc.automount \
	systemd-remount-fs NetworkManager-wait-online NetworkManager-dispatcher apt-daily fwupd-refresh; do
	case $u in *.*) ;; *) u=$u.service ;; esac
	ln -sf /dev/null "etc/systemd/system/$u"
done
cat >etc/systemd/system/gatehouse-test.target <<END
[Unit]
Wants=dbus.service systemd-journald.service systemd-logind.service systemd-udevd.service systemd-tmpfiles-setup.service
AllowIsolate=yes
END
mkdir -p "./$repository" test
mount --bind "$repository" "./$repository"
: >test/program
mount --bind "$program" test/program
if [ -n "$files" ]; then
	mkdir test/files
	mount --bind "$files" test/files
fi
mkdir old
pivot_root . old
umount -l old
rmdir old
exec env -i container=gatehouse PATH=/usr/sbin:/usr/bin:/sbin:/bin \
	setpriv "--bounding-set=$withheld" \
	/lib/systemd/systemd --unit=gatehouse-test.target --show-status=0
