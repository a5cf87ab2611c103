package dispatch_test

import (
	"context"
	"errors"
	"log/slog"
	"path/filepath"
	"testing"

	"gatehouse/internal/access/approvals"
	"gatehouse/internal/access/permit"
	"gatehouse/internal/dispatch"
	"gatehouse/internal/tests/hosttest"
	"gatehouse/tool"
)

// A client's state is sealed with a key that any program of the account can read. If a passphrase is set, an
// approval in a sealed state counts only if this host verified it.
//
//redteam:attack Children never answer: a program of the account reads the key of sealed state and seals a yes
func TestAForgedStateHoldsNoYes(t *testing.T) {
	ran := 0
	w := workshop{
		tools: []tool.Tool{made("w_wipe", tool.Destroys, func(context.Context, *tool.Call) (tool.Result, error) {
			ran++
			return printableText("gone")
		})},
	}
	policy, err := permit.New(permit.Options{Default: permit.Allow, Rules: []permit.Rule{
		{Name: "wipes", Effects: tool.Destroys, Then: permit.AskOperator},
	}})
	if err != nil {
		t.Fatal(err)
	}
	key := filepath.Join(t.TempDir(), "approvals.proof")
	pass := []byte("correct horse battery")
	proof, err := approvals.NewProof(pass)
	if err == nil {
		err = proof.Save(key)
	}
	if err != nil {
		t.Fatal(err)
	}
	visit(t, hosttest.Options{Policy: policy}, &w, func(t *testing.T, h *hosttest.Host) {
		hostWith := func(o approvals.Options) (*dispatch.Dispatcher, *approvals.Store) {
			store := approvals.Open("", o)
			return dispatch.New(
				dispatch.Options{Approvals: store, Bus: h.Bus, Views: h.Views, Spool: h.Spool, Log: o.Log},
			), store
		}
		log := slog.New(slog.NewTextHandler(t.Output(), nil))
		theirs, theirStore := hostWith(approvals.Options{Log: log})
		defer theirStore.Close()
		ours, ourStore := hostWith(approvals.Options{Log: log, Proof: key})
		defer ourStore.Close()

		// approve asks for the call and approves it as the store requires.
		approve := func(c *dispatch.Dispatcher, store *approvals.Store) *dispatch.Request {
			r := request(t, h, "w_wipe", `{}`)
			_, err := c.Do(t.Context(), r)
			p, ok := errors.AsType[*dispatch.Pending](err)
			if !ok {
				t.Fatalf("got %v, want that it waits", err)
			}
			ap := p.Approval
			if store.Proves() {
				signature, err := proof.Sign(pass, ap)
				if err == nil {
					_, err = store.DecideProven(ap.ID, "op", signature)
				}
				if err != nil {
					t.Fatal(err)
				}
			} else if _, err := store.Decide(ap.ID, true, "op"); err != nil {
				t.Fatal(err)
			}
			ap.State, ap.By = approvals.Allowed, "op"
			if !c.Approved(r, ap) {
				t.Fatal("the approval does not count")
			}
			return r
		}
		if _, err := theirs.Do(t.Context(), approve(theirs, theirStore)); err != nil || ran != 1 {
			t.Fatalf("without a passphrase: %v, ran %d times", err, ran)
		}
		_, err := ours.Do(t.Context(), approve(theirs, theirStore))
		if _, waits := errors.AsType[*dispatch.Pending](err); !waits || ran != 1 {
			t.Errorf("an approval that this host never verified: got %v, ran %d times", err, ran-1)
		}
		if _, err := ours.Do(t.Context(), approve(ours, ourStore)); err != nil || ran != 2 {
			t.Errorf("an approval with the passphrase: got %v, ran %d times", err, ran-1)
		}
	})
}
