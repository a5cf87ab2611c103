package config

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"log/slog"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/goccy/go-yaml"
	"github.com/google/jsonschema-go/jsonschema"

	"gatehouse/internal/access/permit"
	"gatehouse/internal/access/secret"
	"gatehouse/internal/modules/file"
	"gatehouse/internal/modules/process"
	"gatehouse/internal/modules/shell"
)

var update = flag.Bool("update", false, "write docs/settings.md and docs/gatehouse.schema.json")

// read loads a file with this text in an environment of these variables.
func read(t *testing.T, text string, pairs ...string) (*Loaded, error) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "g.yaml")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	l, err := Load(environment(t, pairs...), file)
	if err == nil {
		err = l.Validate()
	}
	if err != nil {
		err = errors.New(strings.ReplaceAll(err.Error(), file, "g.yaml"))
	}
	return l, err
}

func full(t testing.TB) string {
	t.Helper()
	b, err := os.ReadFile("testdata/full.yaml")
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func TestEverythingAFileCanSay(t *testing.T) {
	l, err := read(t, full(t))
	if err != nil {
		t.Fatal(err)
	}
	rate := 12.5
	for what, pair := range map[string][2]any{
		"doors": {l.Listen, Listeners{Stdio: true, TCP: "127.0.0.1:9100", Unix: "/run/gatehouse/sock", HTTP: HTTP{
			Open: true, Host: "0.0.0.0", Port: 8443, Hosts: []string{"tools.example.com"},
			Origins: []string{"https://app.example.com", "*"},
			TLS: TLS{On: true, Cert: "/etc/gatehouse/server.crt", Key: "/etc/gatehouse/server.key",
				ClientCA: "/etc/gatehouse/clients.crt"},
		}}},
		"grants": {l.Auth.OAuth.Grants, map[string][]string{"read": {"read"}, "write": {"*"}}},
		"limits": {[]any{l.Limits.Message, l.Limits.Result, l.Limits.Deadline, l.Limits.JobKeep, *l.Limits.Rate,
			l.Limits.SpoolTotal},
			[]any{1 << 20, 65536, 2 * time.Minute, 48 * time.Hour, rate, int64(1 << 30)}},
		"context": {l.Contexts[0], Context{
			Name: "build", Description: "What the builders use.", Modules: []string{"file", "dir"},
			Tools:  []string{"file_*", "!file_delete"},
			Rename: map[string]string{"file_read": "read"}, Describe: map[string]string{"file_read": "Reads.\n"},
			Style: "dot",
			Env:   map[string]string{"CI": "1", "TOKEN": "Bearer ${secret:CI_TOKEN}"}, Roots: []string{"/srv/build"},
			ClientRoots: true,
			Roles:       []string{"builder"}, Users: []string{"ci-*"}, KnownTo: []string{"staff"},
			Limits: ContextLimits{Calls: 8, Rate: 2.5, Burst: 10},
		}},
		"empty list": {l.Contexts[1].Modules, []string{}},
		"files": {l.Modules.File,
			file.Settings{Deny: []string{"*.sqlite", "secrets/**"}, Allow: []string{".env.test", "write:.git/**"},
				MaxEdit: 8 << 20, MaxCopy: 1 << 30}},
		"shell": {l.Modules.Shell, shell.Settings{
			Timeout: time.Minute, Allow: []string{"ls", "git"}, Deny: []string{"rm*", "git push*"}, Shell: "bash",
			WorkingDir: "work", NoStderr: true, Output: 64 << 10, Processes: 100, Confine: true,
		}},
		"processes": {l.Modules.Process, process.Settings{
			PerOwner: 20, PerContext: 30, Total: 40, Processes: 50, Buffer: 64 << 10, MaxEnded: 5,
			Retention: 10 * time.Minute,
		}},
		"log":    {l.Log, Log{Level: slog.LevelDebug, Format: "json"}},
		"traces": {l.Observe.Traces.Headers, map[string]string{"Authorization": "Bearer x"}},
	} {
		if !reflect.DeepEqual(pair[0], pair[1]) {
			t.Errorf("%s: got %+v, want %+v", what, pair[0], pair[1])
		}
	}
	o, err := l.Permit()
	if err != nil {
		t.Fatal(err)
	}
	if len(o.Rules) != 2 || o.Rules[1].Then != permit.AskOperator || o.Rules[1].Remember != 10*time.Minute ||
		o.Rules[1].Effects == 0 ||
		len(o.Access) != 1 ||
		o.Access[0].Context != "build" ||
		o.Default != permit.Allow {
		t.Errorf("the policy is %+v", o)
	}
}

func TestAMissingFileIsTheDefault(t *testing.T) {
	l, err := Load(environment(t), "")
	if err != nil || l.File != "" || !reflect.DeepEqual(l.Log, Default().Log) {
		t.Errorf("got %+v, %v", l, err)
	}
	if _, err := Load(environment(t), "/no/such/file"); err == nil || !strings.Contains(err.Error(), "/no/such/file") {
		t.Errorf("a file that was asked for and is not there: %v", err)
	}
}

func TestTheFileIsFound(t *testing.T) {
	folder := t.TempDir()
	for name, text := range map[string]string{FileName: "log: {level: warn}", "other.yaml": "log: {level: error}"} {
		if err := os.WriteFile(filepath.Join(folder, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	l, err := Load(environment(t, "GATEHOUSE_CONFIG_DIR="+folder), "")
	if err != nil || l.Log.Level != slog.LevelWarn || l.File != filepath.Join(folder, FileName) {
		t.Errorf("in the config folder: %v from %q (%v)", l.Log.Level, l.File, err)
	}
	l, err = Load(environment(t, "GATEHOUSE_CONFIG="+filepath.Join(folder, "other.yaml")), "")
	if err != nil || l.Log.Level != slog.LevelError {
		t.Errorf("by its variable: %v (%v)", l.Log.Level, err)
	}
}

func TestMistakesInTheFileHaveAPlace(t *testing.T) {
	for text, want := range map[string]string{
		"root: 1\n": "g.yaml:1:1: root: there is no such setting; did you mean roots?",
		"listen:\n  http:\n    prot: 80\n": "g.yaml:3:5: listen.http.prot: there is no such setting; " +
			"did you mean port?",
		"zzz: 1\n": "g.yaml:1:1: zzz: there is no such setting; expected listen, " +
			"auth, roots,",
		"log:\n  level: loud\n":            `g.yaml:2:10: log.level: "loud" is not a level; expected debug, info, warn or error`,
		"log:\n  format: xml\n":            `g.yaml:2:11: log.format: "xml": expected text or json`,
		"listen: {http: {port: \"80\"}}\n": "g.yaml:1:23: listen.http.port: 80: expected a whole number",
		"listen: {http: {port: 99999}}\n":  `g.yaml:1:23: listen.http.port: "99999" is not a port; expected a number from 0 to 65535`,
		"listen: {tcp: nowhere}\n":         `g.yaml:1:15: listen.tcp: "nowhere" is not an address; expected host:port`,
		"listen: 3000\n":                   "g.yaml:1:9: listen: 3000: expected a mapping of names to values",
		"listen: {http: {origins: a.example}}": "g.yaml:1:26: listen.http.origins: a.example: expected a list, " +
			"such as [a, b]",
		"listen: {http: {origins: [a.example]}}": `g.yaml:1:17: listen.http.origins: origin "a.example": expected scheme://host`,
		"listen: {http: {tls: {cert: x}}}": "g.yaml:1:17: listen.http.tls: Both --cert and --key must be " +
			"provided together",
		"view:\n  modules: [1]\n": "g.yaml:2:13: view.modules[0]: 1 is not text in YAML; " +
			"put it in quotes",
		"view: {read_only: yes}\n": "g.yaml:1:19: view.read_only: yes: expected true or false",
		"view: {read_only: }\n":    "view.read_only: is empty; leave it out, or give it true or false",
		"limits:\n  deadline: 5\n": "g.yaml:2:13: limits.deadline: 5: expected a duration, " +
			"such as 30s, 10m or 24h",
		"limits:\n  deadline: soon\n": `g.yaml:2:13: limits.deadline: "soon" is not a duration`,
		"limits:\n  deadline: 1ms\n": "g.yaml:2:3: limits.deadline: tool deadline is 1ms: " +
			"expected at least 1s",
		"modules: {flie: {}}\n": "g.yaml:1:11: modules.flie: there is no such setting; " +
			"did you mean file?",
		"modules: {file: {denny: []}}\n": "g.yaml:1:18: modules.file.denny: there is no such setting; " +
			"did you mean deny?",
		"modules: {file: {deny: [\"!x\"]}}\n":  `modules.file.deny[0]: "!x" is not a pattern of names; expected one such as .env`,
		"modules: {file: {allow: [a/**/b]}}\n": `modules.file.allow[0]: "a/**/b" is not a pattern of names; expected one such as .env`,
		"modules: {file: {max_edit: -1}}\n": "modules.file.max_edit: largest file to edit is -1: " +
			"expected at least 0",
		"limits: {message: 24MB}\n":             `g.yaml:1:19: limits.message: "24MB": expected a number of bytes, such as 65536, 64KiB or 24MiB`,
		"limits: {message: 9999999TiB}\n":       "expected a number of bytes",
		"limits: {rate: -1}\n":                  "g.yaml:1:10: limits.rate: rate is -1: expected at least 0",
		"limits: {rate: .nan}\n":                "g.yaml:1:16: limits.rate: .nan: expected a number",
		"a: 1\na: 2\n":                          `g.yaml:2:1: mapping key "a" already defined at [1:1]`,
		"a: [1\n":                               "g.yaml:1:4: ",
		"a:\n\tb: 1\n":                          "g.yaml:2:1: found character '\t'",
		"- a\n":                                 "g.yaml:1:1: is a list; expected a mapping of names to values",
		"log: &x {level: info}\n":               "g.yaml:1:6: log: anchors and aliases are not supported",
		"view: {modules: [&a x, *a]}\n":         "anchors and aliases are not supported",
		"log: {level: !!str info}\n":            "tags are not supported",
		"log: {level: info}\n---\nlog: {}\n":    "g.yaml:3:",
		"1: 2\n":                                "1 is not the name of a setting",
		"contexts: {a: 1}\n":                    "g.yaml:1:11: contexts: holds names with values; expected a list",
		"contexts:\n  - modules: [file]\n":      "contexts[0]: name is missing; expected text",
		"contexts:\n  - name: A b\n":            `g.yaml:2:5: contexts[0].name: "A b": expected 1 to 64 of a-z`,
		"contexts:\n  - name: a\n  - name: a\n": `g.yaml:3:5: contexts[1].name: there are two contexts called "a"`,
		"contexts:\n  - name: a\n    tools:\n      - file_*\n      - '['\n":             `g.yaml:5:9: contexts[0].tools[1]: "[" is not a pattern`,
		"contexts:\n  - name: a\n    env:\n      A: ${secret:}\n":                       "g.yaml:4:7: contexts[0].env.A: name \"\": expected 1 to 64",
		"contexts:\n  - name: a\n    env: {GATEHOUSE_X: y}\n":                           "names that begin with GATEHOUSE_ are reserved for the host",
		"contexts:\n  - name: a\n    known_to: [x]\n":                                   "g.yaml:3:5: contexts[0].known_to: has an effect only if",
		"contexts:\n  - name: a\n    team: lab\n":                                       "g.yaml:3:5: contexts[0].team: name the roles or users",
		"contexts:\n  - name: a\n    limits: {calls: -1}\n":                             "g.yaml:3:14: contexts[0].limits.calls: calls at once is -1: expected at least 0",
		"contexts:\n  - name: a\n    limits: {burst: 5}\n":                              "g.yaml:3:14: contexts[0].limits.burst: has an effect only with a rate",
		"contexts:\n  - name: a\n    limits: {rats: 5}\n":                               "g.yaml:3:14: contexts[0].limits.rats: there is no such setting; did you mean rate?",
		"contexts: [{name: a}]\nview: {tools: [x]}\n":                                   "g.yaml:2:8: view.tools: applies only to a host without contexts",
		"rules:\n  - then: maybe\n":                                                     `g.yaml:2:11: rules[0].then: "maybe": expected allow, stage, ask, ask-operator or refuse`,
		"rules:\n  - names: [x]\n":                                                      "rules[0]: then is missing; expected allow, stage, ask, ask-operator or refuse",
		"rules:\n  - then: ask\n    effects: [explodes]\n":                              `g.yaml:3:15: rules[0].effects[0]: "explodes": expected reads,`,
		"rules:\n  - then: ask\n  - name: x\n    when: args.path ==\n    then: allow\n": "g.yaml:4:5: rules[1].when: ",
		"rules:\n  - names: ['[']\n    then: refuse\n":                                  "g.yaml:2:5: rules[0].names: \"[\" is not a pattern",
		"rules:\n  - then: allow\n    remember: 10m\n":                                  "g.yaml:3:5: rules[0].remember: a rule whose decision is allow has no approval to remember",
		strings.Repeat("[", 100000):                                                     "g.yaml:1:1: more than 64 brackets are open at once",
		"x: " + strings.Repeat("a", maxFile):                                            "g.yaml:1:1: has more than 1048576 bytes",
	} {
		_, err := read(t, text)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q:\n got %v\nwant %s", clip(text), err, want)
		}
	}
}

func TestAllMistakesAreToldInOrder(t *testing.T) {
	_, err := read(t, "log: {level: loud}\nrot: 1\nview:\n  tols: []\n")
	var lines []string
	for line := range strings.Lines(err.Error()) {
		lines = append(lines, line[:strings.Index(line, ": ")])
	}
	if got := strings.Join(lines, " "); got != "g.yaml:1:14 g.yaml:2:1 g.yaml:4:3" {
		t.Errorf("mistakes at %s", got)
	}
}

func TestTheEnvironmentGoesBeforeTheFile(t *testing.T) {
	l, err := read(
		t,
		"log: {level: debug}\nlisten: {http: {port: 80}, unix: /run/s}\nlimits: {deadline: 5s}\n",
		"GATEHOUSE_LOG=error",
		"GATEHOUSE_TRANSPORT=http",
		"GATEHOUSE_HTTP_HOST=::1",
		"GATEHOUSE_LIMITS_DEADLINE=1m",
		"GATEHOUSE_VIEW_MODULES=file, dir",
		"GATEHOUSE_LIMITS_RATE=5",
		"GATEHOUSE_OBSERVE_METRICS=true",
		"GATEHOUSE_LIMITS_MESSAGE=1MiB",
	)
	if err != nil {
		t.Fatal(err)
	}
	if l.Log.Level != slog.LevelError || l.Listen.HTTP.Host != "::1" || l.Listen.HTTP.Port != 80 ||
		l.Limits.Deadline != time.Minute ||
		!slices.Equal(l.View.Modules, []string{"file", "dir"}) ||
		*l.Limits.Rate != 5 ||
		!l.Observe.Metrics ||
		l.Limits.Message != 1<<20 {
		t.Errorf("got %+v", l.Config)
	}
	if d := l.Listen; d.Stdio || !d.HTTP.Open || d.Unix != "" {
		t.Errorf("GATEHOUSE_TRANSPORT=http opens %+v", d)
	}
	for path, want := range map[string]string{
		"log.level": "GATEHOUSE_LOG", "limits.deadline": "GATEHOUSE_LIMITS_DEADLINE",
		"listen.http.open": "GATEHOUSE_TRANSPORT", "sessions.max": "default",
	} {
		if got := l.Where(path).String(); got != want {
			t.Errorf("%s comes from %s, want %s", path, got, want)
		}
	}
	if _, err := read(t, "", "GATEHOUSE_LIMITS_DEADLINE=soon"); err == nil ||
		!strings.Contains(err.Error(), `GATEHOUSE_LIMITS_DEADLINE: "soon" is not a duration`) {
		t.Errorf("got %v", err)
	}
}

// TestWhatIsShownCanBeReadAgain checks that the output of Show is a valid file that yields the same settings.
func TestWhatIsShownCanBeReadAgain(t *testing.T) {
	l, err := read(t, full(t), "GATEHOUSE_AUTH_TOKEN=hunter2-hunter2-hunter2")
	if err != nil {
		t.Fatal(err)
	}
	l.By("log.level", "--verbose")
	var shown bytes.Buffer
	if err := l.Show(&shown); err != nil {
		t.Fatal(err)
	}
	if strings.Contains(shown.String(), "hunter2") || strings.Contains(shown.String(), "Bearer x") {
		t.Errorf("a secret is shown:\n%s", shown.String())
	}
	for _, want := range []string{
		"  level: debug # --verbose\n", "  # token: [secret], from GATEHOUSE_AUTH_TOKEN\n", "  sweep: 30s # default\n",
		"g.yaml:7:5\n", "  job_keep: 48h #",
	} {
		if !strings.Contains(shown.String(), want) {
			t.Errorf("%q is missing from\n%s", want, shown.String())
		}
	}
	again, err := read(t, shown.String())
	if err != nil {
		t.Fatalf("%v in\n%s", err, shown.String())
	}
	l.Auth.Token, l.Observe.Traces.Headers = secret.Text{}, nil
	again.Folders = l.Folders
	if !reflect.DeepEqual(again.Config, l.Config) {
		t.Errorf("read again, it says\n%+v, want\n%+v", again.Config, l.Config)
	}
}

func TestDifferences(t *testing.T) {
	a, b := Default(), Default()
	a.Auth.Token, b.Auth.Token = secret.New("same"), secret.New("same")
	b.Log.Level, b.Limits.Message, b.Rules, b.Listen.HTTP.Port = slog.LevelDebug, 1, []Rule{{}}, 1
	live, restart := Differences(a, b)
	if !slices.Equal(live, []string{"rules", "log.level"}) ||
		!slices.Equal(restart, []string{"listen.http.port", "limits.message"}) {
		t.Errorf("live %v, restart %v", live, restart)
	}
}

// compiled returns the compiled schema.
func compiled(t testing.TB) *jsonschema.Resolved {
	t.Helper()
	var s jsonschema.Schema
	if err := json.Unmarshal(Schema(), &s); err != nil {
		t.Fatal(err)
	}
	r, err := s.Resolve(nil)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// agree checks that the schema accepts a text if and only if the decoder does. Errors that only the decoder can
// detect, such as a bad port in a TCP address, are skipped.
func agree(t *testing.T, schema *jsonschema.Resolved, text string) {
	t.Helper()
	var v any
	if err := yaml.Unmarshal([]byte(text), &v); err != nil {
		t.Fatal(err)
	}
	if v == nil {
		return
	}
	b, err := json.Marshal(v) // numbers as JSON has them
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(b, &v); err != nil {
		t.Fatal(err)
	}
	c := Default()
	_, ours := decodeFile("g.yaml", "", []byte(text), &c)
	theirs := schema.Validate(v)
	if (ours == nil) != (theirs == nil) {
		t.Errorf("%q: reading says %v, the schema says %v", text, ours, theirs)
	}
}

func TestTheSchemaAgreesWithTheReader(t *testing.T) {
	schema := compiled(t)
	agree(t, schema, full(t))
	for _, text := range []string{
		"{}", "log:", "log: {}", "log: []", "log: {level: info}", "log: {level: loud}", "log: {level: 1}",
		"log: {x: 1}", "x: 1",
		"limits: {message: 1}", "limits: {message: 1KiB}", "limits: {message: 1 KiB}", "limits: {message: '7'}",
		"limits: {message: x}", "limits: {message: 1.5}",
		"limits: {deadline: 1m30s}", "limits: {deadline: 2d}", "limits: {deadline: 5}", "limits: {deadline: 1.5h}",
		"limits: {deadline: m}", "limits: {deadline: '0'}",
		"limits: {rate: 1}", "limits: {rate: 1.5}", "limits: {rate: x}", "limits: {rate: null}", "limits: {burst: 1.5}",
		"limits: {calls: x}",
		"listen: {http: {port: 80}}", "listen: {http: {port: -1}}", "listen: {http: {port: 65536}}", "listen: {http: }",
		"listen: {stdio: 1}", "listen: {stdio: true}",
		"view: {modules: []}", "view: {modules: [a]}", "view: {modules: a}", "view: {modules: [1]}",
		"view: {modules: }",
		"contexts: []", "contexts: [{}]", "contexts: [{name: a}]", "contexts: [{name: 1}]",
		"contexts: [{name: a, x: 1}]", "contexts: [{name: a, style: x}]",
		"contexts: [{name: a, env: {A: b}}]", "contexts: [{name: a, env: {A: 1}}]", "contexts: [{name: a, env: [A]}]",
		"contexts: {name: a}",
		"rules: [{then: allow}]", "rules: [{then: never}]", "rules: [{}]", "rules: [{then: ask, effects: [writes]}]",
		"rules: [{then: ask, effects: [x]}]", "rules: [{then: ask, effects: writes}]",
		"auth: {oauth: {grants: {a: [b]}}}", "auth: {oauth: {grants: {a: b}}}",
	} {
		agree(t, schema, text)
	}
}

// TestThePublishedPagesAreCurrent checks that every setting has a text, and that the generated pages match the
// code.
func TestThePublishedPagesAreCurrent(t *testing.T) {
	for _, s := range leaves(reflect.TypeFor[Config](), "") {
		if s.tag.Get("doc") == "" {
			t.Errorf("%s has no text", s.path)
		}
	}
	for name, want := range map[string][]byte{"gatehouse.schema.json": Schema(), "settings.md": Reference()} {
		path := filepath.Join("..", "..", "docs", name)
		if *update {
			if err := os.WriteFile(path, want, 0o644); err != nil {
				t.Fatal(err)
			}
		}
		got, err := os.ReadFile(path)
		if err != nil || !bytes.Equal(got, want) {
			t.Errorf("docs/%s is not what the code says (%v); run go test ./internal/config -update", name, err)
		}
	}
}

func TestLengthsOfTime(t *testing.T) {
	for text, want := range map[string]time.Duration{"90d": 90 * 24 * time.Hour, "1h30m": 90 * time.Minute,
		"2h": 2 * time.Hour, "30s": 30 * time.Second, "1m0s": time.Minute} {
		d, err := parseDuration(text)
		if err != nil || d != want {
			t.Errorf("%s is %v (%v)", text, d, err)
		}
		if again, err := parseDuration(showDuration(d)); err != nil || again != d {
			t.Errorf("%v is shown as %s", d, showDuration(d))
		}
	}
}

// FuzzDecode checks that no text makes the decoder panic, and that the output of Show decodes again.
func FuzzDecode(f *testing.F) {
	f.Add(full(f))
	for _, s := range []string{"a: [", "log: {level: info", "? a\n: b", "- - -", "a: &a [*a]", "<<: {}", "\x00",
		"listen: {http: {tls: }}", "contexts:\n- name: a\n  env:\n    A: |\n      x\n"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		l := &Loaded{Config: Default(), File: "g.yaml"}
		var err error
		if l.said, err = decodeFile("g.yaml", "", []byte(text), &l.Config); err != nil {
			return
		}
		l.Validate()
		l.Auth.Token, l.Observe.Traces.Headers = secret.Text{}, nil
		var shown bytes.Buffer
		if err := l.Show(&shown); err != nil {
			t.Fatal(err)
		}
		again := Default()
		if _, err := decodeFile("shown", "", shown.Bytes(), &again); err != nil {
			t.Fatalf("%v in\n%s", err, shown.String())
		}
	})
}

func TestPathsBeginInTheFilesFolder(t *testing.T) {
	l, err := read(t, "roots: {folders: [data, ~/x, /srv, '~', ~y]}\nsecrets: {key_file: key}\n", "HOME=/home/ann")
	if err != nil {
		t.Fatal(err)
	}
	here := filepath.Dir(l.File)
	want := []string{filepath.Join(here, "data"), "/home/ann/x", "/srv", "/home/ann", filepath.Join(here, "~y")}
	if !slices.Equal(l.Roots.Folders, want) || l.Secrets.KeyFile != filepath.Join(here, "key") {
		t.Errorf("got %q and %q, want %q", l.Roots.Folders, l.Secrets.KeyFile, want)
	}
}

func TestOpenTelemetryIsSetUpAsEverywhere(t *testing.T) {
	for _, c := range []struct {
		env  []string
		want Traces
	}{
		{nil, Traces{Sample: 1}},
		{[]string{"OTEL_EXPORTER_OTLP_ENDPOINT=http://c:4318/"},
			Traces{Endpoint: "http://c:4318/v1/traces", Sample: 1}},
		{[]string{"OTEL_EXPORTER_OTLP_ENDPOINT=http://c:4318", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT=https://t/x"},
			Traces{Endpoint: "https://t/x", Sample: 1}},
		{[]string{"OTEL_EXPORTER_OTLP_ENDPOINT=http://c:4317", "OTEL_EXPORTER_OTLP_PROTOCOL=grpc"}, Traces{Sample: 1}},
		{[]string{"OTEL_EXPORTER_OTLP_ENDPOINT=http://c:4318", "OTEL_SDK_DISABLED=true"}, Traces{Sample: 1}},
		{[]string{"OTEL_EXPORTER_OTLP_ENDPOINT=http://c:4318", "OTEL_TRACES_EXPORTER=none"}, Traces{Sample: 1}},
		{[]string{"OTEL_EXPORTER_OTLP_HEADERS=a=b%20c, d=e", "OTEL_SERVICE_NAME=s", "OTEL_RESOURCE_ATTRIBUTES=k=v",
			"OTEL_TRACES_SAMPLER=parentbased_traceidratio", "OTEL_TRACES_SAMPLER_ARG=0.25"},
			Traces{Sample: .25, Service: "s", Headers: map[string]string{"a": "b c", "d": "e"},
				Attributes: map[string]string{"k": "v"}}},
		{[]string{"OTEL_TRACES_SAMPLER=always_off"}, Traces{}},
	} {
		got, err := FromEnv(environment(t, c.env...))
		if err != nil || !reflect.DeepEqual(got.Observe.Traces, c.want) {
			t.Errorf("%v: got %+v, %v, want %+v", c.env, got.Observe.Traces, err, c.want)
		}
	}
	for _, bad := range []string{"OTEL_TRACES_SAMPLER=jaeger_remote", "OTEL_EXPORTER_OTLP_HEADERS=hunter2",
		"OTEL_RESOURCE_ATTRIBUTES==x"} {
		name, value, _ := strings.Cut(bad, "=")
		if _, err := FromEnv(environment(t, bad)); err == nil || !strings.Contains(err.Error(), name) ||
			name != "OTEL_TRACES_SAMPLER" && strings.Contains(err.Error(), value) {
			t.Errorf("%s: got %v", bad, err)
		}
	}
}

// A setting that was a switch before it had values keeps what its former values meant.
func TestFormerValues(t *testing.T) {
	for text, want := range map[string]string{
		"stage:\n  unattended: true\n": UnattendedAll, "stage:\n  unattended: false\n": UnattendedOff,
		"stage:\n  unattended: all\n": UnattendedAll, "stage:\n  unattended: off\n": UnattendedOff,
		"stage:\n  unattended: known\n": "known", "": "",
	} {
		if l, err := read(t, text); err != nil || l.Config.Stage.Unattended != want {
			t.Errorf("%q: %v, %v", text, l, err)
		}
	}
	for value, want := range map[string]string{"true": UnattendedAll, "0": "", "known": "known"} {
		l, err := read(t, "", "GATEHOUSE_STAGE_UNATTENDED="+value)
		if (err == nil) != (want != "") || err == nil && l.Config.Stage.Unattended != want {
			t.Errorf("%q in the environment: %v, %v", value, l, err)
		}
	}
	if _, err := read(t, "stage:\n  unattended: sometimes\n"); err == nil || !strings.Contains(err.Error(), "known") {
		t.Errorf("got %v", err)
	}
}
