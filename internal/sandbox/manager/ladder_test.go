package manager

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"gatehouse/internal/sandbox"
)

// broken is a driver that can be opened and lacks something, until it is there.
type broken struct {
	fake
	lacks bool
}

func (b *broken) Doctor(context.Context) []sandbox.Finding {
	return []sandbox.Finding{
		{Name: "fast disks", Detail: "none"},
		{
			Name:   "clone",
			OK:     !b.lacks,
			Needed: true,
			Detail: "clone(CLONE_NEWUSER): operation not permitted",
			Remedy: "run as root",
		},
	}
}

func (b *broken) Create(ctx context.Context, s sandbox.Spec) (sandbox.Sandbox, error) {
	if b.lacks {
		return nil, errors.New("EPERM")
	}
	return b.fake.Create(ctx, s)
}

func of(name string, d sandbox.Driver) Rung {
	return Rung{name, func() (sandbox.Driver, error) { return d, nil }}
}

func TestTheFirstDriverThatWorksAndIsStrongEnoughIsTaken(t *testing.T) {
	weak, plain, strong := &fake{tier: sandbox.NoIsolation}, &fake{tier: sandbox.Namespaces},
		&fake{tier: sandbox.Machine}
	sick := &broken{fake{tier: sandbox.Namespaces}, true}
	bare := &broken{fake{tier: sandbox.Unknown}, true} // has nothing of what it needs
	gone := Rung{"gone", func() (sandbox.Driver, error) { return nil, errors.New("not installed") }}
	all := []Rung{of("weak", weak), gone, of("sick", sick), of("bare", bare), of("plain", plain), of("strong", strong)}
	for _, c := range []struct {
		name string
		o    Options
		a    Ask
		want string // a driver, or what the error says
	}{
		{"nobody asks", Options{}, Ask{}, "weak"},
		{"the host asks for more", Options{Least: sandbox.Namespaces}, Ask{}, "plain"},
		{"the caller asks for more", Options{Least: sandbox.Namespaces}, Ask{Least: sandbox.Machine}, "strong"},
		{"the caller asks for less than the host", Options{Least: sandbox.Machine},
			Ask{Least: sandbox.NoIsolation}, "strong"},
		{"by name", Options{}, Ask{Driver: "plain"}, "plain"},
		{"by a name that is too weak", Options{Least: sandbox.Namespaces}, Ask{Driver: "weak"},
			`weak makes sandboxes of tier "process"`},
		{"by a name that is none", Options{}, Ask{Driver: "magic"}, "not offered by this host"},
		{"one that is not there", Options{}, Ask{Driver: "gone"}, "not installed"},
		{"one that does not work, alone", Options{}, Ask{Driver: "sick"}, "run as root"},
		{"one that lacks what it needs and so is of no tier", Options{Least: sandbox.Namespaces},
			Ask{Driver: "bare"}, "run as root"},
		{"one that lacks what it needs, the host's own choice",
			Options{Least: sandbox.Namespaces, Default: "bare"}, Ask{}, "run as root"},
		{"the host's own choice", Options{Default: "strong"}, Ask{}, "strong"},
		{"more than the host's own choice", Options{Default: "plain"}, Ask{Least: sandbox.Machine}, "strong"},
		{"as much as the host's own choice", Options{Default: "strong", Least: sandbox.NoIsolation},
			Ask{Least: sandbox.Namespaces}, "strong"},
		{"the host's own choice does not work", Options{Default: "sick"}, Ask{}, "run as root"},
		{"by template", Options{Templates: map[string]Template{"t": {Driver: "strong"}}}, Ask{Template: "t"}, "strong"},
		{"against the template", Options{Templates: map[string]Template{"t": {Driver: "strong"}}},
			Ask{Template: "t", Driver: "plain"}, "not offered by this host"},
		{"a template that is none", Options{}, Ask{Template: "t"}, "not offered by this host"},
		{"an image where there are none", Options{}, Ask{Image: "x"}, "not offered by this host"},
	} {
		t.Run(c.name, func(t *testing.T) {
			c.o.Ladder = all
			m := open(t, weak, c.o)
			b, err := m.Create(t.Context(), "ann", c.a)
			if err != nil {
				if !strings.Contains(err.Error(), c.want) {
					t.Errorf("%v, want %s", err, c.want)
				}
				return
			}
			if b.Driver != c.want {
				t.Errorf("it is of %s, want %s", b.Driver, c.want)
			}
			if err := m.Destroy("ann", b.ID); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestADriverThatDoesNotWorkIsTriedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sick, other := &broken{fake{tier: sandbox.Namespaces}, true}, &fake{tier: sandbox.Namespaces}
		m := open(t, other, Options{Ladder: []Rung{of("sick", sick), of("other", other)}})
		if b := create(t, m, "ann", Ask{}); b.Driver != "other" {
			t.Errorf("it is of %s", b.Driver)
		}
		sick.lacks = false
		if b := create(t, m, "ann", Ask{}); b.Driver != "other" {
			t.Errorf("a moment later it is of %s", b.Driver)
		}
		time.Sleep(trialAgain)
		if b := create(t, m, "ann", Ask{}); b.Driver != "sick" {
			t.Errorf("after a while it is of %s", b.Driver)
		}
	})
}

// Each template has a pool of its own, from when it was asked for.
func TestEachTemplateHasItsPool(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fake{slow: time.Second}
		m := open(t, f, Options{Ready: 1, Templates: map[string]Template{
			"strict": {Strict: true, Ready: 2, Env: []string{"A=b"}},
			"alone":  {Ready: -1, Limits: sandbox.Limits{MemoryMiB: 77}},
		}})
		m.Serve()
		time.Sleep(time.Minute)
		if p := m.Pools(); len(p) != 1 || p[0].Waiting != 1 || p[0].Strict {
			t.Errorf("%+v", p)
		}
		if b := create(t, m, "ann", Ask{Template: "strict"}); b.Warm || b.Template != "strict" {
			t.Errorf("the first of its kind: %+v", b)
		}
		time.Sleep(time.Minute)
		if p := m.Pools(); len(p) != 2 || p[0].Waiting != 1 || p[1].Waiting != 2 || !p[1].Strict {
			t.Errorf("%+v", p)
		}
		if b := create(t, m, "ann", Ask{Template: "strict"}); !b.Warm {
			t.Error("the second came from no pool")
		}
		if b := create(t, m, "ann", Ask{Template: "alone"}); b.Warm || b.Limits().MemoryMiB != 77 {
			t.Errorf("one of which none are kept: %v, %+v", b.Warm, b.Limits())
		}
	})
}
