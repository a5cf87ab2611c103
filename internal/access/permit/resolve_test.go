package permit

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"gatehouse/tool"
)

// host returns fixed results and counts how often it is called.
type host struct {
	paths    []string
	commands []Command
	err      error
	asked    string
}

func (h *host) Paths(*tool.Caller, Op, json.RawMessage) ([]string, error) {
	h.asked += "p"
	return h.paths, h.err
}

func (h *host) Commands(*tool.Caller, Op, json.RawMessage) ([]Command, error) {
	h.asked += "c"
	return h.commands, h.err
}

// The host resolves only the members that an applicable rule reads.
func TestOnlyWhatARuleReadsIsResolved(t *testing.T) {
	for when, want := range map[string]string{
		`args.path == "x"`:                                      "",
		`op.name == "x" || "paths" in args`:                     "",
		`op["name"] == "x"`:                                     "",
		`op.paths.exists(p, p == "x")`:                          "p",
		`op["paths"].size() > 9`:                                "p",
		`op.commands.exists(c, c.name == "rm")`:                 "c",
		`op.commands.size() + op.paths.size() > 9`:              "pc",
		`op["pa" + "ths"].size() > 9`:                           "pc",
		`op.map(k, k).exists(k, k == "none")`:                   "pc",
		`[1].exists(x, op.paths.exists(p, p == "x" && x == 1))`: "p",
	} {
		h := &host{}
		p := policy(
			t,
			Options{
				Default: Allow,
				Host:    h,
				Rules:   []Rule{{When: when, Then: Refuse}, {When: `args.path == "none"`, Then: Refuse}},
			},
		)
		p.Gate("", read).Decide([]byte(`{"path":"/x"}`), &tool.Caller{})
		if h.asked != want {
			t.Errorf("%s: asked %q, want %q", when, h.asked, want)
		}
	}
	h := &host{}
	p := policy(
		t,
		Options{
			Default: Allow,
			Host:    h,
			Rules:   []Rule{{When: `op.paths == []`, Names: []string{"other"}, Then: Refuse}},
		},
	)
	if p.Gate("", read).Decide([]byte(`{}`), &tool.Caller{}); h.asked != "" {
		t.Error("a rule about another tool has this call resolved")
	}
}

// A rule over members that cannot be resolved restricts, and does not allow.
//
//redteam:attack One function says yes: what a call names cannot be resolved
func TestRulesOverWhatCannotBeResolvedFailClosed(t *testing.T) {
	fails := &host{err: errors.New("no")}
	for _, when := range []string{`op.paths.exists(p, p == "x")`, `op.paths.all(p, p != "x")`,
		`op.commands.exists(c, c.name == "x")`, `!op.commands.exists(c, c.name == "x")`} {
		for name, one := range map[string]struct {
			host   Host
			caller *tool.Caller
		}{"an error": {fails, &tool.Caller{}}, "no host": {nil, &tool.Caller{}}, "no caller": {&host{}, nil}} {
			for _, c := range []struct{ then, other, want Kind }{{Refuse, Allow, Refuse},
				{AskOperator, Allow, AskOperator}, {Allow, Refuse, Refuse}} {
				p := policy(t, Options{Default: c.other, Host: one.host, Rules: []Rule{{When: when, Then: c.then}}})
				if v := p.Gate("", read).Decide([]byte(`{}`), one.caller); v.Kind != c.want {
					t.Errorf("%s, %s, then %v: got %v, want %v", when, name, c.then, v.Kind, c.want)
				}
			}
		}
	}
}

// Arguments that an expansion produces cannot be read; the program still can.
func TestOpenArgumentsCannotBeRead(t *testing.T) {
	h := &host{commands: []Command{{Program: "ls", Name: "ls", Open: true}}}
	for when, want := range map[string]Kind{
		`op.commands.exists(c, c.name == "rm" && c.args.exists(a, a == "x"))`: Allow,
		`op.commands.exists(c, c.name == "ls" && c.args.exists(a, a == "x"))`: Refuse,
		`op.commands.exists(c, c.program == "ls")`:                            Refuse,
	} {
		p := policy(t, Options{Default: Allow, Host: h, Rules: []Rule{{When: when, Then: Refuse}}})
		if v := p.Gate("", read).Decide([]byte(`{}`), &tool.Caller{}); v.Kind != want {
			t.Errorf("%s: got %v, want %v", when, v.Kind, want)
		}
	}
}

func TestWarningsOfTextThatIsCompared(t *testing.T) {
	type in struct {
		Path    string   `json:"path" names:"path"`
		Command string   `json:"command" names:"line"`
		Args    []string `json:"args" names:"args"`
		Limit   int      `json:"limit"`
	}
	run := func(context.Context, *tool.Call, in) (tool.Result, error) { return tool.Result{}, nil }
	file, relayed := tool.New(tool.Def{Name: "file_read"}, run), tool.Tool{Def: tool.Def{Name: "far"}}
	tools := func(yield func(string, *tool.Tool) bool) {
		_ = yield("file", &file) && yield("gateway", &relayed)
	}
	for when, want := range map[string]string{
		``:                                    "",
		`args.limit > 5`:                      "",
		`has(args.path)`:                      "",
		`op.paths.exists(p, p == "x")`:        "",
		`args.path.startsWith("/x")`:          "args.path op.paths",
		`args["path"] == "x"`:                 "args.path op.paths",
		`args.command.matches("^rm")`:         "args.command op.commands",
		`args.args.exists(a, a == "x")`:       "args.args op.commands",
		`args.limit > 5 && args.path == "x"`:  "args.path op.paths",
		`"private" in args.path.split("/")[0`: "", // another check reports the mistake
	} {
		got := strings.Join(Warnings([]Rule{{Name: "r", When: when}}, tools), "\n")
		for word := range strings.FieldsSeq(want) {
			if !strings.Contains(got, word) {
				t.Errorf("%s: got %q, want %q in it", when, got, word)
			}
		}
		if want == "" && got != "" {
			t.Errorf("%s: got %q", when, got)
		}
	}
	for _, r := range []Rule{{Modules: []string{"gateway"}}, {Names: []string{"f*d"}}} {
		r.When = `args.path == "x"`
		if got, want := len(Warnings([]Rule{r}, tools)), len(r.Names); got != want {
			t.Errorf("%+v: %d warnings, want %d", r, got, want)
		}
	}
}
