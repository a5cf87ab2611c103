package system

import (
	"context"
	"slices"
)

// Daemon is a program of the operating system that does the work of tools.
type Daemon struct {
	Name    string // on D-Bus
	Title   string
	Package string // of Debian
}

var daemons = []Daemon{
	{systemdName, "systemd (units)", "systemd"},
	{timedateName, "timedated (clock)", "systemd"},
	{hostnameName, "hostnamed (names)", "systemd"},
	{localeName, "localed (language, keyboard)", "systemd"},
	{loginName, "logind (power)", "systemd"},
	{nmName, "NetworkManager (connections, wifi)", "network-manager"},
	{resolvedName, "systemd-resolved (name servers without NetworkManager)", "systemd-resolved"},
	{supplicantName, "wpa_supplicant (country of wifi)", "wpasupplicant"},
	{udisksName, "UDisks2 (file systems)", "udisks2"},
	{packageKitName, "PackageKit (updates)", "packagekit"},
	{fwupdName, "fwupd (firmware)", "fwupd"},
}

// Daemons returns which daemons of the tools the machine has, and which it lacks. The
// error is that of its D-Bus.
func Daemons(ctx context.Context) (has, lacks []Daemon, err error) {
	b := &bus{}
	names, err := b.names(ctx)
	if err != nil {
		return nil, nil, err
	}
	for _, d := range daemons {
		if slices.Contains(names, d.Name) {
			has = append(has, d)
		} else {
			lacks = append(lacks, d)
		}
	}
	return has, lacks, b.close()
}
