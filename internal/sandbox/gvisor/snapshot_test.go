//go:build linux && (amd64 || arm64)

package gvisor

import (
	"strings"
	"testing"

	"gatehouse/internal/sandbox"
)

// What goes on from a moment at which there was a way out has none, until it is
// given one of its own.
func TestTheWayOutOfWhatGoesOnIsShut(t *testing.T) {
	const proxies = "env | grep -c HTTP_PROXY || true"
	d := driver(t)
	b, err := d.Create(t.Context(), sandbox.Spec{Env: []string{"KEPT=1"}})
	if err != nil {
		t.Fatal(err)
	}
	k, ok := b.(sandbox.Snapshotter)
	if !ok {
		t.Skip("not run: nothing can be kept here")
	}
	out := sandbox.Network{Allow: []string{"example.com:443"}}
	if err := b.(sandbox.Networked).SetNetwork(t.Context(), out); err != nil {
		t.Fatal(err)
	}
	if got := says(t, b, proxies); got != "1" {
		t.Errorf("%s variables of a way out, want 1", got)
	}
	s, err := k.Snapshot(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if got := says(t, b, proxies); got != "1" {
		t.Errorf("the first one has %s variables of a way out afterwards, want 1", got)
	}
	c, err := s.Create(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if got := says(t, c, proxies+"; echo $KEPT"); strings.Join(strings.Fields(got), " ") != "0 1" {
		t.Errorf("what goes on has %q", got)
	}
	if err := c.(sandbox.Networked).SetNetwork(t.Context(), out); err != nil {
		t.Fatal(err)
	}
	if got := says(t, c, proxies); got != "1" {
		t.Errorf("%s variables of a way out of its own, want 1", got)
	}
}
