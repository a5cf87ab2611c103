package cli

import (
	"slices"
	"testing"
)

// Packages that run as the user are named, and those in a sandbox and at an address are not.
func TestDoctorNamesUnconfinedPackages(t *testing.T) {
	var all []packageEntry
	for id, how := range map[string]string{"a": "sandbox", "b": "trusted", "c": "unconfined", "d": "remote"} {
		all = append(all, packageEntry{ID: id, Confinement: how})
	}
	got := unconfinedPackages(all)
	slices.Sort(got)
	if want := []string{"b (trusted)", "c (installed before packages were confined)"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}
