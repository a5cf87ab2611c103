package catalog

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"
)

// serverVariable names the program of the official registry's server, which make
// verify-registry builds.
const serverVariable = "GATEHOUSE_REGISTRY_SERVER"

// The official registry's server, on a PostgreSQL of its own, is listed page by page and
// searched like the strict server of the other tests.
func TestTheOfficialServer(t *testing.T) {
	program := os.Getenv(serverVariable)
	if program == "" {
		t.Skip("make verify-registry runs it")
	}
	dir, err := os.MkdirTemp("", "registry") // a socket's path must be short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	data := filepath.Join(dir, "data")
	spawn := func(env []string, name string, args ...string) *exec.Cmd {
		cmd := exec.Command(name, args...)
		if os.Getuid() == 0 && name != program { // PostgreSQL does not run as root
			cmd = exec.Command(
				"setpriv",
				append([]string{"--reuid=nobody", "--regid=nogroup", "--clear-groups", name}, args...)...)
		}
		cmd.Env, cmd.Dir = append(os.Environ(), env...), dir
		return cmd
	}
	if out, err := spawn(nil, "initdb", "-D", data, "-A", "trust", "-U", "registry").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	start := func(cmd *exec.Cmd) {
		t.Helper()
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { cmd.Process.Signal(os.Interrupt); cmd.Wait() })
	}
	start(spawn(nil, "postgres", "-D", data, "-k", dir, "-c", "listen_addresses="))
	var seed []map[string]any
	const servers = 250
	for i := range servers {
		seed = append(seed, map[string]any{
			"$schema": "https://static.modelcontextprotocol.io/schemas/2025-12-11/server.schema.json",
			"name":    fmt.Sprintf("com.example/server-%d", i), "description": fmt.Sprintf("Forecasts of place %d", i),
			"version": "1.0.0",
			"packages": []any{map[string]any{
				"registryType": "npm", "identifier": fmt.Sprintf("@example/server-%d", i), "version": "1.0.0",
				"transport":            map[string]any{"type": "stdio"},
				"environmentVariables": []any{map[string]any{"name": "API_KEY", "isRequired": true, "isSecret": true}},
			}},
		})
	}
	b, err := json.Marshal(seed)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "seed.json")
	if err := os.WriteFile(file, b, 0o644); err != nil {
		t.Fatal(err)
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := ln.Addr().String()
	ln.Close()
	waitUntil(t, func() bool { return spawn(nil, "pg_isready", "-h", dir).Run() == nil })
	start(spawn([]string{
		"MCP_REGISTRY_SERVER_ADDRESS=" + address, "MCP_REGISTRY_DATABASE_URL=postgres://registry@/postgres?host=" + dir,
		"MCP_REGISTRY_SEED_FROM=" + file, "MCP_REGISTRY_ENABLE_REGISTRY_VALIDATION=false",
		fmt.Sprintf("MCP_REGISTRY_JWT_PRIVATE_KEY=%064x", 7),
	}, program))
	base := "http://" + address
	c := New(Options{Search: only(base), Folder: t.TempDir()})
	waitUntil(t, func() bool {
		var page struct{ Servers []any }
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		return c.get(ctx, base+"/v0.1/servers?search=server-249", &page) == nil && len(page.Servers) == 1
	})
	r := find(t, c, Query{Word: "forecasts", Limit: 100})
	if len(r.Entries) != 100 || r.Sources[0].Error != "" {
		t.Errorf("found %d, %+v", len(r.Entries), r.Sources)
	}
	r = find(t, c, Query{Word: "server-249"})
	if got := names(r.Entries); !slices.Equal(got, []string{"com.example/server-249"}) {
		t.Fatalf("found %v", got)
	}
	e := r.Entries[0]
	if e.Status != "active" || e.Published.IsZero() || e.Updated.IsZero() || e.Publisher != "domain example.com" ||
		len(e.Packages) != 1 || e.Packages[0].Name != "@example/server-249" || !e.Packages[0].Env[0].Secret {
		t.Errorf("got %+v", e)
	}

	// A day later only what has changed is asked for, which the server understands.
	late := New(Options{Search: only(base), Folder: c.opts.Folder,
		Now: func() time.Time { return time.Now().Add(25 * time.Hour) }})
	if r := find(t, late, Query{Word: "server-249"}); len(r.Entries) != 1 || r.Sources[0].Error != "" ||
		r.Sources[0].Offline {
		t.Errorf("got %+v", r)
	}
	if w, err := http.Get(base + "/v0.1/servers?limit=101"); err != nil {
		t.Error(err)
	} else if w.Body.Close(); w.StatusCode == http.StatusOK {
		t.Log("the server takes a limit over 100; the strict one does not")
	}
}

func waitUntil(t *testing.T, is func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !is(); time.Sleep(200 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("it does not begin")
		}
	}
}
