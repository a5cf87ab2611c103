package approvals

import (
	"context"
	"encoding/json"
	"errors"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

var someCaller = Caller{Credential: "t_model", Session: "sess"}

//redteam:attack A yes is good for one call: an approval is used twice
func TestAYesIsUsedOnce(t *testing.T) {
	b := Open("", Options{})
	defer b.Close()
	r, err := b.Ask("ann/default", "file_delete", "deletes", someCaller, []byte(`{"path":"x"}`), func(Request) {})
	if err != nil {
		t.Fatal(err)
	}
	if ok, _ := b.Spend(r, "ann/default", "file_delete"); ok {
		t.Fatal("an undecided request was spent")
	}
	if _, err := b.Decide(r.ID, true, "op"); err != nil {
		t.Fatal(err)
	}
	if ok, _ := b.Spend(r, "eve/default", "file_delete"); ok {
		t.Fatal("another caller spent it")
	}
	if ok, _ := b.Spend(r, "ann/default", "file_delete"); !ok {
		t.Fatal("the yes was not good")
	}
	if ok, _ := b.Spend(r, "ann/default", "file_delete"); ok {
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
		r, err := host.Ask("ann/default", "t", "r", someCaller, nil, func(r Request) { decided <- r })
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
	if fresh, err := b.Once("call_1", time.Hour); !fresh || err != nil {
		t.Fatal(fresh, err)
	}
	b.Close()
	b = Open(path, Options{})
	defer b.Close()
	if fresh, _ := b.Once("call_1", time.Hour); fresh {
		t.Fatal("a used key was fresh again")
	}
}

//redteam:attack A yes is good for one call: an approval is used for another call
func TestARememberedYesIsForTheSameCallOnly(t *testing.T) {
	b := Open("", Options{})
	defer b.Close()
	if err := b.Remember("ann/default", "t", []byte(`{"a":1}`), time.Hour); err != nil {
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
		if got, err := b.Remembered(c.owner, c.tool, []byte(c.args), time.Hour); got != c.want || err != nil {
			t.Errorf("%v: got %v, %v", c, got, err)
		}
	}
	if err := b.Remember("ann/default", "old", nil, -time.Second); err != nil {
		t.Fatal(err)
	}
	if got, _ := b.Remembered("ann/default", "old", nil, time.Hour); got {
		t.Error("a yes held longer than it should")
	}
}

// An approval counts only with the passphrase, also if a program of the same account writes to the
// file.
//
//redteam:attack A yes is good for one call: the file of approvals is written to without the passphrase
//redteam:attack A yes is good for one call: a signature is moved to another request, or what was shown is altered
//redteam:attack A yes is good for one call: a passphrase of the attacker's own takes the place of the operator's before the first yes
func TestAYesNeedsThePassphrase(t *testing.T) {
	dir := t.TempDir()
	file, key := filepath.Join(dir, "approvals.db"), filepath.Join(dir, "approvals.proof")
	pass := []byte("correct horse battery")
	proof, err := NewProof(pass)
	if err != nil {
		t.Fatal(err)
	}
	if err := proof.Save(key); err != nil {
		t.Fatal(err)
	}
	host, other := Open(file, Options{Proof: key}), Open(file, Options{})
	defer host.Close()
	defer other.Close()
	ask := func(args string) Request {
		r, err := host.Ask("ann/default", "file_delete", "deletes", someCaller, []byte(args), func(Request) {})
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	sign := func(r Request) []byte {
		seen, err := other.Get(r.ID)
		if err != nil {
			t.Fatal(err)
		}
		signature, err := proof.Sign(pass, seen)
		if err != nil {
			t.Fatal(err)
		}
		return signature
	}
	spend := func(r Request) bool {
		ok, _ := host.Spend(r, "ann/default", "file_delete")
		return ok
	}
	if _, err := proof.Sign([]byte("a guess, no more"), ask(`{}`)); !errors.Is(err, ErrPassphrase) {
		t.Errorf("a wrong passphrase: %v", err)
	}
	own := []byte("the attacker's own words")
	theirs, err := NewProof(own)
	if err == nil {
		err = theirs.Save(key)
	}
	if err != nil {
		t.Fatal(err)
	}
	replaced := ask(`{"path":"r"}`)
	forged, err := theirs.Sign(own, replaced)
	if err == nil {
		_, err = other.DecideProven(replaced.ID, "program", forged)
	}
	if err != nil {
		t.Fatal(err)
	}
	if spend(replaced) {
		t.Error("a yes counted whose passphrase was set while the host ran")
	}
	bare := ask(`{"path":"a"}`)
	if _, err := other.Decide(bare.ID, true, "program"); err != nil {
		t.Fatal(err)
	}
	if spend(bare) {
		t.Error("a yes without the passphrase counted")
	}
	good, moved := ask(`{"path":"b"}`), ask(`{"path":"c"}`)
	signature := sign(good)
	if _, err := other.DecideProven(moved.ID, "op", signature); err != nil {
		t.Fatal(err)
	}
	if spend(moved) {
		t.Error("a signature counted for another request")
	}
	shown := ask(`{"path":"everything"}`)
	db, err := other.file.DB()
	if err == nil {
		_, err = db.Exec("UPDATE request SET args=? WHERE id=?", `{"path":"harmless"}`, shown.ID)
	}
	if err != nil {
		t.Fatal(err)
	}
	if _, err := other.DecideProven(shown.ID, "op", sign(shown)); err != nil {
		t.Fatal(err)
	}
	if spend(shown) {
		t.Error("a yes to what was not asked counted")
	}
	if _, err := db.Exec("INSERT INTO mark VALUES (?,?)",
		sameCall("ann/default", "file_delete", []byte(`{"path":"z"}`)),
		time.Now().Add(time.Hour).UnixMilli()); err != nil {
		t.Fatal(err)
	}
	if ok, _ := host.Remembered("ann/default", "file_delete", []byte(`{"path":"z"}`), time.Hour); ok {
		t.Error("a remembered yes was believed that another program wrote")
	}
	if _, err := other.DecideProven(good.ID, "op", signature); err != nil {
		t.Fatal(err)
	}
	if !spend(good) || spend(good) {
		t.Error("the passphrase's yes is good once")
	}
}

// A request shows the whole value, or its ends, length and digest. A command is shown in full, or no
// approval is asked for.
//
//redteam:attack A yes is good for one call: a command hides behind its beginning, and text behind what cannot be seen
func TestWhatIsApprovedIsShown(t *testing.T) {
	long := strings.Repeat("a", 3000) + "MIDDLE" + strings.Repeat("b", 3000)
	for name, c := range map[string]struct {
		args, has, not string
		long           bool
	}{
		"short":       {`{"path":"x"}`, `{"path":"x"}`, "sha256", false},
		"a long text": {`{"content":"` + long + `"}`, `"bytes":6006,"sha256":"`, "MIDDLE", false},
		"a command":   {`{"command":"echo ` + long + `; rm -rf x"}`, "MIDDLE", "sha256", false},
		"too long":    {`{"command":"` + strings.Repeat("x ", 10_000) + `; rm -rf x"}`, "", "", true},
		"its parts":   {`{"command":"sh","args":["-c","` + strings.Repeat("x ", 10_000) + `"]}`, "", "", true},
		"among many": {`{"command":"ls",` + strings.Repeat(`"k`+"`"+`":"v",`, 1) + `"content":"` + long + `"}`,
			`"command":"ls"`, "MIDDLE", false},
		"unseen": {"{\"path\":\"a\u202etxt.exe\u200b\"}", `\u202e`, "\u202e", false},
	} {
		got, err := Shown([]byte(c.args))
		tooLong, _ := errors.AsType[*TooLong](err)
		if (tooLong != nil) != c.long || !strings.Contains(string(got), c.has) ||
			c.not != "" && strings.Contains(string(got), c.not) {
			t.Errorf("%s: got %s, %v", name, got, err)
		}
		if err == nil && !json.Valid(got) {
			t.Errorf("%s: %s is no JSON", name, got)
		}
	}
}

// Setting the clock forward or back makes no approval valid twice, or for longer than its rule allows.
//
//redteam:attack A yes is good for one call: the clock is set back and forward between the question, the yes and its use
func TestAClockThatJumpsGivesNoYes(t *testing.T) {
	clock := time.Now()
	b := Open(filepath.Join(t.TempDir(), "approvals.db"), Options{Now: func() time.Time { return clock }})
	defer b.Close()
	remembered := func() bool {
		ok, err := b.Remembered("ann/default", "t", nil, time.Minute)
		if err != nil {
			t.Fatal(err)
		}
		return ok
	}
	if err := b.Remember("ann/default", "t", nil, time.Minute); err != nil {
		t.Fatal(err)
	}
	start := clock
	for _, c := range []struct {
		jump time.Duration
		want bool
	}{{0, true}, {59 * time.Second, true}, {61 * time.Second, false}, {-24 * time.Hour, false},
		{-2 * time.Minute, false}, {30 * time.Second, true}} {
		if clock = start.Add(c.jump); remembered() != c.want {
			t.Errorf("a yes for a minute, the clock %v off: want it to hold %v", c.jump, c.want)
		}
	}

	clock = start
	r, err := b.Ask("ann/default", "t", "r", someCaller, nil, func(Request) {})
	if err != nil {
		t.Fatal(err)
	}
	clock = start.Add(48 * time.Hour)
	if _, err := b.Decide(r.ID, true, "op"); !errors.Is(err, ErrDecided) {
		t.Errorf("a yes after the end of the question: got %v, want ErrDecided", err)
	}
	clock = start
	if _, err := b.Decide(r.ID, true, "op"); err != nil {
		t.Fatal(err)
	}
	if ok, err := b.Spend(r, "ann/default", "t"); !ok || err != nil {
		t.Fatalf("got %v, %v", ok, err)
	}
	for _, jump := range []time.Duration{-48 * time.Hour, 48 * time.Hour, 0} {
		clock = start.Add(jump)
		if ok, _ := b.Spend(r, "ann/default", "t"); ok {
			t.Errorf("the clock %v off: a used yes was good again", jump)
		}
		if _, err := b.Decide(r.ID, true, "op"); err == nil {
			t.Errorf("the clock %v off: a used yes was given again", jump)
		}
	}
}
