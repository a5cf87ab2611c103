package ws

import (
	"context"
	"encoding/json"
	"errors"
	"testing"
	"time"

	"gatehouse/module"
	"gatehouse/module/moduletest"
	"gatehouse/tool"
)

// call gives a result, or the code of a refusal.
func call(t *testing.T, cfg Config, name string, args map[string]any, into any) (code string) {
	t.Helper()
	deps := moduletest.NewHost(t).Deps()
	m, err := New(cfg)(t.Context(), deps)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.Close(context.Background()) })
	res, err := moduletest.NewCall(t, args).Tool(t.Context(), moduletest.Tool(t, m, name))
	if r, ok := errors.AsType[*tool.Refusal](err); ok {
		return string(r.Code)
	}
	b, _ := json.Marshal(res.Structured)
	if err = errors.Join(err, json.Unmarshal(b, into)); err != nil {
		t.Fatal(err)
	}
	return ""
}

var _ module.New = New(Config{})

func TestADoorIsOpenedForTheCaller(t *testing.T) {
	until := time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC)
	cfg := Config{
		Addr: func() string { return "127.0.0.1:7" },
		Start: func(_ context.Context, c tool.Caller, addr string) (Started, error) {
			if c.Owner != "anonymous/default" || addr != "127.0.0.1:0" {
				t.Errorf("got %s at %s", c.Owner, addr)
			}
			return Started{"127.0.0.1:7", "secret", until}, nil
		},
	}
	var out startOut
	if code := call(t, cfg, "ws_start", map[string]any{}, &out); code != "" ||
		out.URL != "ws://127.0.0.1:7/ws?ticket=secret" ||
		out.Message != "WebSockets are served at ws://127.0.0.1:7/ws" || out.Expires != "2030-01-02T03:04:05Z" {
		t.Errorf("got %s %+v", code, out)
	}
	var info infoOut
	if code := call(t, cfg, "ws_info", map[string]any{}, &info); code != "" || !info.Running ||
		info.Addr != "127.0.0.1:7" || info.Clients != 0 || info.List == nil {
		t.Errorf("got %s %+v", code, info)
	}
}

// Without a hub and a listener there are no clients, and the module says so.
func TestWithoutAHub(t *testing.T) {
	if code := call(t, Config{}, "ws_start", map[string]any{}, nil); code != "unsupported" {
		t.Errorf("got %q", code)
	}
	var out publishOut
	if code := call(t, Config{}, "ws_publish", map[string]any{"channel": "chat:1", "data": 1}, &out); code != "" ||
		out.Clients != 0 {
		t.Errorf("got %s %+v", code, out)
	}
	var info infoOut
	if code := call(t, Config{}, "ws_info", map[string]any{}, &info); code != "" || info.Running {
		t.Errorf("got %s %+v", code, info)
	}
}
