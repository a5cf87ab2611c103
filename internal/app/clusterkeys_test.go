package app

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"gatehouse/internal/access/secret"
	"gatehouse/internal/cluster"
	"gatehouse/internal/cluster/nodetest"
	"gatehouse/internal/mcp/seal"
)

// TestSealedStateOfAllNodes seals on each of three nodes before, while and after a key is replaced; every other node
// opens it at once.
func TestSealedStateOfAllNodes(t *testing.T) {
	ctx, stop := context.WithCancel(t.Context())
	var running sync.WaitGroup
	defer running.Wait()
	defer stop()
	var nodes []*clusterNodes
	var rings []*seal.Ring
	var paths []string
	for i, n := range nodetest.Start(t) {
		c := &clusterNodes{Node: n, log: slog.New(slog.DiscardHandler)}
		var err error
		if c.shared, err = n.Bucket(ctx, "keys", cluster.BucketOptions{}); err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(t.TempDir(), fmt.Sprint(i, ".json"))
		paths = append(paths, path)
		if err := c.shareKeys(ctx, path); err != nil {
			t.Fatal(err)
		}
		ring, err := seal.Load(path)
		if err != nil {
			t.Fatal(err)
		}
		running.Go(func() { c.followKeys(ctx, path, ring) })
		nodes, rings = append(nodes, c), append(rings, ring)
	}
	later := time.Now().Add(time.Hour)
	sealed := map[string]string{}
	sealAll := func(when string) {
		for i, r := range rings {
			text := fmt.Sprint(when, " on node ", i)
			sealed[text] = r.Seal("test", nil, []byte(text), later)
		}
	}
	openAll := func(when string) {
		t.Helper()
		for text, token := range sealed {
			for i, r := range rings {
				if got, err := r.Open("test", nil, token, time.Now()); err != nil || string(got) != text {
					t.Errorf("%s, node %d does not open what was sealed %s: %q, %v", when, i, text, got, err)
				}
			}
		}
	}
	content := func() string {
		r, err := nodes[0].shared.Confirmed(ctx, sealKey)
		if err != nil {
			t.Fatal(err)
		}
		return string(r.Value)
	}
	rotate := func(life, staged time.Duration) {
		t.Helper()
		var all sync.WaitGroup
		for _, c := range nodes { // at once: one of them does it
			all.Go(func() { c.rotateKeys(ctx, life, staged) })
		}
		all.Wait()
	}
	sealAll("at first")
	openAll("at first")
	first := content()
	rotate(time.Hour, time.Hour)
	if content() != first {
		t.Error("a key that is not old was replaced")
	}
	for round := range 2 {
		before := content()
		if err := nodes[round].rotateKeys(ctx, 0, time.Hour); err != nil { // the new key is staged
			t.Fatal(err)
		}
		staged := content()
		if staged == before {
			t.Fatal("no key was staged")
		}
		rotate(0, time.Hour)
		if content() != staged {
			t.Error("a staged key seals, or another one was staged, before all nodes have it")
		}
		sealAll(fmt.Sprint("while a key is staged, round ", round))
		openAll("while a key is staged")
		for _, path := range paths { // a host has an hour for it
			eventually(t, "every node has the staged key", func() bool {
				raw, err := os.ReadFile(path)
				return err == nil && string(raw) == staged
			})
		}
		old := rings[0].Seal("test", nil, nil, later)[:6]                    // of the key
		if err := nodes[2-round].rotateKeys(ctx, time.Hour, 0); err != nil { // it seals
			t.Fatal(err)
		}
		if content() == staged {
			t.Fatal("the staged key does not seal")
		}
		sealAll(fmt.Sprint("just after the change, round ", round))
		openAll("after the change")
		for i, r := range rings {
			eventually(t, fmt.Sprint("node ", i, " seals with the new key"), func() bool {
				return r.Seal("test", nil, nil, later)[:6] != old
			})
		}
	}
}

// waitForUpgrade makes a node of the version before a member, beside which no key is made, and removes it.
func waitForUpgrade(t *testing.T, nodes []*clusterNodes, key string) {
	t.Helper()
	members, err := nodes[0].Bucket(t.Context(), "members", cluster.BucketOptions{})
	if err != nil {
		t.Fatal(err)
	}
	const id = "olderolder"
	r, err := members.Create(t.Context(), id, []byte(`{"id":"`+id+`","host":"attic","version":"0.1.0","member":true}`))
	if err != nil {
		t.Fatal(err)
	}
	know := func(want bool) {
		for _, c := range nodes {
			for end := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
				if known, _ := c.Known(id); known == want {
					break
				} else if time.Now().After(end) {
					t.Fatal("a node does not know the members")
				}
			}
		}
	}
	know(true)
	for _, c := range nodes {
		err := c.rotateSecrets(t.Context(), time.Nanosecond)
		if err == nil || !strings.Contains(err.Error(), "node "+id+" (attic) has version 0.1.0") {
			t.Errorf("a rotation beside an older node: %v", err)
		}
		if now, err := c.app.secretStore().Recipient(); err != nil || now != key {
			t.Errorf("the key beside an older node is %s, was %s, %v", now, key, err)
		}
	}
	if err := members.Delete(t.Context(), id, r); err != nil {
		t.Fatal(err)
	}
	know(false)
}

// TestKeysOfSecretsAreRotated has all nodes find at once that the key of the secrets is old. Each reads all secrets all
// the time, and has the new key in the end.
func TestKeysOfSecretsAreRotated(t *testing.T) {
	ctx, stop := context.WithCancel(t.Context())
	var running sync.WaitGroup
	defer running.Wait()
	defer stop()
	log := slog.New(slog.DiscardHandler)
	var nodes []*clusterNodes
	for _, n := range nodetest.Start(t) {
		a := &App{log: log}
		a.cfg.Folders.Config, a.cfg.Folders.Data = t.TempDir(), t.TempDir()
		if err := os.MkdirAll(ClusterFolder(a.cfg.Folders.Data), 0o700); err != nil {
			t.Fatal(err)
		}
		c := &clusterNodes{Node: n, app: a, log: log}
		a.nodes = c
		if err := c.shareSecrets(ctx); err != nil {
			t.Fatal(err)
		}
		running.Go(func() { c.files.Run(ctx, log) })
		nodes = append(nodes, c)
	}
	if err := nodes[0].app.secretStore().Set("A", secret.New("one")); err != nil {
		t.Fatal(err)
	}
	first, err := nodes[0].app.secretStore().Recipient()
	if err != nil {
		t.Fatal(err)
	}
	if err := nodes[0].rotateSecrets(ctx, time.Hour); err != nil {
		t.Fatal(err)
	}
	if now, err := nodes[0].app.secretStore().Recipient(); err != nil || now != first {
		t.Errorf("a key that is not old was replaced by %s, %v", now, err)
	}
	waitForUpgrade(t, nodes, first)
	reads := func(c *clusterNodes) error {
		got, err := c.app.secretStore().Get("A")
		if err == nil && got.Reveal() != "one" {
			err = fmt.Errorf("it is %q", got.Reveal())
		}
		return err
	}
	for _, c := range nodes {
		for end := time.Now().Add(time.Minute); reads(c) != nil && time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		}
	}
	var rotating, reading sync.WaitGroup
	done := make(chan struct{})
	for _, c := range nodes {
		rotating.Go(func() {
			if err := c.rotateSecrets(ctx, time.Nanosecond); err != nil {
				t.Error(err)
			}
		})
		reading.Go(func() {
			for {
				if err := reads(c); err != nil {
					t.Errorf("while the key is rotated: %v", err)
					return
				}
				select {
				case <-done:
					return
				case <-time.After(time.Millisecond):
				}
			}
		})
	}
	rotating.Wait()
	close(done)
	reading.Wait()
	var keys []string
	for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		keys = nil
		for _, c := range nodes {
			public, err := c.app.secretStore().Recipient()
			if err != nil {
				t.Fatal(err)
			}
			keys = append(keys, public)
		}
		if keys[0] != first && keys[0] == keys[1] && keys[1] == keys[2] {
			break
		}
	}
	if keys[0] == first || keys[0] != keys[1] || keys[1] != keys[2] {
		t.Errorf("the keys of the nodes are %q, the first was %s", keys, first)
	}

	// A node that has seen a later revision than the cluster has does not take that for the newest.
	mark, _ := sharedFilesOf(nodes[0].app.cfg.Folders)
	if err := os.WriteFile(mark, fmt.Appendf(nil, `{%q:1000000}`, secretsFile), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := nodes[0].shareSecrets(ctx); !errors.Is(err, cluster.ErrLost) {
		t.Errorf("the cluster lacks a revision: %v", err)
	}
}
