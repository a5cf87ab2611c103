package app

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"gatehouse/internal/config"
	"gatehouse/internal/modules/publicstate"
)

// ruled returns settings of a host with some of its modules.
func ruled(t *testing.T, modules ...string) config.Config {
	t.Helper()
	cfg := settings(t)
	cfg.View.Modules = modules
	return cfg
}

// result returns the structured result of a call, or the text of its error.
func (c *tenant) result(name, args string) map[string]any {
	c.t.Helper()
	answer := c.call("default", name, args)
	var r struct {
		Result struct {
			StructuredContent map[string]any
			Content           []struct{ Text string }
			IsError           bool
		}
		Error struct{ Message string }
	}
	if err := json.Unmarshal([]byte(answer), &r); err != nil {
		c.t.Fatal(err)
	}
	if r.Error.Message != "" {
		return map[string]any{"refused": r.Error.Message}
	}
	if r.Result.IsError {
		return map[string]any{"refused": r.Result.Content[0].Text}
	}
	return r.Result.StructuredContent
}

func TestAHostIsNamedForGood(t *testing.T) {
	cfg := ruled(t, "server")
	a, client := liveOn(t, cfg, Options{})
	admin, eve := client("ann", "admin"), client("eve")
	if got := fmt.Sprint(eve.result("server_set_name", `{"name":"mine"}`)); !strings.Contains(got, "denied") {
		t.Errorf("eve renames the host: %s", got)
	}
	if got := admin.result("server_set_name", `{"name":"House on the hill"}`); got["name"] != "House on the hill" {
		t.Fatal(got)
	}
	admin.result("server_language", `{"language":"de"}`)
	if v, _ := eve.readPublic("default", publicstate.PublicURI+"/serverInfo/name"); v != "House on the hill" {
		t.Errorf("eve sees %v", v)
	}
	expect(
		t,
		eve.say("default", "resources/read", fmt.Sprintf(`"uri":%q`, publicstate.PromptURI)),
		"connected to House on the hill",
		"in the language de",
	)
	// Another host of the same data folder has the name, and receives the next change.
	b, other := liveOn(t, cfg, Options{})
	root := other("root", "admin")
	if got := root.result("server_info", `{}`); got["name"] != "House on the hill" || got["id"] == nil ||
		got["os"].(map[string]any)["language"] != "de" {
		t.Errorf("the other host is %v", got)
	}
	root.result("server_set_name", `{"clear":true}`)
	eventually(t, "both have their own name again", func() bool {
		first, _, _ := a.tree.info.Get()
		second, _, _ := b.tree.info.Get()
		return first.Name == "gatehouse" && second.Name == "gatehouse"
	})
}

func TestWhatAHostSaysIsShownToThoseWhoRuleIt(t *testing.T) {
	a, client := liveOn(t, ruled(t, "server"), Options{})
	admin, eve := client("ann", "admin"), client("eve")
	a.log.Info("a fact of today", "n", 7)
	if got := fmt.Sprint(admin.result("server_logs", `{}`)); !strings.Contains(got, "a fact of today") ||
		!strings.Contains(got, "n:7") {
		t.Errorf("got %s", got)
	}
	if got := fmt.Sprint(eve.result("server_logs", `{}`)); !strings.Contains(got, "denied") {
		t.Errorf("eve reads %s", got)
	}
}

func TestTheMachineIsInThePublicTree(t *testing.T) {
	_, client := liveOn(t, ruled(t, "server"), Options{})
	eve := client("eve")
	eventually(t, "a sample", func() bool {
		v, _ := eve.readPublic("default", publicstate.PublicURI+"/serverInfo/metrics/general")
		return v != nil
	})
	// Without the module, the machine is not measured.
	bare, _ := live(t)
	if info, _, err := bare.tree.info.Get(); err != nil || info.Metrics != nil {
		t.Errorf("%+v, %v", info.Metrics, err)
	}
}

func TestAHostEndsWhenItIsAsked(t *testing.T) {
	for name, again := range map[string]string{"server_shutdown": "", "server_restart": "somehow"} {
		a, err := New(t.Context(), ruled(t, "server"), Options{Again: again})
		if err != nil {
			t.Fatal(err)
		}
		ended := make(chan error, 1)
		go func() { ended <- a.Run(t.Context()) }()
		eve, ann := tenantOf(t, a, "eve"), tenantOf(t, a, "ann", "admin")
		if got := fmt.Sprint(eve.result(name, `{"confirm":"gatehouse"}`)); !strings.Contains(got, "denied") {
			t.Errorf("eve: %s", got)
		}
		if got := ann.result(name, `{"confirm":"gatehouse"}`); got["refused"] != nil ||
			again != "" && got["how"] != again {
			t.Errorf("ann: %v", got)
		}
		if err := <-ended; err != nil || a.Again() != (again != "") {
			t.Errorf("%s: ended with %v, again %v", name, err, a.Again())
		}
	}
	_, client := liveOn(t, ruled(t, "server"), Options{})
	if got := fmt.Sprint(client("ann", "admin").result("server_restart", `{"confirm":"gatehouse"}`)); !strings.Contains(
		got,
		"unsupported",
	) {
		t.Errorf("a host that no program restarts: %s", got)
	}
}
