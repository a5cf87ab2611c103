package packages

import (
	"strings"
	"testing"

	"gatehouse/internal/cluster"
)

// TestANodeIsChosen chooses nodes by labels, load and draining.
func TestANodeIsChosen(t *testing.T) {
	nodes := []cluster.Peer{
		{ID: "busy", Alive: true, Member: true, Load: 9, Labels: []string{"zone=a", "gpu=yes"}},
		{ID: "idle", Alive: true, Member: true, Load: 2, Labels: []string{"zone=a"}},
		{ID: "leaving", Alive: true, Member: true, Draining: true, Labels: []string{"zone=a", "zone=b"}},
		{ID: "dead", Member: true, Labels: []string{"zone=c"}},
		{ID: "removed", Alive: true, Labels: []string{"zone=d"}},
	}
	for _, c := range []struct {
		labels []string
		want   string
	}{
		{nil, "idle"},
		{[]string{"zone=a"}, "idle"},
		{[]string{"zone=a", "gpu=yes"}, "busy"},
		{[]string{"zone=b"}, "leaving"}, // there is no other
	} {
		got, err := ChooseNode(nodes, c.labels, "x", func(n cluster.Peer) float64 { return n.Load })
		if err != nil || got != c.want {
			t.Errorf("labels %v: node %s, %v; want %s", c.labels, got, err, c.want)
		}
	}
	for _, l := range []string{"zone=c", "zone=d", "zone=e"} {
		_, err := ChooseNode(nodes, []string{l}, "x", func(n cluster.Peer) float64 { return n.Load })
		if err == nil || !strings.Contains(err.Error(), l) {
			t.Errorf("label %s: %v", l, err)
		}
	}
}

// TestLabels checks the form of labels.
func TestLabels(t *testing.T) {
	for text, good := range map[string]bool{
		"zone=a": true, "driver=gvisor": true, "disk.kind=nvme-2": true, "zone": false, "=a": false, "zone=": false,
		"Zone=a": false, "zone=a b": false, "zone=" + strings.Repeat("a", 100): false,
	} {
		if err := cluster.CheckLabels([]string{text}); (err == nil) != good {
			t.Errorf("label %q: %v", text, err)
		}
	}
}

// TestARecordIsComparedAsItIsStored encodes a record twice to the same bytes, also after it was stored.
func TestARecordIsComparedAsItIsStored(t *testing.T) {
	r := Record{ID: "x", Source: Source{Kind: Command}, Command: "true", Start: OnDemand, Off: []string{}, State: Installed}
	same := r
	same.Off = nil
	if string(encodeRecord(r)) != string(encodeRecord(same)) {
		t.Error("no tools that are off differ from none")
	}
	if same.Stopped = true; sameServer(r, same) {
		t.Error("a package that was stopped runs on")
	}
	if same.Stopped, same.Title = false, "another"; !sameServer(r, same) {
		t.Error("another title ends the server")
	}
}
