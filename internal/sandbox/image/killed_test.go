package image

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

const pullAndDie = "pull-and-die"

// pull is a host that pulls an image and is killed while it does.
func pull(folder, registry, ref string) {
	s, err := New(Options{Folder: folder, Registries: []string{registry}})
	if err == nil {
		_, _, err = s.Get(context.Background(), ref, nil)
	}
	fmt.Fprintln(os.Stderr, "ended before it was killed:", err)
	os.Exit(1)
}

//redteam:attack A kill leaves whole files: a host is killed while it pulls an image
func TestAHostThatIsKilledLeavesNoHalfImage(t *testing.T) {
	reg := serve(t)
	img := imageOf(t,
		layerOf(t, "gzip", file{name: "first", says: "first"}),
		layerOf(t, "plain", file{name: "second", says: "second"}, file{name: "large", size: 4 << 20}))
	ref, _ := reg.push(t, "v1", img)
	layers, err := img.Layers()
	if err != nil {
		t.Fatal(err)
	}
	slow, err := layers[1].Digest()
	if err != nil {
		t.Fatal(err)
	}
	stuck := make(chan struct{})
	var once sync.Once
	reg.between(func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Method == http.MethodGet && strings.HasSuffix(r.URL.Path, slow.String()) {
				next.ServeHTTP(&half{ResponseWriter: w, left: 1 << 20, full: func() {
					once.Do(func() { close(stuck) })
					<-r.Context().Done()
				}}, r)
				return
			}
			next.ServeHTTP(w, r)
		})
	})
	me, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	folder := t.TempDir()
	host := exec.Command(me, pullAndDie, folder, reg.URL, ref)
	host.Stderr = t.Output()
	if err := host.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { host.Process.Kill(); host.Wait() })
	select {
	case <-stuck:
	case <-time.After(time.Minute):
		t.Fatal("nobody pulled")
	}
	id, err := img.ConfigName()
	if err != nil {
		t.Fatal(err)
	}
	half := filepath.Join(folder, "making", id.Hex, "root", "second")
	for until := time.Now().Add(time.Minute); ; time.Sleep(5 * time.Millisecond) {
		if _, err := os.Stat(half); err == nil {
			break
		}
		if time.Now().After(until) {
			t.Fatal("nothing was unpacked")
		}
	}

	// While it lives no other process touches its files.
	storeIn(t, Options{Folder: folder})
	if _, err := os.Stat(half); err != nil {
		t.Errorf("swept away under a host that lives: %v", err)
	}
	if err := host.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	host.Wait()
	if all, err := os.ReadDir(filepath.Join(folder, "images")); err != nil || len(all) != 0 {
		t.Errorf("%v, %v: a killed host left an image", all, err)
	}
	reg.between(nil)
	s := reg.store(t, Options{Folder: folder})
	nothingIsLeft(t, folder)
	got, release, err := s.Get(t.Context(), ref, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer release()
	has := holds(t, got.Root)
	has["large"] = fmt.Sprint(len(has["large"]))
	if want := map[string]string{"first": "first", "second": "second",
		"large": fmt.Sprint(4 << 20)}; !maps.Equal(has, want) {
		t.Errorf("got %q, want %q", has, want)
	}
}

// half is an answer that stops in the middle.
type half struct {
	http.ResponseWriter
	left int
	full func()
}

func (h *half) Write(p []byte) (int, error) {
	n, err := h.ResponseWriter.Write(p[:min(len(p), h.left)])
	if h.left -= n; h.left > 0 || err != nil {
		return n, err
	}
	h.ResponseWriter.(http.Flusher).Flush()
	h.full()
	return n, http.ErrAbortHandler
}
