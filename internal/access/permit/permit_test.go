package permit

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"gatehouse/tool"
)

func policy(t *testing.T, o Options) *Policy {
	t.Helper()
	p, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func decide(p *Policy, c tool.Caller, op Op, args string) Verdict {
	return p.Gate(p.Cut(c), op).Decide([]byte(args), nil)
}

var (
	read  = Op{Context: "default", Method: "tools/call", Module: "file", Name: "file_read", Effects: tool.Reads}
	write = Op{
		Context: "default",
		Method:  "tools/call",
		Module:  "file",
		Name:    "file_write",
		Effects: tool.Writes | tool.Destroys,
	}
	unclear = Op{Context: "default", Method: "tools/call", Module: "x", Name: "x"}
)

func TestTheZeroPolicyRefuses(t *testing.T) {
	var g *Gate
	if v := g.Decide(nil, nil); v.Kind != Refuse || g.Listed() {
		t.Fatal("a missing gate lets through")
	}
	p := policy(t, Options{})
	if v := decide(p, tool.Caller{}, read, "{}"); v.Kind != Refuse {
		t.Fatalf("got %v without any rule", v)
	}
}

func TestTheFirstRuleThatFitsDecides(t *testing.T) {
	p := policy(t, Options{Default: Allow, Rules: []Rule{
		{Name: "admins", Roles: []string{"admin"}, Then: Allow},
		{Name: "etc", Names: []string{"file_*"}, When: `args.path.startsWith("/etc/")`, Then: Refuse},
		{Name: "big", Names: []string{"file_write"}, When: `args.size > 9007199254740992`, Then: AskOperator},
		{Name: "writes", Effects: tool.Writes, Then: AskClient},
		{Name: "ann", Principals: []string{"ann*"}, Names: []string{"x"}, Then: Allow},
	}})
	admin := tool.Caller{Principal: "root", Roles: []string{"admin", "other"}}
	for i, c := range []struct {
		who  tool.Caller
		op   Op
		args string
		want Kind
	}{
		{admin, write, `{"path":"/etc/x"}`, Allow},
		{tool.Caller{}, read, `{"path":"/etc/x"}`, Refuse},
		{tool.Caller{}, read, `{"path":"/home"}`, Allow},
		// cannot be evaluated: the restricting rule applies
		{tool.Caller{}, read, `{}`, Refuse},
		{tool.Caller{}, read, `{"path":7}`, Refuse}, // likewise
		// one more than the largest exact number
		{tool.Caller{}, write, `{"path":"/x","size":9007199254740993}`, AskOperator},
		{tool.Caller{}, write, `{"path":"/x","size":9007199254740992}`, AskClient}, // the largest exact number
		{tool.Caller{}, write, `{"path":"/x","size":1e400}`, Refuse},               // no number can represent it
		// declares no effects: counts as writing
		{tool.Caller{Principal: "anna"}, unclear, `{}`, AskClient},
		// rules apply to tools unless they name methods
		{tool.Caller{}, Op{Method: "resources/read", Name: "file:///x"}, `{}`, Allow},
	} {
		if v := decide(p, c.who, c.op, c.args); v.Kind != c.want {
			t.Errorf("%d: %s %s: got %v by %q, want %v", i, c.op.Name, c.args, v.Kind, v.Rule, c.want)
		}
	}
}

//redteam:attack One function says yes: arguments that lead around a rule
func TestListedUnlessRefusedWhateverTheArguments(t *testing.T) {
	p := policy(t, Options{Rules: []Rule{
		{Names: []string{"file_read"}, When: `args.path == "a"`, Then: Allow},
		{Names: []string{"file_write"}, When: `args.path == "a"`, Then: Refuse},
	}})
	if !p.Gate("", read).Listed() {
		t.Error("a tool that some arguments may use is hidden")
	}
	if p.Gate("", write).Listed() {
		t.Error("a tool that no arguments may use is shown")
	}
}

//redteam:attack One function says yes: scopes that ask for more than the user has
func TestScopesOnlyTakeAway(t *testing.T) {
	p := policy(t, Options{Default: Allow, Rules: []Rule{{Names: []string{"file_read"}, Then: Refuse}}})
	for _, c := range []struct {
		scopes []string
		op     Op
		want   Kind
	}{
		{nil, write, Allow},
		{[]string{"tools:file_*"}, write, Allow},
		{[]string{"tools:dir_*"}, write, Refuse},
		{[]string{"read"}, write, Refuse},
		{[]string{"read"}, Op{Method: "tools/call", Name: "dir_list", Effects: tool.Reads}, Allow},
		{[]string{"*"}, read, Refuse},
		{[]string{"resources:file:///*"}, read, Refuse},
		{[]string{"nonsense"}, write, Refuse},
	} {
		if v := decide(p, tool.Caller{Scopes: c.scopes}, c.op, "{}"); v.Kind != c.want {
			t.Errorf("%v on %s: got %v, want %v", c.scopes, c.op.Name, v.Kind, c.want)
		}
	}
}

func TestTenThousandPrincipalsMakeTwoCuts(t *testing.T) {
	p := policy(
		t,
		Options{Default: Allow, Rules: []Rule{{Roles: []string{"writer"}, Effects: tool.Writes, Then: Allow}}},
	)
	cuts := map[Cut]bool{}
	for i := range 10_000 {
		roles := []string{"staff", fmt.Sprint("team", i)}
		if i%2 == 0 {
			roles = append(roles, "writer")
		}
		cuts[p.Cut(tool.Caller{Principal: fmt.Sprint("user", i), Roles: roles})] = true
	}
	if len(cuts) != 2 {
		t.Fatalf("got %d cuts, want 2", len(cuts))
	}
}

func TestACutReadsBackAsItWasWritten(t *testing.T) {
	p := policy(t, Options{Default: Allow, Rules: []Rule{{Roles: []string{"a\nsadmin", `b\`}, Then: Allow}}})
	w := p.Cut(tool.Caller{Roles: []string{"a\nsadmin", `b\`}, Scopes: []string{"*"}}).parseCut()
	if len(w.roles) != 2 || w.roles[0] != "a\nsadmin" || w.roles[1] != `b\` || len(w.scopes) != 1 {
		t.Fatalf("got %+v", w)
	}
}

func TestEnteringAContext(t *testing.T) {
	p := policy(t, Options{Default: Allow, Access: []Access{
		{Context: "git", Roles: []string{"dev"}, Users: []string{"bo"}, KnownTo: []string{"staff"}},
		{Context: "open"},
	}})
	for _, c := range []struct {
		who     tool.Caller
		context string
		want    Entry
	}{
		{tool.Caller{Roles: []string{"dev"}}, "git", Welcome},
		{tool.Caller{Principal: "bo"}, "git", Welcome},
		{tool.Caller{Roles: []string{"staff"}}, "git", Forbidden},
		{tool.Caller{Principal: "eve"}, "git", Unknown},
		{tool.Caller{}, "open", Welcome},
		{tool.Caller{}, "other", Welcome},
	} {
		if got := p.Enter(p.Cut(c.who), c.context); got != c.want {
			t.Errorf("%+v into %s: got %v, want %v", c.who, c.context, got, c.want)
		}
	}
}

func TestMistakesAreNamed(t *testing.T) {
	for _, o := range []Options{
		{Rules: []Rule{{When: `args.path ==`}}},
		{Rules: []Rule{{When: `1 + 1`}}},
		{Rules: []Rule{{When: `unknown.field`}}},
		{Rules: []Rule{{Names: []string{"["}}}},
		{Access: []Access{{Users: []string{"["}}}},
	} {
		if _, err := New(o); err == nil {
			t.Errorf("%+v was taken", o)
		}
	}
	for _, s := range []string{"", "file_*", "tools:[", "tool:x"} {
		if CheckScope(s) == nil {
			t.Errorf("scope %q was taken", s)
		}
	}
}

func BenchmarkDecide(b *testing.B) {
	p, err := New(Options{Default: Allow, Rules: []Rule{{When: `args.path.startsWith("/etc/")`, Then: Refuse}}})
	if err != nil {
		b.Fatal(err)
	}
	g := p.Gate("", read)
	args := []byte(`{"path":"/home/a","limit":100}`)
	b.ReportAllocs()
	for b.Loop() {
		g.Decide(args, nil)
	}
}

// A context's own rules may be stricter than the host's, never less strict; if only one sort matches,
// it decides.
//
//redteam:attack One function says yes: a context allows itself what the host refuses
func TestOwnRulesNeverAllowWhatTheHostsRefuse(t *testing.T) {
	own := func(name string, then Kind, when string) Rule {
		return Rule{Names: []string{name}, Then: then, When: when, Own: true}
	}
	for i, c := range []struct {
		rules  []Rule
		other  Kind
		args   string
		want   Kind
		listed bool
	}{
		{[]Rule{own("file_write", Allow, ""), {Effects: tool.Destroys, Then: Refuse}}, Allow, `{}`, Refuse, false},
		{[]Rule{{Effects: tool.Destroys, Then: Refuse}, own("file_write", Allow, "")}, Allow, `{}`, Refuse, false},
		{[]Rule{{Then: Allow}, own("file_write", Refuse, "")}, Allow, `{}`, Refuse, false},
		{[]Rule{{Then: Allow}, own("file_write", AskOperator, "")}, Allow, `{}`, AskOperator, true},
		{[]Rule{{Then: AskClient}, own("file_write", Allow, "")}, Allow, `{}`, AskClient, true},
		{[]Rule{own("file_write", Allow, ""), own("file_*", Refuse, "")}, Allow, `{}`, Allow, true},
		{[]Rule{own("file_write", Allow, "")}, Refuse, `{}`, Allow, true},
		{[]Rule{own("file_read", Allow, "")}, Refuse, `{}`, Refuse, false},
		{[]Rule{own("file_write", Allow, `args.path == "a"`)}, Refuse, `{"path":"a"}`, Allow, true},
		{[]Rule{own("file_write", Allow, `args.path == "a"`)}, Refuse, `{"path":"b"}`, Refuse, true},
		{[]Rule{{Then: Refuse}, own("file_write", Allow, `args.path == "a"`)}, Allow, `{"path":"a"}`, Refuse, false},
		{[]Rule{{Then: Allow, When: `args.path == "a"`}, own("file_write", Refuse, "")}, Allow, `{"path":"a"}`,
			Refuse, false},
		{[]Rule{own("file_write", Refuse, `args.path == "a"`)}, Allow, `{"path":"a"}`, Refuse, true},
		{[]Rule{own("file_write", Refuse, `args.path == "a"`)}, Allow, `{"path":"b"}`, Allow, true},
		{[]Rule{{Then: Allow}, own("file_write", Refuse, `args.path == "a"`)}, Refuse, `{}`, Refuse, true},
	} {
		g := policy(t, Options{Default: c.other, Rules: c.rules}).Gate("", write)
		if v := g.Decide([]byte(c.args), nil); v.Kind != c.want || g.Listed() != c.listed {
			t.Errorf("%d: got %v, listed %t; want %v, %t", i, v.Kind, g.Listed(), c.want, c.listed)
		}
	}
}

// Reading a resource or getting a prompt cannot ask for approval, so a rule that asks hides them.
func TestAskingAboutWhatIsNoToolRefuses(t *testing.T) {
	p := policy(
		t,
		Options{
			Default: AskOperator,
			Rules:   []Rule{{Methods: []string{"*"}, Names: []string{"file*"}, Then: AskClient}},
		},
	)
	for _, op := range []Op{{Method: "resources/read", Name: "file:x"}, {Method: "prompts/get", Name: "other"}} {
		if g := p.Gate("", op); g.Listed() || g.Decide(nil, nil).Kind != Refuse {
			t.Errorf("%+v: listed %t, %v", op, g.Listed(), g.Decide(nil, nil))
		}
	}
	if g := p.Gate("", read); !g.Listed() || g.Decide(nil, nil).Kind != AskClient {
		t.Errorf("a tool: listed %t, %v", g.Listed(), g.Decide(nil, nil))
	}
}

// The module resources was called house. Rules that name it so still apply.
func TestARuleMayNameAModuleByItsFormerName(t *testing.T) {
	p := policy(t, Options{Default: Allow, Rules: []Rule{{Name: "old", Modules: []string{"house"}, Then: Refuse}}})
	op := Op{Context: "default", Method: "tools/call", Module: "resources", Name: "x", Effects: tool.Reads}
	if v := decide(p, tool.Caller{}, op, "{}"); v.Kind != Refuse {
		t.Errorf("module resources: got %v, want a refusal by the rule that names house", v)
	}
	if v := decide(p, tool.Caller{}, read, "{}"); v.Kind != Allow {
		t.Errorf("another module: got %v", v)
	}
}

// Stage is between ask and allow, and what cannot be staged asks.
func TestStage(t *testing.T) {
	staged := &tool.Tool{Def: tool.Def{Name: "file_write", Effects: tool.Writes, Staged: true}}
	other := &tool.Tool{Def: tool.Def{Name: "net_post", Effects: tool.Writes | tool.OpenWorld}}
	op := func(t *tool.Tool) Op {
		return Op{Context: "c", Method: "tools/call", Module: "m", Name: t.Name, Effects: t.Effects, Tool: t}
	}
	why := ""
	o := Options{
		Default: Allow, Staging: map[string]bool{"c": true}, CannotStage: func(bool) string { return why },
		Rules: []Rule{
			{Names: []string{"file_write"}, When: `args.path == "free"`, Then: Allow},
			{Names: []string{"file_write"}, When: `args.path == "no"`, Then: Refuse},
		},
	}
	p := policy(t, o)
	for _, c := range []struct {
		op   Op
		args string
		want Kind
	}{
		{op(staged), `{"path":"x"}`, Stage}, {op(staged), `{"path":"free"}`, Allow},
		{op(staged), `{"path":"no"}`, Refuse},
		{op(other), `{}`, AskClient},
		{Op{Context: "c", Method: "tools/call", Name: "r", Effects: tool.Reads}, `{}`, Stage},
		{Op{Context: "d", Method: "tools/call", Name: "file_write", Effects: tool.Writes, Tool: staged},
			`{"path":"x"}`, Allow},
	} {
		if v := decide(p, tool.Caller{}, c.op, c.args); v.Kind != c.want {
			t.Errorf("%s %s in %s: got %v, want %v", c.op.Name, c.args, c.op.Context, v.Kind, c.want)
		}
	}
	if g := p.Gate("", op(staged)); !g.Stages() || !g.Listed() {
		t.Error("a staged tool is not listed as one")
	}
	why = "no overlay here"
	if v := decide(policy(t, o), tool.Caller{}, op(staged), `{"path":"x"}`); v.Kind != AskClient || v.Reason != why {
		t.Errorf("without overlays: got %v, %q", v.Kind, v.Reason)
	}
	own := o
	own.Rules = []Rule{{Names: []string{"*"}, Then: Allow, Own: true}, {Names: []string{"*"}, Then: Stage}}
	why = ""
	if v := decide(policy(t, own), tool.Caller{}, op(staged), `{}`); v.Kind != Stage {
		t.Errorf("a context allows itself what the host stages: %v", v.Kind)
	}
}

// A machine that stages file tools alone says so of a tool that starts programs, and its calls ask.
func TestProgramsThatCannotBeStaged(t *testing.T) {
	programs := &tool.Tool{Def: tool.Def{Name: "shell_run", Effects: tool.Writes, Staged: true, Programs: true}}
	files := &tool.Tool{Def: tool.Def{Name: "file_write", Effects: tool.Writes, Staged: true}}
	p := policy(t, Options{
		Default: Allow, Staging: map[string]bool{"c": true},
		CannotStage: func(programs bool) string { return map[bool]string{true: "no view for programs"}[programs] },
	})
	for _, one := range []*tool.Tool{programs, files} {
		o := Op{Context: "c", Method: "tools/call", Name: one.Name, Effects: one.Effects, Tool: one}
		g := p.Gate(p.Cut(tool.Caller{}), o)
		v := g.Decide([]byte(`{}`), &tool.Caller{})
		if g.Unstaged() != one.Programs || g.Stages() == one.Programs ||
			(v.Kind == AskClient) != one.Programs || one.Programs != strings.Contains(v.Reason, "no view for programs") {
			t.Errorf("%s: %+v, unstaged %v", one.Name, v, g.Unstaged())
		}
	}
}

// linesOf names the programs of lines.
type linesOf struct{ all []Command }

func (l linesOf) Paths(*tool.Caller, Op, json.RawMessage) ([]string, error) { return nil, nil }
func (l linesOf) Commands(*tool.Caller, Op, json.RawMessage) ([]Command, error) {
	return l.all, nil
}

// A call that names a program which cannot work where calls are staged asks the user, or an operator if no person is
// beside the caller, and says why. A rule that allows it does not make it ask.
func TestCommandsThatCannotBeStaged(t *testing.T) {
	shell := &tool.Tool{Def: tool.Def{Name: "shell_run", Effects: tool.Writes, Staged: true, Programs: true}}
	p := policy(t, Options{
		Default: Allow, Staging: map[string]bool{"staged": true},
		Unattended: func(string) (known, all bool) { return true, false },
		Rules:      []Rule{{Contexts: []string{"free"}, Names: []string{"shell_run"}, Then: Allow}},
		Unstageable: func(c Command) string {
			return map[string]string{"sudo": "it gains nothing"}[c.Name]
		},
	})
	for _, c := range []struct {
		in, program string
		alone       bool
		want        Kind
	}{
		{"staged", "sudo", false, AskClient}, {"staged", "ls", false, Stage}, {"other", "sudo", true, AskOperator},
		{"other", "ls", true, Stage}, {"other", "sudo", false, Allow}, {"free", "sudo", true, Allow},
	} {
		p.opts.Host = linesOf{[]Command{{Name: "cat"}, {Name: c.program}}}
		op := Op{Context: c.in, Method: "tools/call", Name: "shell_run", Effects: tool.Writes, Tool: shell}
		v := p.Gate("", op).Decide([]byte(`{}`), &tool.Caller{Unattended: c.alone})
		if v.Kind != c.want || strings.Contains(v.Reason, "it gains nothing") != (v.Kind == AskClient || v.Kind == AskOperator) {
			t.Errorf("%s in %s, alone %v: %+v, want %v", c.program, c.in, c.alone, v, c.want)
		}
	}
}

// Without a person beside the caller, what no rule decides is staged.
func TestUnattended(t *testing.T) {
	staged := &tool.Tool{Def: tool.Def{Name: "file_write", Effects: tool.Writes, Staged: true}}
	other := &tool.Tool{Def: tool.Def{Name: "net_post", Effects: tool.Writes | tool.OpenWorld}}
	reads := &tool.Tool{Def: tool.Def{Name: "file_read", Effects: tool.Reads}}
	p := policy(t, Options{
		Default: Allow, Unattended: func(context string) (known, all bool) { return context != "d", context == "c" },
		Rules: []Rule{{Names: []string{"file_write"}, When: `args.path == "free"`, Then: Allow}},
	})
	for _, c := range []struct {
		in   string
		tool *tool.Tool
		who  tool.Caller
		args string
		want Kind
	}{
		{"c", staged, tool.Caller{}, `{"path":"x"}`, Stage},
		{"c", staged, tool.Caller{Can: tool.CanElicit}, `{"path":"x"}`, Allow},
		{"c", staged, tool.Caller{Can: tool.Attended}, `{"path":"x"}`, Allow},
		{"c", staged, tool.Caller{Person: true}, `{"path":"x"}`, Allow},
		{"c", staged, tool.Caller{}, `{"path":"free"}`, Allow},
		{"d", staged, tool.Caller{}, `{"path":"x"}`, Allow},
		{"c", other, tool.Caller{}, `{}`, AskOperator},
		{"k", staged, tool.Caller{}, `{"path":"x"}`, Allow},
		{"k", staged, tool.Caller{Unattended: true}, `{"path":"x"}`, Stage},
		{"k", staged, tool.Caller{Unattended: true, Can: tool.CanElicit}, `{"path":"x"}`, Stage},
		{"k", other, tool.Caller{Unattended: true, Can: tool.CanElicit}, `{}`, AskOperator},
		{"k", reads, tool.Caller{Unattended: true}, `{}`, Allow},
		{"d", staged, tool.Caller{Unattended: true}, `{"path":"x"}`, Allow},
		{"c", reads, tool.Caller{}, `{}`, Allow},
	} {
		op := Op{
			Context: c.in, Method: "tools/call", Module: "m", Name: c.tool.Name, Effects: c.tool.Effects, Tool: c.tool,
		}
		if v := p.Gate("", op).Decide([]byte(c.args), &c.who); v.Kind != c.want {
			t.Errorf("%s %s of %+v in %s: got %v, want %v", c.tool.Name, c.args, c.who, c.in, v.Kind, c.want)
		}
	}
}
