package packages

import (
	"archive/tar"
	"bytes"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"gatehouse/internal/sandbox/namespaces"
	"gatehouse/internal/sandbox/sandboxtest"
)

// An image that gives its volume to a user, starts a process of another one, and becomes the first, as the images of
// databases do, works as it does with a container engine: for a host that is root, and for one of an ordinary user.
func TestAnImageHasUsersOfItsOwn(t *testing.T) {
	t.Run("this user", imageUsers)
	if os.Getuid() != 0 {
		return
	}
	t.Run("an ordinary user", func(t *testing.T) {
		server := filepath.Join(t.TempDir(), serverName)
		if err := os.WriteFile(server, builtServer(t), 0o755); err != nil {
			t.Fatal(err)
		}
		sandboxtest.RunAsOrdinary(t, "TestAnImageHasUsersOfItsOwn", server)
	})
}

func imageUsers(t *testing.T) {
	at := newImageRegistry(t)
	h := confined(t, Options{Images: at.options()})
	if err := h.userRange(); err != nil {
		t.Skip(err)
	}
	start := func(c *v1.Config) { c.User, c.Entrypoint, c.Cmd = "", []string{"/app/server", "drop"}, nil }
	at.push("1", serverImage(t, start))
	source := "oci:" + at.host + "/made/server:1"
	r := Record{ID: "boxed", Source: mustSource(t, source), Start: OnDemand}
	expectWords(t, strings.Join(h.Describe(t.Context(), &r), " "), "starts as root of its sandbox", "users of its own")
	i := h.install(r)
	works := func(when string) {
		t.Helper()
		got, err := h.call("boxed", "about", `{}`)
		if err != nil {
			t.Fatalf("%s: %v", when, err)
		}
		expectWords(t, when+": "+got, "seed=from the image", "uid=998 denied=true CapEff:\t0000000000000000",
			"secret=false own=999:true uid=999", "/home/user/made:", "/state/made:",
			// The root is written and given away at each start, and begins anew with the next instance.
			"/app/made:false:true", "first=true")
	}
	works("installed")
	p, err := h.findPackage("boxed")
	if err != nil {
		t.Fatal(err)
	}
	if n, err := p.dataSize(t.Context()); n < int64(len("from the image")+1) || err != nil {
		t.Errorf("its files have %d bytes, %v", n, err)
	}
	second := at.push("1", serverImage(t, func(c *v1.Config) { start(c); c.Env = append(c.Env, "KIND=second") }))
	if i, err := h.Rebuild(t.Context(), "boxed", source, nil); err != nil || i.Record.Digest != second {
		t.Fatalf("updated to %s, %v", i.Record.Digest, err)
	}
	works("updated")
	if _, err := h.Rollback(t.Context(), "boxed", "", nil); err != nil {
		t.Fatal(err)
	}
	works("rolled back")
	testOwnedBackup(t, h, p)
	works("restored")
	testGrantedOwners(t, h)
	works("with users of its own again")
	if err := h.Remove("boxed", false); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Lstat(filepath.Dir(i.Data)); !os.IsNotExist(err) {
		t.Errorf("the folder of the package is left: %v", err)
	}
}

// testOwnedBackup packs the data of a package as a backup does, changes them, and puts them back as a restore does.
func testOwnedBackup(t *testing.T, h *home, p *managedPackage) {
	t.Helper()
	d, err := namespaces.New(namespaces.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	var words bytes.Buffer
	files, err := PackOwned(t.Context(), d, h.dir, t.TempDir(), slog.New(slog.NewTextHandler(&words, nil)))
	if err != nil || len(files) != 1 {
		t.Fatalf("packed %v, %v, %s", files, err, words.String())
	}
	packed, err := os.ReadFile(files["boxed/"+ownedArchive])
	if err != nil {
		t.Fatal(err)
	}
	owner := -1
	for r := tar.NewReader(bytes.NewReader(packed)); ; {
		e, err := r.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if strings.HasSuffix(e.Name, "/private/own") {
			owner = e.Uid
		}
	}
	if owner != 999 {
		t.Errorf("a backup has the file as one of user %d, not of 999", owner)
	}
	if err := p.stopServers(); err != nil {
		t.Fatal(err)
	}
	if err := p.removeOwned(filepath.Join(p.data(), volumes)); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(p.folder(), ownedArchive), packed, 0o600); err != nil {
		t.Fatal(err)
	}
}

// testGrantedOwners checks that what an image makes in a granted folder is the person's, whatever owner it tries to
// give it, and that the image has its own users again without the grant.
func testGrantedOwners(t *testing.T, h *home) {
	t.Helper()
	folder := realPath(t.TempDir())
	if _, err := h.Grant(t.Context(), "boxed", Regrant{Add: Grants{Folders: []string{folder}}}); err != nil {
		t.Fatal(err)
	}
	if _, err := h.call("boxed", "about", `{"make":"`+folder+`/made"}`); err != nil {
		t.Fatal(err)
	}
	if owner := sandboxtest.OwnerOf(t, filepath.Join(folder, "made")); owner != os.Getuid() {
		t.Errorf("what it made in a granted folder belongs to user %d", owner)
	}
	if _, err := h.Grant(t.Context(), "boxed", Regrant{Remove: Grants{Folders: []string{folder}}}); err != nil {
		t.Fatal(err)
	}
}
