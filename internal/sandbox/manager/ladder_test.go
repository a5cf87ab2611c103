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

func of(name string, d sandbox.Driver) LadderEntry {
	return LadderEntry{name, func() (sandbox.Driver, error) { return d, nil }}
}

func TestTheFirstDriverThatWorksAndIsStrongEnoughIsTaken(t *testing.T) {
	weak, plain, strong := &fake{tier: sandbox.NoIsolation}, &fake{tier: sandbox.Namespaces},
		&fake{tier: sandbox.Machine}
	sick := &broken{fake{tier: sandbox.Namespaces}, true}
	bare := &broken{fake{tier: sandbox.Unknown}, true} // has nothing of what it needs
	gone := LadderEntry{"gone", func() (sandbox.Driver, error) { return nil, errors.New("not installed") }}
	all := []LadderEntry{
		of("weak", weak),
		gone,
		of("sick", sick),
		of("bare", bare),
		of("plain", plain),
		of("strong", strong),
	}
	for _, c := range []struct {
		name string
		o    Options
		a    Spec
		want string // a driver, or what the error says
	}{
		{"nobody asks", Options{}, Spec{}, "weak"},
		{"the host asks for more", Options{Least: sandbox.Namespaces}, Spec{}, "plain"},
		{"the caller asks for more", Options{Least: sandbox.Namespaces}, Spec{Least: sandbox.Machine}, "strong"},
		{"the caller asks for less than the host", Options{Least: sandbox.Machine},
			Spec{Least: sandbox.NoIsolation}, "strong"},
		{"by name", Options{}, Spec{Driver: "plain"}, "plain"},
		{"by a name that is too weak", Options{Least: sandbox.Namespaces}, Spec{Driver: "weak"},
			`weak makes sandboxes of tier "process"`},
		{"by a name that is none", Options{}, Spec{Driver: "magic"}, "not offered by this host"},
		{"one that is not there", Options{}, Spec{Driver: "gone"}, "not installed"},
		{"one that does not work, alone", Options{}, Spec{Driver: "sick"}, "run as root"},
		{"one that lacks what it needs and so is of no tier", Options{Least: sandbox.Namespaces},
			Spec{Driver: "bare"}, "run as root"},
		{"one that lacks what it needs, the host's own choice",
			Options{Least: sandbox.Namespaces, Default: "bare"}, Spec{}, "run as root"},
		{"the host's own choice", Options{Default: "strong"}, Spec{}, "strong"},
		{"more than the host's own choice", Options{Default: "plain"}, Spec{Least: sandbox.Machine}, "strong"},
		{"as much as the host's own choice", Options{Default: "strong", Least: sandbox.NoIsolation},
			Spec{Least: sandbox.Namespaces}, "strong"},
		{"the host's own choice does not work", Options{Default: "sick"}, Spec{}, "run as root"},
		{"by template", Options{Templates: map[string]Template{"t": {Driver: "strong"}}},
			Spec{Template: "t"}, "strong"},
		{"against the template", Options{Templates: map[string]Template{"t": {Driver: "strong"}}},
			Spec{Template: "t", Driver: "plain"}, "not offered by this host"},
		{"a template that is none", Options{}, Spec{Template: "t"}, "not offered by this host"},
		{"an image where there are none", Options{}, Spec{Image: "x"}, "not offered by this host"},
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
		m := open(t, other, Options{Ladder: []LadderEntry{of("sick", sick), of("other", other)}})
		if b := create(t, m, "ann", Spec{}); b.Driver != "other" {
			t.Errorf("it is of %s", b.Driver)
		}
		sick.lacks = false
		if b := create(t, m, "ann", Spec{}); b.Driver != "other" {
			t.Errorf("a moment later it is of %s", b.Driver)
		}
		time.Sleep(trialAgain)
		if b := create(t, m, "ann", Spec{}); b.Driver != "sick" {
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
		if b := create(t, m, "ann", Spec{Template: "strict"}); b.Warm || b.Template != "strict" {
			t.Errorf("the first of its kind: %+v", b)
		}
		time.Sleep(time.Minute)
		if p := m.Pools(); len(p) != 2 || p[0].Waiting != 1 || p[1].Waiting != 2 || !p[1].Strict {
			t.Errorf("%+v", p)
		}
		if b := create(t, m, "ann", Spec{Template: "strict"}); !b.Warm {
			t.Error("the second came from no pool")
		}
		if b := create(t, m, "ann", Spec{Template: "alone"}); b.Warm || b.Limits().MemoryMiB != 77 {
			t.Errorf("one of which none are kept: %v, %+v", b.Warm, b.Limits())
		}
	})
}
