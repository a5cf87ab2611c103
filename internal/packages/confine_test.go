package packages

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

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
}
