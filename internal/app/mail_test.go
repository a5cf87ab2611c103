package app

import (
	"encoding/json"
	"fmt"
	"net"
	"net/textproto"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"gatehouse/internal/dispatch/bus"
)

// mailbox is a mail server on this machine that accepts everything.
type mailbox struct {
	port  int
	mu    sync.Mutex
	mails []string
}

func (m *mailbox) all() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return append([]string{}, m.mails...)
}

func openMailbox(t *testing.T) *mailbox {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	m := &mailbox{port: l.Addr().(*net.TCPAddr).Port}
	var all sync.WaitGroup
	all.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			all.Go(func() { m.take(c) })
		}
	})
	t.Cleanup(func() { l.Close(); all.Wait() })
	return m
}

func (m *mailbox) take(c net.Conn) {
	defer c.Close()
	w := textproto.NewConn(c)
	w.PrintfLine("220 here")
	for {
		line, err := w.ReadLine()
		switch {
		case err != nil:
			return
		case strings.HasPrefix(line, "EHLO"):
			w.PrintfLine("250-here\r\n250 AUTH PLAIN")
		case strings.HasPrefix(line, "AUTH"):
			w.PrintfLine("235 welcome")
		case line == "DATA":
			w.PrintfLine("354 go on")
			text, err := w.ReadDotBytes()
			if err != nil {
				return
			}
			m.mu.Lock()
			m.mails = append(m.mails, string(text))
			m.mu.Unlock()
			w.PrintfLine("250 kept")
		default:
			w.PrintfLine("250 ok")
		}
	}
}

func TestAHostWritesToPeople(t *testing.T) {
	box := openMailbox(t)
	cfg := ruled(t, "smtp")
	a, client := liveOn(t, cfg, Options{})
	admin, eve := client("ann", "admin"), client("eve")
	set := fmt.Sprintf(
		`{"host":"127.0.0.1","port":%d,"from":"house@example.com","security":"none","username":"house","password":"hunter2-hunter2","to":["ann@example.com"]}`,
		box.port,
	)
	if got := fmt.Sprint(eve.result("smtp_set", set)); !strings.Contains(got, "denied") {
		t.Errorf("eve: %s", got)
	}
	if got := admin.result("smtp_set", set); got["hasPassword"] != true {
		t.Fatalf("got %v", got)
	}
	a.bus.Publish(
		bus.Event{
			Subject: "module.backup.notification",
			At:      time.Now(),
			Data:    json.RawMessage(`{"title":"Backup failed","level":"error","message":"The disk is full."}`),
		},
	)
	eventually(t, "the mail", func() bool { return len(box.all()) == 1 })
	expect(t, box.all()[0], "Subject: [gatehouse] Backup failed", "To: <ann@example.com>", "The disk is full.")

	// The password is in no file in plain text, and in no part of the tree.
	tree, err := a.tree.state.Read(nil).JSON()
	if err != nil || strings.Contains(string(tree), "hunter2") {
		t.Errorf("the tree is %s, %v", tree, err)
	}
	for _, dir := range []string{cfg.Folders.Data, cfg.Folders.State, cfg.Folders.Config} {
		files, _ := filepath.Glob(filepath.Join(dir, "*"))
		for _, file := range files {
			if b, err := os.ReadFile(file); err == nil && strings.Contains(string(b), "hunter2") {
				t.Errorf("the password is in %s", file)
			}
		}
	}
	// After a restart the settings are kept, and nothing is mailed twice.
	_, other := liveOn(t, cfg, Options{})
	root := other("root", "admin")
	if got := root.result("smtp_info", `{}`); got["hasPassword"] != true || got["host"] != "127.0.0.1" {
		t.Errorf("another start has %v", got)
	}
	if got := root.result("smtp_test", `{"to":"bob@example.com"}`); got["sent"] != true {
		t.Errorf("a test mail: %v", got)
	}
	if n := len(box.all()); n != 2 {
		t.Errorf("%d mails arrived, want 2", n)
	}
}
