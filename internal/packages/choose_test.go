package packages

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// A tool that is off is not offered, also after a rebuild and by the next host.
func TestToolsAreTurnedOff(t *testing.T) {
	h := openHome(t, Options{})
	h.install(server(t, "up", "good"))
	was := h.names()
	all, err := h.ChooseTools("up", []string{"echo", "up_raw"}, nil)
	if err != nil || len(all) != len(was) {
		t.Fatalf("listed %v, %v", all, err)
	}
	gone := func() bool {
		return !slices.Contains(h.names(), "up_echo") && !slices.Contains(h.names(), "up_raw") &&
			len(h.names()) == len(was)-2
	}
	if !gone() {
		t.Errorf("offered %v", h.names())
	}
	if i, _ := h.Info("up"); i.Public.Tools != len(was)-2 || !slices.Equal(i.Off, []string{"up_echo", "up_raw"}) {
		t.Errorf("shown as %+v, off %v", i.Public, i.Off)
	}
	if _, err := h.Rebuild(t.Context(), "up", "", nil); err != nil || !gone() {
		t.Errorf("after a rebuild %v, %v", h.names(), err)
	}
	if _, err := h.ChooseTools("up", nil, []string{"up_echo"}); err != nil || !slices.Contains(h.names(), "up_echo") {
		t.Errorf("on again: %v, %v", h.names(), err)
	}
	if _, err := h.ChooseTools("up", []string{"nothing"}, nil); code(err) != "not_found" ||
		!strings.Contains(err.Error(), "nothing") {
		t.Errorf("got %v", err)
	}
}

// A lazy host without packages locks and makes nothing; the first installation does.
func TestALazyHostLeavesAnEmptyFolder(t *testing.T) {
	h := openHome(t, Options{Lazy: true})
	if all, err := h.List(); err != nil || len(all) != 0 {
		t.Errorf("listed %v, %v", all, err)
	}
	if _, err := h.Info("up"); code(err) != "not_found" {
		t.Errorf("got %v", err)
	}
	if _, err := os.Stat(filepath.Join(h.opts.Folder, lockName)); err == nil {
		t.Error("the folder is locked")
	}
	h.install(server(t, "up", "good"))
	if !slices.Contains(h.names(), "up_echo") {
		t.Errorf("offered %v", h.names())
	}
}

// The size of a folder that fills up is reported about every second, and no more after
// the end.
func TestTheSizeOfAFolderIsReported(t *testing.T) {
	dir := t.TempDir()
	sizes := make(chan int64, 10)
	end := reportSize(context.Background(), dir, func(n int64) { sizes <- n })
	if err := os.WriteFile(filepath.Join(dir, "a"), make([]byte, 1000), 0o600); err != nil {
		t.Fatal(err)
	}
	select {
	case n := <-sizes:
		if n != 1000 {
			t.Errorf("%d bytes", n)
		}
	case <-time.After(10 * time.Second):
		t.Fatal("nothing is reported")
	}
	end()
	for len(sizes) > 0 {
		<-sizes
	}
	time.Sleep(sizeInterval + 100*time.Millisecond)
	if len(sizes) > 0 {
		t.Error("reported after the end")
	}
}
