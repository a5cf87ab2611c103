package approvals

import (
	"context"
	"errors"
	"path/filepath"
	"testing"
	"time"
)

//redteam:attack A yes is good for one call: an approval is used twice
func TestAYesIsUsedOnce(t *testing.T) {
	b := Open("", Options{})
	defer b.Close()
	r, err := b.Ask("ann/default", "file_delete", "deletes", []byte(`{"path":"x"}`), func(Request) {})
	if err != nil {
		t.Fatal(err)
	}
	if ok, _ := b.Spend(r.ID, "ann/default", "file_delete"); ok {
		t.Fatal("an undecided request was spent")
	}
	if _, err := b.Decide(r.ID, true, "op"); err != nil {
		t.Fatal(err)
	}
	if ok, _ := b.Spend(r.ID, "eve/default", "file_delete"); ok {
		t.Fatal("another caller spent it")
	}
	if ok, _ := b.Spend(r.ID, "ann/default", "file_delete"); !ok {
		t.Fatal("the yes was not good")
	}
	if ok, _ := b.Spend(r.ID, "ann/default", "file_delete"); ok {
		t.Fatal("the yes was good twice")
	}
	if _, err := b.Decide(r.ID, false, "op"); !errors.Is(err, ErrDecided) {
		t.Fatalf("got %v, want ErrDecided", err)
	}
	if _, err := b.Decide("ap_none", true, "op"); !errors.Is(err, ErrNotFound) {
		t.Fatalf("got %v, want ErrNotFound", err)
	}
}

func TestAnotherProcessDecides(t *testing.T) {
	path := filepath.Join(t.TempDir(), "approvals.db")
	host, cli := Open(path, Options{Look: time.Millisecond}), Open(path, Options{})
	defer host.Close()
	defer cli.Close()
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- host.Run(ctx) }()
	decided := make(chan Request, 2)
	ask := func() Request {
		r, err := host.Ask("ann/default", "t", "r", nil, func(r Request) { decided <- r })
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	r := ask()
	list, err := cli.Pending(false)
	if err != nil || len(list) != 1 || list[0].ID != r.ID {
		t.Fatalf("got %v, %v", list, err)
	}
	if _, err := cli.Decide(r.ID, false, "op"); err != nil {
		t.Fatal(err)
	}
	if got := <-decided; got.State != Refused || got.By != "op" {
		t.Fatalf("got %+v", got)
	}
	left := ask()
	stop()
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	if got, _ := cli.Get(left.ID); got.State != Expired {
		t.Fatalf("what a stopped host had asked is %s, want expired", got.State)
	}
}

//redteam:attack A yes is good for one call: an approval is used again after a restart
func TestOnceHoldsAcrossARestart(t *testing.T) {
	path := filepath.Join(t.TempDir(), "approvals.db")
	b := Open(path, Options{})
	if fresh, err := b.Once("call_1", time.Now().Add(time.Hour)); !fresh || err != nil {
		t.Fatal(fresh, err)
	}
	b.Close()
	b = Open(path, Options{})
	defer b.Close()
	if fresh, _ := b.Once("call_1", time.Now().Add(time.Hour)); fresh {
		t.Fatal("a used key was fresh again")
	}
}

//redteam:attack A yes is good for one call: an approval is used for another call
func TestARememberedYesIsForTheSameCallOnly(t *testing.T) {
	b := Open("", Options{})
	defer b.Close()
	if err := b.Remember("ann/default", "t", []byte(`{"a":1}`), time.Now().Add(time.Hour)); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		owner, tool, args string
		want              bool
	}{
		{"ann/default", "t", `{"a":1}`, true},
		{"ann/default", "t", `{"a":2}`, false},
		{"ann/default", "u", `{"a":1}`, false},
		{"eve/default", "t", `{"a":1}`, false},
	} {
		if got, err := b.Remembered(c.owner, c.tool, []byte(c.args)); got != c.want || err != nil {
			t.Errorf("%v: got %v, %v", c, got, err)
		}
	}
	if err := b.Remember("ann/default", "old", nil, time.Now().Add(-time.Second)); err != nil {
		t.Fatal(err)
	}
	if got, _ := b.Remembered("ann/default", "old", nil); got {
		t.Error("a yes held longer than it should")
	}
}
