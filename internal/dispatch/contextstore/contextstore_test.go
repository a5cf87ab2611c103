package contextstore

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"gatehouse/internal/access/permit"
	"gatehouse/internal/dispatch/views"
	"gatehouse/tool"
)

func open(t *testing.T, path string, o Options) *Store {
	t.Helper()
	b, err := Open(path, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { b.Close() })
	return b
}

func names(s *Snapshot) (all []string) {
	for _, r := range s.Records {
		all = append(all, r.Name)
	}
	return all
}

func TestARecordIsKeptAcrossARestart(t *testing.T) {
	path := filepath.Join(t.TempDir(), "data", "contexts.db")
	b := open(t, path, Options{})
	if _, err := os.Stat(path); err == nil {
		t.Error("an empty store created its file")
	}
	made, err := b.Create(
		Record{Name: "dev", Definition: Definition{Env: map[string]string{"A": "1"}, Roles: []string{"dev"}}},
		"ann",
	)
	if err != nil {
		t.Fatal(err)
	}
	if made.Revision == 0 || made.By != "ann" || made.Created.IsZero() {
		t.Errorf("got %+v", made)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the file is %v, %v; want mode 0600", info, err)
	}
	b.Close()
	again := open(t, path, Options{})
	got := again.Current().Find("dev")
	if got == nil || got.Env["A"] != "1" || got.Revision != made.Revision || !got.Created.Equal(made.Created) {
		t.Errorf("got %+v, want %+v", got, made)
	}
}

func TestWhatTheBookRefuses(t *testing.T) {
	b := open(
		t,
		"",
		Options{
			Fixed:   func(n string) bool { return n == "default" },
			Modules: func() []string { return []string{"file"} },
		},
	)
	create := func(name string) error { _, err := b.Create(Record{Name: name}, ""); return err }
	if err := create("dev"); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]error{"dev": ErrExists, "default": ErrFixed, "admin": ErrFixed} {
		if err := create(name); !errors.Is(err, want) {
			t.Errorf("create %s: got %v, want %v", name, err, want)
		}
	}
	for _, name := range []string{"", "Dev", "-dev", "a/b", "a.b", "ä", strings.Repeat("a", 65), "a b", "..", "a\n"} {
		if _, ok := errors.AsType[*Invalid](create(name)); !ok {
			t.Errorf("%q was accepted as a name", name)
		}
	}
	for name, want := range map[string]error{"dev2": ErrNotFound, "default": ErrFixed, "admin": ErrFixed} {
		if _, err := b.Update(name, "", func(*Record) error { return nil }); !errors.Is(err, want) {
			t.Errorf("update %s: got %v, want %v", name, err, want)
		}
		if err := b.Delete(name); !errors.Is(err, want) {
			t.Errorf("delete %s: got %v, want %v", name, err, want)
		}
	}
	if _, err := b.Create(Record{Name: "x", Definition: Definition{Modules: []string{"attic"}}}, ""); err == nil ||
		!strings.Contains(err.Error(), `no module "attic"; expected some of file`) {
		t.Errorf("got %v", err)
	}
	if _, err := b.Update("dev", "",
		func(r *Record) error { r.Name = "other"; r.Style = "slash"; return nil }); err == nil {
		t.Error("a bad style was kept")
	}
	if got := names(b.Current()); !slices.Equal(got, []string{"dev"}) || b.Current().Find("dev").Style != "" {
		t.Errorf("got %v", got)
	}
}

func TestChangesAreToldOnceEach(t *testing.T) {
	b := open(t, "", Options{})
	told := 0
	b.OnChange(func() { told++ })
	turn := b.Current().Turn
	for i, do := range []func() error{
		func() error { _, err := b.Create(Record{Name: "dev"}, ""); return err },
		func() error {
			_, err := b.Update("dev", "bob", func(r *Record) error { r.Description = "x"; r.Name = "y"; return nil })
			return err
		},
		func() error { return b.Delete("dev") },
	} {
		if err := do(); err != nil {
			t.Fatal(err)
		}
		if now := b.Current().Turn; told != i+1 || now <= turn {
			t.Errorf("step %d: notified %d times, turn %d after %d", i, told, now, turn)
		}
		turn = b.Current().Turn
	}
	if len(b.Current().Records) > 0 {
		t.Errorf("left: %v", names(b.Current()))
	}
	if err := b.Delete("dev"); !errors.Is(err, ErrNotFound) || told != 3 || b.Current().Turn != turn {
		t.Errorf("got %v, notified %d times", err, told)
	}
}

// Changes of another process are followed within the second that the documentation promises.
func TestAnotherProcessIsFollowed(t *testing.T) {
	path := filepath.Join(t.TempDir(), "contexts.db")
	synctest.Test(t, func(t *testing.T) {
		host, cli := open(t, path, Options{}), open(t, path, Options{})
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- host.Run(ctx) }()
		told := make(chan struct{}, 9)
		host.OnChange(func() { told <- struct{}{} })
		if _, err := cli.Create(Record{Name: "dev"}, "ann"); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		synctest.Wait()
		if len(told) != 1 || host.Current().Find("dev") == nil {
			t.Errorf("notified %d times of %v", len(told), names(host.Current()))
		}
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		host.Close()
		cli.Close()
	})
}

func TestConcurrentChangesAreAllThere(t *testing.T) {
	path := filepath.Join(t.TempDir(), "contexts.db")
	a, b := open(t, path, Options{}), open(t, path, Options{})
	done := make(chan error, 20)
	for i := range 20 {
		book := []*Store{a, b}[i%2]
		go func() {
			_, err := book.Create(Record{Name: "c" + string(rune('a'+i))}, "")
			done <- err
		}()
	}
	for range 20 {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
	c := open(t, path, Options{})
	if n := len(c.Current().Records); n != 20 || c.Current().Turn != 20 {
		t.Errorf("%d records at turn %d, want 20", n, c.Current().Turn)
	}
}

func TestADamagedBookIsNotOpened(t *testing.T) {
	path := filepath.Join(t.TempDir(), "contexts.db")
	if err := os.WriteFile(path, []byte(strings.Repeat("not a database ", 100)), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(path, Options{}); err == nil {
		t.Error("it was opened")
	}
}

func whole() Record {
	return Record{Name: "dev", Definition: Definition{
		Tools: []string{"file_*", "!file_delete"}, Rename: map[string]string{"file_read": "cat"}, Style: "dot",
		Roles: []string{"dev"}, Users: []string{"ann*"}, KnownTo: []string{"staff"},
		Rules: []Rule{
			{
				Names:    []string{"file_*"},
				Effects:  []string{"destroys"},
				When:     `args.path == "x"`,
				Then:     "ask-operator",
				Remember: "10m",
			},
		},
		Env:   map[string]string{"TEAM": "a", "API": "key ${secret:api-key}"},
		Roots: []Root{{Path: "~/src"}},
		OwnTools: []Tool{
			{
				Name:        "log",
				Description: "Shows the log.",
				Input: json.RawMessage(
					`{"type":"object","properties":{"count":{"type":"integer"},"paths":{"type":"array"}}}`,
				),
				Effects: []string{
					"reads",
				},
				Timeout: "5s",
				Command: &Command{
					Path:  "git",
					Args:  []string{"log", "-n{{count}}", "--", "{{paths?}}"},
					Stdin: "{{count?}}",
				},
			},
			{
				Name:        "issue",
				Description: "Reads an issue.",
				Input:       json.RawMessage(`{"type":"object","properties":{"id":{"type":"string"}}}`),
				HTTP: &HTTP{
					Method:  "GET",
					URL:     "https://example.com/issues/{{id}}?full={{id}}",
					Headers: map[string]string{"Authorization": "Bearer {{env.API}}"},
				},
			},
		},
		OwnPrompts: []Prompt{
			{
				Name:      "greet",
				Arguments: []PromptArg{{Name: "who", Required: true}},
				Template:  `Say hello to {{who}}, not \{{who}}.`,
			},
		},
		OwnResources: []Resource{
			{URI: "team://motd", Name: "motd", MIME: "text/markdown", Text: new("")},
			{
				URI:       "team://notes/{topic}",
				Name:      "notes",
				File:      "notes/{{topic}}.md",
				Variables: []Variable{{Name: "topic", Values: []string{"build"}}},
			},
			{URI: "team://items/{id}", Name: "items", HTTP: &HTTP{URL: "https://example.com/{{id}}"}},
		},
	}}
}

func TestARecordThatIsRight(t *testing.T) {
	r := whole()
	if err := r.Check(); err != nil {
		t.Error(err)
	}
	raw, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	var again Record
	if err := Decode(raw, &again); err != nil {
		t.Error(err)
	}
	if err := again.Check(); err != nil || again.OwnTools[0].Command.Args[3] != "{{paths?}}" {
		t.Errorf("after JSON: %v, %+v", err, again)
	}
	if got := r.Spec(nil); !slices.Equal(got.Tools, []string{"file_*", "!file_delete", "log", "issue"}) ||
		!slices.Equal(got.Modules, []string{"own-dev"}) ||
		got.Prompts != nil {
		t.Errorf("got %+v", got)
	}
}

func TestWhatIsWrongIsNamed(t *testing.T) {
	for want, spoil := range map[string]func(*Record){
		`tools: "[" is not a pattern`:                        func(r *Record) { r.Tools = []string{"["} },
		`users: "[" is not a pattern`:                        func(r *Record) { r.Users = []string{"["} },
		`rename: "a b": expected`:                            func(r *Record) { r.Rename["x"] = "a b" },
		`would both be cat`:                                  func(r *Record) { r.Rename["x"] = "cat" },
		`known_to: has an effect only if roles or users`:     func(r *Record) { r.Roles, r.Users = nil, nil },
		`team: name the roles or users`:                      func(r *Record) { r.Team, r.Roles, r.Users, r.KnownTo = "research", nil, nil, nil },
		`team: "Lab 1": expected`:                            func(r *Record) { r.Team = "Lab 1" },
		`rules: rule 1: then: "maybe": expected allow`:       func(r *Record) { r.Rules[0].Then = "maybe" },
		`rules: dev: rule 1: when:`:                          func(r *Record) { r.Rules[0].When = "args.(" },
		`effect "sings"`:                                     func(r *Record) { r.Rules[0].Effects = []string{"sings"} },
		`remember: "1s1": expected a duration`:               func(r *Record) { r.Rules[0].Remember = "1s1" },
		`env: "A=B" is not the name of a variable`:           func(r *Record) { r.Env["A=B"] = "" },
		`names that begin with GATEHOUSE_ are reserved`:      func(r *Record) { r.Env["gatehouse_x"] = "" },
		`env: TEAM: ${secret: is not closed`:                 func(r *Record) { r.Env["TEAM"] = "${secret:x" },
		`env: TEAM: is not UTF-8 text`:                       func(r *Record) { r.Env["TEAM"] = "a\x00" },
		`roots: "src" is not absolute`:                       func(r *Record) { r.Roots[0].Path = "src" },
		`own_tools: "a-b": expected a name`:                  func(r *Record) { r.OwnTools[0].Name = "a-b" },
		`own_tools: two are called "issue"`:                  func(r *Record) { r.OwnTools[0].Name = "issue" },
		`log: description is empty`:                          func(r *Record) { r.OwnTools[0].Description = "" },
		`log: timeout: "1h": expected`:                       func(r *Record) { r.OwnTools[0].Timeout = "1h" },
		`log: input: expected a schema with "type":"object"`: func(r *Record) { r.OwnTools[0].Input = json.RawMessage(`{"type":"string"}`) },
		`log: expected either command or http`:               func(r *Record) { r.OwnTools[0].HTTP = r.OwnTools[1].HTTP },
		`command: path: expected the program itself`:         func(r *Record) { r.OwnTools[0].Command.Path = "{{count}}" },
		`args[0]: {{nope}}: there is no such argument`:       func(r *Record) { r.OwnTools[0].Command.Args[0] = "{{nope}}" },
		`args[0]: {{env.API}}: variables can only`:           func(r *Record) { r.OwnTools[0].Command.Args[0] = "{{env.API}}" },
		`args[0]: {{}} is not a placeholder`:                 func(r *Record) { r.OwnTools[0].Command.Args[0] = "{{}}" },
		`a {{ has no }}`:                                     func(r *Record) { r.OwnTools[0].Command.Stdin = "{{count" },
		`url: expected a fixed host`:                         func(r *Record) { r.OwnTools[1].HTTP.URL = "https://{{id}}.example.com/" },
		`url: expected an address that begins`:               func(r *Record) { r.OwnTools[1].HTTP.URL = "file:///etc/passwd" },
		`headers: "Host" cannot be set`:                      func(r *Record) { r.OwnTools[1].HTTP.Headers["Host"] = "x" },
		`{{env.NO}}: the context has no variable NO`:         func(r *Record) { r.OwnTools[1].HTTP.Headers["X"] = "{{env.NO}}" },
		`body: GET has none`:                                 func(r *Record) { r.OwnTools[1].HTTP.Body = json.RawMessage(`{}`) },
		`method "FETCH": expected`:                           func(r *Record) { r.OwnTools[1].HTTP.Method = "FETCH" },
		`greet: expected either template or messages`:        func(r *Record) { r.OwnPrompts[0].Template = "" },
		`template: {{whom}}: there is no such argument`:      func(r *Record) { r.OwnPrompts[0].Template = "{{whom}}" },
		`messages[0]: role "system": expected user`:          func(r *Record) { r.OwnPrompts[0].Template = ""; r.OwnPrompts[0].Messages = []Message{{Role: "system"}} },
		`limits: calls is -1; expected a number from 0`:      func(r *Record) { r.Limits.Calls = -1 },
		`limits: rate is 1e+09; expected`:                    func(r *Record) { r.Limits.Rate = 1e9 },
		`limits: burst has an effect only with a rate`:       func(r *Record) { r.Limits.Burst = 5 },

		`own_resources: motd: expected one of text, file, command and http; there are 2`: func(r *Record) { r.OwnResources[0].File = "a" },
		`expected one of text, file, command and http; there are 0`:                      func(r *Record) { r.OwnResources[0].Text = nil },
		`own_resources: "a b": expected a name`:                                          func(r *Record) { r.OwnResources[0].Name = "a b" },
		`own_resources: two are called "notes"`:                                          func(r *Record) { r.OwnResources[0].Name = "notes" },
		`two resources have the URI "team://motd"`:                                       func(r *Record) { r.OwnResources[1].URI = "team://motd" },
		`uri "motd": expected a scheme`:                                                  func(r *Record) { r.OwnResources[0].URI = "motd" },
		`uri "{+x}": expected a scheme`:                                                  func(r *Record) { r.OwnResources[0].URI = "{+x}" },
		`uri "File:///x": the host's own resources have the scheme file`:                 func(r *Record) { r.OwnResources[0].URI = "File:///x" },
		`uri "team://{": `:                                                func(r *Record) { r.OwnResources[0].URI = "team://{" },
		`mime_type "text": expected a type`:                               func(r *Record) { r.OwnResources[0].MIME = "text" },
		`motd: timeout: "1h": expected`:                                   func(r *Record) { r.OwnResources[0].Timeout = "1h" },
		`motd: max_output is 16777217`:                                    func(r *Record) { r.OwnResources[0].MaxOutput = 16<<20 + 1 },
		`motd: text: {{who}}: there is no such argument`:                  func(r *Record) { r.OwnResources[0].Text = new("{{who}}") },
		`variables: the uri has no variable "who"; expected one of topic`: func(r *Record) { r.OwnResources[1].Variables[0].Name = "who" },
		`file "../{{topic}}": expected a path without ..`:                 func(r *Record) { r.OwnResources[1].File = "../{{topic}}" },
		`file "{{topic}}": a path cannot begin with a variable`:           func(r *Record) { r.OwnResources[1].File = "{{topic}}" },
		`http: method "POST": a resource is read with GET`:                func(r *Record) { r.OwnResources[2].HTTP.Method = "POST" },
		`items: http: body: GET has none`:                                 func(r *Record) { r.OwnResources[2].HTTP.Body = json.RawMessage(`{}`) },
		`items: http: url: expected a fixed host`:                         func(r *Record) { r.OwnResources[2].HTTP.URL = "https://{{id}}.example/" },
		`motd: command: path: expected the program itself`: func(r *Record) {
			r.OwnResources[0].Text, r.OwnResources[0].Command = nil, &Command{}
		},
		`record: has `: func(r *Record) {
			r.Describe = map[string]string{}
			for i := range 90 {
				r.Describe[strings.Repeat("x", i+1)] = strings.Repeat("y", 4000)
			}
		},
	} {
		r := whole()
		spoil(&r)
		err := r.Check()
		if _, ok := errors.AsType[*Invalid](err); !ok || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
	if err := Decode([]byte(`{"name":"x","tool":[]}`), &Record{}); err == nil ||
		!strings.Contains(err.Error(), `unknown field "tool"`) {
		t.Errorf("got %v", err)
	}
	if err := Decode([]byte(`{"name":"x"} {}`), &Record{}); err == nil {
		t.Error("more than a record was read")
	}
}

func TestTheBookComesOnTopOfWhatIsFixed(t *testing.T) {
	f := Fixed{
		Specs:   []views.Spec{{Name: "default"}, {Name: "ops"}, {Name: "admin", Modules: []string{"file"}}},
		Modules: []string{"file"}, Admin: []string{"context"},
		Policy: permit.Options{Default: permit.Allow,
			Rules:  []permit.Rule{{Name: "no deleting", Names: []string{"file_delete"}, Then: permit.Refuse}},
			Access: []permit.Access{{Context: "admin", Users: []string{"*"}}}},
	}
	bad := whole()
	bad.Name, bad.Style = "bad", "slash"
	free := Record{Name: "free", Definition: Definition{Rules: []Rule{{Names: []string{"*"}, Then: "allow"}}}}
	rules, err := f.With([]Record{{Name: "ops"}, {Name: "admin"}, bad, whole(), free})
	if err == nil {
		t.Fatal("nothing was left out")
	}
	for _, name := range []string{"ops", "admin", "bad"} {
		if !strings.Contains(err.Error(), "context "+name+" is left out") {
			t.Errorf("%s is missing from %v", name, err)
		}
	}
	var got []string
	for _, s := range rules.Specs {
		got = append(got, s.Name)
	}
	if !slices.Equal(got, []string{"default", "ops", "admin", "dev", "free"}) || rules.Default != "default" {
		t.Errorf("contexts are %v, default %s", got, rules.Default)
	}
	if s := rules.Spec("admin"); !slices.Equal(s.Modules, []string{"context"}) {
		t.Errorf("the administration holds %v", s.Modules)
	}
	for _, c := range []struct {
		who     tool.Caller
		context string
		want    permit.Entry
	}{
		{tool.Caller{Principal: "ann"}, "admin", permit.Unknown},
		{tool.Caller{Principal: "x", Roles: []string{"admin"}}, "admin", permit.Welcome},
		{tool.Caller{Principal: "x", Roles: []string{"admin"}}, "dev", permit.Unknown},
		{tool.Caller{Principal: "anna"}, "dev", permit.Welcome},
		{tool.Caller{Principal: "x", Roles: []string{"staff"}}, "dev", permit.Forbidden},
		{tool.Caller{Principal: "x"}, "free", permit.Welcome},
	} {
		if got := rules.Policy.Enter(rules.Policy.Cut(c.who), c.context); got != c.want {
			t.Errorf("%+v in %s: got %v, want %v", c.who, c.context, got, c.want)
		}
	}
	op := permit.Op{Context: "free", Method: "tools/call", Name: "file_delete", Effects: tool.Destroys}
	if rules.Policy.Gate("", op).Listed() {
		t.Error("a stored context allows what the configuration refuses")
	}
	if again, _ := f.With(nil); len(again.Specs) != 3 {
		t.Errorf("added a second time there are %d contexts, want 3", len(again.Specs))
	}
}

// Labels need a cluster: without one a context with labels is neither stored nor, if it was, in force.
func TestLabelsNeedACluster(t *testing.T) {
	path := filepath.Join(t.TempDir(), "contexts.db")
	labelled := func(l string) Record {
		return Record{Name: "far", Definition: Definition{Labels: []string{l}}}
	}
	alone := open(t, path, Options{})
	if _, err := alone.Create(labelled("zone=a"), "ann"); err == nil || !strings.Contains(err.Error(), "no node of a cluster") {
		t.Errorf("without a cluster: %v", err)
	}
	node := open(t, path, Options{Cluster: true})
	if _, err := node.Create(labelled("zone"), "ann"); err == nil || !strings.Contains(err.Error(), "labels: label \"zone\"") {
		t.Errorf("a text that is no label: %v", err)
	}
	if _, err := node.Create(labelled("zone=a"), "ann"); err != nil {
		t.Fatal(err)
	}
	records := node.Current().Records
	for _, inCluster := range []bool{true, false} {
		f := Fixed{Specs: []views.Spec{{Name: "default"}}, Cluster: inCluster}
		rules, err := f.With(records)
		spec := rules.Spec("far")
		if inCluster != (spec != nil && slices.Equal(spec.Labels, []string{"zone=a"})) || inCluster != (err == nil) {
			t.Errorf("in a cluster %v: %+v, %v", inCluster, spec, err)
		}
	}
}
