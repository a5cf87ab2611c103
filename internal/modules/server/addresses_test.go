package server

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"gatehouse/internal/access/confirm"
	"gatehouse/module/moduletest"
	"gatehouse/tool"
)

func TestTheHostsOwnListenersAreListed(t *testing.T) {
	h := newFakeHost()
	c := start(t, Config{Host: h})
	var bindings bindingsOut
	if refused := c.call("server_host_binding_list", `{}`, &bindings); refused != "" {
		t.Fatal(refused)
	}
	if b := bindings.Bindings; len(b) != 4 || b[1].Port != 3000 || !b[1].Secure || b[2].Port != 443 || !b[2].Secure ||
		b[3].Bind != "/run/x" {
		t.Errorf("got %+v", b)
	}
	var all addressesOut
	if refused := c.call("server_host_address_list", `{}`, &all); refused != "" {
		t.Fatal(refused)
	}
	var at []string
	for _, a := range all.Addresses {
		at = append(at, a.Address)
		if a.Address == "https://box.example.com/mcp" && (!a.Public || a.ACME != "an authority") {
			t.Errorf("the public name is %+v", a)
		}
	}
	for _, want := range []string{"http://127.0.0.1:3000/mcp", "https://127.0.0.1:443/mcp",
		"https://box.example.com/mcp", "/run/x"} {
		if !slices.Contains(at, want) {
			t.Errorf("%s is not among %q", want, at)
		}
	}
}

func TestServicesOutsideAreNamedByAdministrators(t *testing.T) {
	h := newFakeHost()
	c := start(t, Config{Host: h})
	var out echoIPOut
	if refused := c.call("server_set_echo_ip", `{"urls":["https://echo.example.com/"]}`, &out); refused != "" {
		t.Fatal(refused)
	}
	if got := h.About().EchoIP; !slices.Equal(got, []string{"https://echo.example.com"}) {
		t.Errorf("got %q", got)
	}
	for _, bad := range []string{"http://echo.example.com", "https://u:p@echo.example.com", "echo",
		"https://echo.example.com/?a"} {
		if refused := c.call("server_set_echo_ip", `{"urls":["`+bad+`"]}`, nil); !strings.HasPrefix(
			refused,
			"invalid_arguments:",
		) {
			t.Errorf("%s: refused with %q", bad, refused)
		}
	}
	c.roles = nil
	if refused := c.call("server_set_echo_ip", `{"urls":[]}`, nil); !strings.HasPrefix(refused, "denied:") {
		t.Errorf("refused with %q", refused)
	}
}

// The machine is named by another module's tool, which is not there.
func TestAHostnameNeedsItsModule(t *testing.T) {
	c := start(t, Config{Host: newFakeHost()})
	if refused := c.call("server_set_name", `{"hostname":"Not A Name"}`, nil); !strings.HasPrefix(
		refused,
		"invalid_arguments:",
	) {
		t.Errorf("refused with %q", refused)
	}
	c.answer = moduletest.Accept(map[string]bool{"confirm": true})
	if refused := c.call("server_set_name", `{"hostname":"box"}`, nil); !strings.Contains(
		refused,
		"system_set_hostname",
	) {
		t.Errorf("refused with %q", refused)
	}
}

// The user is asked by the tool that the client called, and the other module's tool is told so. It is not called without
// an agreement.
func TestTheMachineIsNamedOnceTheUserAgreed(t *testing.T) {
	var called []string
	deps := moduletest.NewHost(t).Deps()
	deps.Call = func(ctx context.Context, _ *tool.Call, name string, args json.RawMessage) (tool.Result, error) {
		called = append(called, fmt.Sprintf("%s %s %t", name, args, confirm.Agreed(ctx, name, args)))
		return tool.Result{}, nil
	}
	m, err := New(Config{Host: newFakeHost()})(t.Context(), deps)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.Close(context.Background()) })
	c := &caller{t: t, module: m, roles: []string{"admin"}, can: tool.CanElicit, answer: moduletest.Decline()}
	if refused := c.call("server_set_name", `{"hostname":"box"}`, nil); !strings.HasPrefix(refused, "declined:") || len(called) != 0 {
		t.Errorf("declined: %q, called %q", refused, called)
	}
	c.answer = moduletest.Accept(map[string]bool{"confirm": true})
	var out nameOut
	if refused := c.call("server_set_name", `{"hostname":"box"}`, &out); refused != "" || out.Hostname != "box" ||
		!slices.Equal(called, []string{`system_set_hostname {"hostname":"box"} true`}) {
		t.Errorf("refused with %q, got %+v, called %q", refused, out, called)
	}
}
