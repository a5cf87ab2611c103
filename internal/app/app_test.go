package app

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"gatehouse/internal/config"
	"gatehouse/internal/exec/procid"
	"gatehouse/module"
)

// settings returns the settings of a host that stores everything below one folder.
func settings(t *testing.T) config.Config {
	t.Helper()
	home := t.TempDir()
	c, err := config.FromEnv(func(name string) string {
		return map[string]string{"HOME": home, "XDG_RUNTIME_DIR": filepath.Join(home, "run")}[name]
	})
	if err != nil {
		t.Fatal(err)
	}
	c.Roots.Folders = []string{t.TempDir()}
	c.Limits.StopPatience = 5 * time.Second
	c.Approvals.CallersWord = true // these clients cannot ask
	return c
}

// spools returns the spool folders below the cache.
func spools(t *testing.T, c config.Config) []string {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(c.Folders.Cache, "spool-*"))
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// witness is a module that counts how often it is closed.
type witness struct{ closed *int }

func (w witness) Offer(context.Context, module.Audience) (*module.Offer, error) {
	return &module.Offer{}, nil
}

func (w witness) Close(context.Context) error { *w.closed++; return nil }

// TestAFailedStartLeavesNothingOpen fails each step of building and checks that the earlier ones are undone.
func TestAFailedStartLeavesNothingOpen(t *testing.T) {
	taken, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	closed := 0
	good := Module{
		"witness",
		func(context.Context, module.Deps) (module.Module, error) { return witness{&closed}, nil },
	}
	bad := Module{
		"broken",
		func(context.Context, module.Deps) (module.Module, error) { return nil, errors.New("no luck") },
	}
	for _, c := range []struct {
		name   string
		change func(*config.Config, *Options)
		want   string
		closed int
	}{
		{"folder", func(c *config.Config, _ *Options) { c.Roots.Folders = []string{"/no/such/folder"} },
			"/no/such/folder", 0},
		{"module", func(_ *config.Config, o *Options) { o.Extra = append(o.Extra, bad) }, "module broken: no luck", 1},
		{"door", func(c *config.Config, _ *Options) {
			c.Listen.HTTP.Open, c.Listen.HTTP.Port = true, taken.Addr().(*net.TCPAddr).Port
		}, "open the HTTP listener", 1},
		{"second door", func(c *config.Config, _ *Options) {
			c.Listen.Unix, c.Listen.TCP = filepath.Join(t.TempDir(), "s"), taken.Addr().String()
		}, "listen on tcp", 1},
		{"third door", func(c *config.Config, o *Options) {
			c.Listen.TCP, c.Listen.Unix = "127.0.0.1:0", "/dev/null/sock"
		}, "listen on unix", 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			closed = 0
			cfg, opts := settings(t), Options{Extra: []Module{good}}
			c.change(&cfg, &opts)
			a, err := New(t.Context(), cfg, opts)
			if a != nil || err == nil || !strings.Contains(err.Error(), c.want) {
				t.Fatalf("got %v, %v; want an error with %q", a, err, c.want)
			}
			if left := spools(t, cfg); len(left) > 0 {
				t.Errorf("%v is left behind", left)
			}
			if closed != c.closed {
				t.Errorf("the module was closed %d times, want %d", closed, c.closed)
			}
		})
	}
}

func TestSettingsThatCannotBe(t *testing.T) {
	for want, change := range map[string]func(*config.Config, *Options){
		`there is no module "attic"; expected some of file, dir, lang`: func(c *config.Config,
			_ *Options) {
			c.View.Modules = []string{"attic"}
		},
		`there is no context "attic"; expected one of default, file`: func(c *config.Config,
			_ *Options) {
			c.View.Context = "attic"
		},
		`tools: "[" is not a pattern`: func(c *config.Config,
			_ *Options) {
			c.View.Tools = []string{"["}
		},
		`tools: "!" is not a pattern`: func(c *config.Config,
			_ *Options) {
			c.View.Tools = []string{"!"}
		},
		`there are two modules called "file"`: func(_ *config.Config,
			o *Options) {
			o.Extra = []Module{{Name: "file"}}
		},
		`a module cannot be called "resources"`: func(_ *config.Config,
			o *Options) {
			o.Extra = []Module{{Name: "resources"}}
		},
		`origin`: func(c *config.Config, _ *Options) {
			c.Listen.HTTP.Open, c.Listen.HTTP.Port, c.Listen.HTTP.Origins = true, 0, []string{"nonsense"}
		},
	} {
		cfg, opts := settings(t), Options{}
		change(&cfg, &opts)
		_, err := New(t.Context(), cfg, opts)
		if _, ok := errors.AsType[*SettingError](err); !ok || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want a SettingError with %q", err, want)
		}
	}
}

// A host that cannot write its folders serves nevertheless and logs what it will lose: if a file is in place of
// the folder, and if nothing can be created, as in a read-only home folder.
func TestAHostWithoutFoldersServes(t *testing.T) {
	file, nowhere := filepath.Join(t.TempDir(), "file"), filepath.Join(t.TempDir(), "nowhere")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(filepath.Join(t.TempDir(), "gone"), nowhere); err != nil {
		t.Skip(err)
	}
	for _, home := range []string{file, nowhere} {
		cfg := settings(t)
		cfg.Folders.State, cfg.Folders.Data, cfg.Folders.Cache = home+"/state", home+"/data", home+"/cache"
		var said strings.Builder
		a, err := New(t.Context(), cfg, Options{Log: slog.New(slog.NewTextHandler(&said, nil))})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if err := a.Run(ctx); err != nil {
			t.Error(err)
		}
		for _, want := range []string{"jobs are kept in memory", "cannot write keys"} {
			if !strings.Contains(said.String(), want) {
				t.Errorf("%q is missing from\n%s", want, said.String())
			}
		}
	}
}

func TestAHostRemovesItsSpoolAndWhatOthersLeft(t *testing.T) {
	cfg := settings(t)
	if err := os.MkdirAll(cfg.Folders.Cache, 0o700); err != nil {
		t.Fatal(err)
	}
	old := time.Now().Add(-48 * time.Hour)
	mine := strconv.Itoa(os.Getpid())
	space, _, _ := strings.Cut(procid.Self(), "-")
	for name, when := range map[string]time.Time{
		// The first folder has the id of this process, but an earlier start time.
		"spool-of-" + space + "-" + mine + "-1-a": old, "spool-of-" + procid.Self() + "-b": old,
		"spool-999999999-a": old, "spool-999999998-b": time.Now(), "spool-" + mine + "-c": old,
		"other-999999999-a": old,
	} {
		dir := filepath.Join(cfg.Folders.Cache, name)
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.Chtimes(dir, when, when); err != nil {
			t.Fatal(err)
		}
	}
	a, err := New(t.Context(), cfg, Options{})
	if err != nil {
		t.Fatal(err)
	}
	if n := len(spools(t, cfg)); n != 4 {
		t.Errorf("%d spool folders, want ours, the young one and the two whose process lives: %v", n, spools(t, cfg))
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := a.Run(ctx); err != nil {
		t.Error(err)
	}
	if n := len(spools(t, cfg)); n != 3 {
		t.Errorf("%d spool folders after the end, want 3: %v", n, spools(t, cfg))
	}
}

func TestTheNamedContextIsTheFirst(t *testing.T) {
	enabled := []enabledModule{{Module: Module{Name: "file"}}, {Module: Module{Name: "dir"}}}
	var names []string
	for _, s := range specs(config.View{Context: "dir"}, enabled) {
		names = append(names, s.Name)
	}
	if got := strings.Join(names, " "); got != "dir file default" {
		t.Errorf("contexts are %q, want dir first and all there", got)
	}
}
