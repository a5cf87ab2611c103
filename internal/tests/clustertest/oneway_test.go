package clustertest

import (
	"strings"
	"testing"
	"time"
)

// TestRevocationsAndOneWayCuts revokes a token while one node is cut off in one direction and its clock is wrong: the
// revocation returns, and from then on that node refuses the token, first because it cannot know, then because it does.
func TestRevocationsAndOneWayCuts(t *testing.T) {
	if !long() {
		t.Skip("set GATEHOUSE_TEST_ALL to cut nodes off in one direction")
	}
	f := newField(t, false)
	f.await("there is a user", func() bool {
		out, err := f.do(f.machines[0], operation{Kind: "token user", Key: "ada"})
		return err == nil && out.OK
	})
	late := f.machines[2]
	for _, c := range []struct {
		name        string
		hears, told bool // whether the node hears others, and they hear it
		clock       string
	}{
		{"it hears nothing", false, true, "0s"}, {"it is not heard", true, false, "0s"},
		{"it hears nothing, its clock is slow", false, true, "-24h"}, {"it is not heard, its clock is fast", true, false, "24h"},
		{"it is cut off both ways", false, false, "-1h"},
	} {
		t.Run(c.name, func(t *testing.T) {
			var made outcome
			f.await("a token is made", func() bool {
				out, err := f.do(f.machines[0], operation{Kind: "token create", Key: c.name, Until: 15 * time.Second})
				made = out
				return err == nil && out.OK
			})
			id, secret, _ := strings.Cut(made.Value, " ")
			use := operation{Kind: "token use", Key: c.name, Value: secret}
			if out, err := f.do(late, use); err != nil || !out.OK || out.Error != "" {
				t.Fatalf("before the revocation: %+v, %v", out, err)
			}
			if out, err := f.do(late, operation{Kind: "clock", Value: c.clock}); err != nil || !out.OK {
				t.Fatalf("%+v, %v", out, err)
			}
			for _, other := range f.machines[:2] {
				f.net.change(other.name, late.name, func(l *link) { l.cut = !c.hears })
				f.net.change(late.name, other.name, func(l *link) { l.cut = !c.told })
			}
			begun := time.Now()
			f.await("the revocation returns", func() bool {
				out, err := f.do(f.machines[0], operation{Kind: "token revoke", Key: c.name, Value: id, Until: 15 * time.Second})
				return err == nil && (out.OK || out.Error == "none") // none: an attempt without an answer has run
			})
			t.Logf("the revocation returned after %v; the lease is %v", time.Since(begun).Round(time.Millisecond), f.lease)
			for range 30 {
				if out, err := f.do(late, use); err == nil && out.OK && out.Error == "" {
					t.Fatalf("the node accepts a token that was revoked: %+v", out)
				}
				time.Sleep(50 * time.Millisecond)
			}
			f.net.heal()
			f.do(late, operation{Kind: "clock", Value: "0s"})
			f.await("all serve again", f.recovered)
			if out, err := f.do(late, use); err != nil || out.OK {
				t.Errorf("after the cut: %+v, %v", out, err)
			}
		})
	}
}
