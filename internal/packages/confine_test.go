package packages

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"gatehouse/internal/sandbox"
	"gatehouse/internal/sandbox/namespaces"
)

// confined opens packages that run in sandboxes. A machine that cannot have them skips the test.
func confined(t testing.TB, o Options) *home {
	t.Helper()
	o.Confinement = Sandboxed
	o.Sandboxes = func() (sandbox.Driver, error) { return namespaces.New(namespaces.Options{}) }
	d, err := o.Sandboxes()
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	for _, f := range d.Doctor(t.Context()) {
		if f.Needed && !f.OK {
			t.Skipf("no sandboxes here: %s: %s", f.Name, f.Detail)
		}
	}
	return openHome(t, o)
}

func TestAConfinedPackageAnswers(t *testing.T) {
	h := confined(t, Options{})
	i := h.install(server(t, "one", "good"))
	if i.Public.Confinement != Sandboxed {
		t.Errorf("it is shown as %s", i.Public.Confinement)
	}
	if got, err := h.call("one", "echo", `{"text":"hello"}`); err != nil || !strings.Contains(got, "hello") {
		t.Errorf("%q, %v", got, err)
	}
	i, err := h.Info("one")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(i.Data, temporary)); err != nil {
		t.Error(err)
	}
	// The agent, the launcher and the server, of which the last is a program of Go.
	used, err := h.Stats(t.Context(), "one")
	for end := time.Now().Add(time.Minute); err == nil && len(used) == 1 && used[0].CPU == 0 &&
		time.Now().Before(end); {
		if _, err := h.call("one", "echo", `{"text":"hello"}`); err != nil { // the kernel counts hundredths of a second
			t.Fatal(err)
		}
		used, err = h.Stats(t.Context(), "one")
	}
	if err != nil || len(used) != 1 || used[0].Processes < 3 || used[0].Memory < 8<<20 || used[0].CPU <= 0 {
		t.Errorf("it uses %+v, %v", used, err)
	}
}

func TestAnnouncedFoldersAreOfOneClient(t *testing.T) {
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	r := Record{
		ID: "one", Start: OnDemand, Source: Source{Kind: Command}, Command: "program", Args: []string{dir},
		Confinement: Sandboxed, Grants: Grants{Folders: []string{dir + ":roots"}},
	}
	for mode, ok := range map[string]bool{"": true, SessionInstances: true, SharedInstances: false} {
		r.Instances = mode
		if err := r.checkRecord(); (err == nil) != ok {
			t.Errorf("instances %q: %v", mode, err)
		}
	}
	r.Instances = SharedInstances
	if r.Confinement = ""; r.checkRecord() == nil { // as it is declared in the settings
		t.Error("shared instances are declared with folders of clients")
	}
	r.Confinement = Sandboxed
	if got := r.ungranted(); !slices.Equal(got, []string{dir}) {
		t.Errorf("not granted: %q; want the folder of the arguments, which not every client announces", got)
	}
	r.Grants.Folders = append(r.Grants.Folders, dir)
	if got := r.ungranted(); len(got) > 0 {
		t.Errorf("not granted: %q", got)
	}
}
