package build_test

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"

	"gatehouse/internal/dispatch/hub"
	"gatehouse/internal/modules/build"
	"gatehouse/module"
	"gatehouse/module/moduletest"
	"gatehouse/tool"
)

// A client of the hub is told of the builds of its owner alone, as they start and end, and a build is in the list of
// those that run until it has ended.
func TestBuildsAreReported(t *testing.T) {
	b := newBench(t, "", map[string]string{
		"good/Makefile": "all:\n\t@echo made\n", "bad/Makefile": "all:\n\t@exit 3\n",
		"slow/Makefile": "all:\n\t@echo begun; sleep 300\n",
	})
	messages := hub.New(hub.Options{})
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		messages.Serve(w, r, hub.Caller{Caller: tool.Caller{Owner: strings.TrimPrefix(r.URL.Path, "/")}})
	}))
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); messages.Run(ctx) }()
	t.Cleanup(func() { stop(); <-done; server.Close() })
	var running func() []build.Build
	m, err := build.New(
		build.Config{Hub: messages, Lister: func(f func() []build.Build) { running = f }},
	)(t.Context(), module.Deps{})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close(context.Background())
	listen := func(owner string) *websocket.Conn {
		conn, _, err := websocket.Dial(t.Context(), "ws"+strings.TrimPrefix(server.URL, "http")+"/"+owner, nil)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.CloseNow() })
		for _, channel := range []string{"start", "complete", "failed"} {
			if err := conn.Write(t.Context(), websocket.MessageText,
				[]byte(`{"type":"subscribe","data":"ide:build.`+channel+`"}`)); err != nil {
				t.Fatal(err)
			}
			hear(t, conn)
		}
		return conn
	}
	ann, bob := listen("ann/lab"), listen("bob/lab")
	call := func(owner, name, args string, into any) {
		t.Helper()
		c := moduletest.NewCall(t, args)
		c.Caller.Owner, c.Roots = owner, b.roots
		if bad := c.Ask(t, m, name, into); bad != "" {
			t.Fatalf("%s: %s", name, bad)
		}
	}
	var got built
	call("bob/lab", "build_run", `{"dir":"good","wait":45}`, &got)
	call("ann/lab", "build_run", `{"dir":"good","wait":45}`, &got)
	call("ann/lab", "build_run", `{"dir":"bad","wait":45}`, &got)
	call("ann/lab", "build_run", `{"dir":"slow","wait":0}`, &got)
	list := running()
	if len(list) != 1 || list[0].ID != got.ID || list[0].Owner != "ann/lab" || list[0].Status != "running" {
		t.Errorf("running: %+v", list)
	}
	call("ann/lab", "build_stop", `{"id":"`+got.ID+`"}`, &got)
	for end := time.Now().Add(time.Minute); len(running()) > 0; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("running after the end: %+v", running())
		}
	}
	for who, want := range map[*websocket.Conn][]string{
		ann: {"start", "complete", "start", "failed", "start", "failed"}, bob: {"start", "complete"},
	} {
		var heard []string
		for range want {
			msg := hear(t, who)
			heard = append(heard, strings.TrimPrefix(msg.Channel, "ide:build."))
			if !strings.Contains(string(msg.Data), `"status"`) {
				t.Errorf("%s has %s", msg.Channel, msg.Data)
			}
		}
		if !slices.Equal(heard, want) {
			t.Errorf("heard %v, want %v", heard, want)
		}
	}
}

func hear(t *testing.T, conn *websocket.Conn) (m hub.Message) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	_, b, err := conn.Read(ctx)
	if err == nil {
		err = json.Unmarshal(b, &m)
	}
	if err != nil {
		t.Fatal(err)
	}
	return m
}
