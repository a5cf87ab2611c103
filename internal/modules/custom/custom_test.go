package custom

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"gatehouse/internal/access/secret"
	"gatehouse/internal/dispatch/contextstore"
	"gatehouse/internal/files/roots"
	"gatehouse/module"
	"gatehouse/module/moduletest"
	"gatehouse/tool"
)

// The programs that the tests run are this test program under another name.
func TestMain(m *testing.M) {
	switch os.Getenv("PLAY") {
	case "":
		os.Exit(m.Run())
	case "arguments":
		json.NewEncoder(os.Stdout).Encode(os.Args[1:])
	case "where":
		dir, _ := os.Getwd()
		in, _ := io.ReadAll(os.Stdin)
		fmt.Printf("%s\n%s\n%s\n%s\n", dir, in, os.Getenv("TEAM"), os.Getenv("GATEHOUSE_CALL"))
	case "flood":
		for {
			os.Stdout.Write(make([]byte, 64<<10))
		}
	case "wait":
		fmt.Fprintln(os.Stderr, "waiting")
		time.Sleep(time.Hour)
	case "fail":
		fmt.Println("half done")
		fmt.Fprintln(os.Stderr, "no luck")
		os.Exit(3)
	case "tell":
		fmt.Printf("%s %q\n", os.Getenv("KEY"), os.Getenv("KEY"))
	case "json":
		fmt.Println(`{"n":1}`)
	}
}

// play makes the module of a record, whose programs play a part.
func play(t *testing.T, part string, r contextstore.Record) *module.Offer {
	t.Helper()
	r.Name = "dev"
	if err := r.Check(); err != nil {
		t.Fatal(err)
	}
	m := New(Options{Env: func(tool.Caller) (contextstore.Environment, error) {
		return contextstore.Environment{
			Plain:  map[string]string{"PLAY": part, "TEAM": "blue"},
			Secret: map[string]secret.Text{"KEY": secret.New("s3cret \"key\"")},
		}, nil
	}})
	if _, err := m.Make(t.Context(), module.Deps{Changed: func(module.Audience) {}}); err != nil {
		t.Fatal(err)
	}
	if err := m.Set(&r); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.Close(context.Background()) })
	o, err := m.Offer(t.Context(), module.Audience{})
	if err != nil {
		t.Fatal(err)
	}
	return o
}

// running is a record with one tool that runs this program.
func running(t *testing.T, input string, c contextstore.Command) contextstore.Record {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	c.Path = self
	return contextstore.Record{Definition: contextstore.Definition{
		OwnTools: []contextstore.Tool{{Name: "run", Description: "Runs.", Input: json.RawMessage(input), Command: &c}},
	}}
}

func call(t *testing.T, o *module.Offer, args string) (tool.Result, error) {
	t.Helper()
	return moduletest.NewCall(t, args).Tool(t.Context(), o.Tools[0])
}

func code(err error) string {
	if r, ok := errors.AsType[*tool.Refusal](err); ok {
		return string(r.Code)
	}
	return fmt.Sprint(err)
}

const anything = `{"type":"object","properties":{"a":{},"b":{},"list":{}}}`

func TestEachTemplateIsOneArgument(t *testing.T) {
	o := play(
		t, "arguments",
		running(
			t, anything,
			contextstore.Command{Args: []string{"log", "-n{{a}}", "--x={{b?}}", "{{list?}}", "--", "{{b?}}"}},
		),
	)
	for args, want := range map[string][]string{
		`{"a":3}`:                            {"log", "-n3", "--"},
		`{"a":"x y; rm -rf / $(id)","b":""}`: {"log", "-nx y; rm -rf / $(id)", "--x=", "--", ""},
		`{"a":1,"list":["p q","{{a}}",-2]}`:  {"log", "-n1", "p q", "{{a}}", "-2", "--"},
		`{"a":1,"list":[]}`:                  {"log", "-n1", "--"},
		`{"a":1,"b":"-rf"}`:                  {"log", "-n1", "--x=-rf", "--", "-rf"}, // after -- it is no option
		`{"a":{"k":[1, 2]},"b":null}`:        {"log", `-n{"k":[1,2]}`, "--"},
		`{"a":12345678901234567890.5}`:       {"log", "-n12345678901234567890.5", "--"},
	} {
		res, err := call(t, o, args)
		if err != nil {
			t.Errorf("%s: %v", args, err)
			continue
		}
		var got []string
		if err := json.Unmarshal([]byte(res.Content[0].Text), &got); err != nil || !slices.Equal(got, want) {
			t.Errorf("%s: the program got %q, want %q", args, got, want)
		}
	}
	for args, want := range map[string]string{
		`{}`:                     "invalid_arguments",
		`{"a":1,"list":["-rf"]}`: "invalid_arguments",
		`{"a":"x\u0000y"}`:       "invalid_arguments",
		`{"a":"` + strings.Repeat("x", 110<<10) + `"}`: "too_large",
	} {
		if _, err := call(t, o, args); code(err) != want {
			t.Errorf("%.40s: got %v, want %s", args, err, want)
		}
	}
}

func TestAProgramFindsItsFolderInputAndEnvironment(t *testing.T) {
	top := t.TempDir()
	if err := os.Mkdir(filepath.Join(top, "sub"), 0o755); err != nil {
		t.Fatal(err)
	}
	set, err := roots.Open([]roots.Dir{{Path: top}}, roots.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer set.Close()
	t.Setenv("UNRELATED_TOKEN", "x")
	for dir, want := range map[string]string{"": top, "sub": filepath.Join(top, "sub")} {
		c := moduletest.NewCall(t, `{"a":"héllo"}`)
		c.Roots = set
		res, err := c.Tool(
			t.Context(),
			play(t, "where", running(t, anything, contextstore.Command{Dir: dir, Stdin: "{{a}}!"})).Tools[0],
		)
		if err != nil {
			t.Fatal(err)
		}
		real, _ := filepath.EvalSymlinks(want)
		if got, want := res.Content[0].Text, real+"\nhéllo!\nblue\ncall_test\n"; got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
	c := moduletest.NewCall(t, `{"a":1}`)
	c.Roots = set
	if _, err := c.Tool(t.Context(),
		play(t, "where", running(t, anything, contextstore.Command{Dir: "../.."})).Tools[0]); code(
		err,
	) != "outside_root" {
		t.Errorf("got %v, want outside_root", err)
	}
}

func TestAProgramThatDoesNotEndIsEnded(t *testing.T) {
	r := running(t, anything, contextstore.Command{})
	r.OwnTools[0].Timeout = "300ms"
	if _, err := call(t, play(t, "wait", r), `{}`); code(err) != "timeout" {
		t.Errorf("got %v, want timeout", err)
	}
	r.OwnTools[0].Timeout, r.OwnTools[0].MaxOutput = "", 1<<20
	if _, err := call(t, play(t, "flood", r), `{}`); code(err) != "too_large" {
		t.Errorf("got %v, want too_large", err)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	gone := errors.New("the client has gone")
	go cancel(gone)
	if _, err := moduletest.NewCall(t, `{}`).Tool(ctx, play(t, "wait", r).Tools[0]); !errors.Is(err, gone) {
		t.Errorf("got %v, want the cause of the cancellation", err)
	}
}

func TestWhatAProgramGives(t *testing.T) {
	r := running(t, anything, contextstore.Command{})
	res, err := call(t, play(t, "fail", r), `{}`)
	if err != nil || !res.IsError || res.Content[0].Text != "failed: exit code 3\nno luck\nhalf done" {
		t.Errorf("got %+v, %v", res, err)
	}
	r.OwnTools[0].Output = json.RawMessage(`{"type":"object","properties":{"n":{"type":"integer"}},"required":["n"]}`)
	res, err = call(t, play(t, "json", r), `{}`)
	if raw, _ := res.Structured.(json.RawMessage); err != nil || string(raw) != `{"n":1}` {
		t.Errorf("got %+v, %v", res, err)
	}
	if _, err := call(t, play(t, "arguments", r), `{}`); code(err) != "failed" {
		t.Errorf("got %v, want what does not fit refused", err)
	}
	r.OwnTools[0].Command.Path = filepath.Join(t.TempDir(), "none")
	if _, err := call(t, play(t, "json", r), `{}`); code(err) != "unavailable" {
		t.Errorf("got %v, want unavailable", err)
	}
}

// The secrets in the output of a program are hidden from the caller.
func TestSecretsAreNotPassedOn(t *testing.T) {
	r := running(t, anything, contextstore.Command{})
	res, err := call(t, play(t, "tell", r), `{}`)
	if err != nil || res.Content[0].Text != "[secret] \"[secret]\"\n" {
		t.Errorf("got %v, %v", res.Content, err)
	}
	m := New(Options{Env: func(tool.Caller) (contextstore.Environment, error) {
		return contextstore.Environment{}, errors.New("KEY: no such secret")
	}})
	if err := m.Set(&r); err != nil {
		t.Fatal(err)
	}
	o, _ := m.Offer(t.Context(), module.Audience{})
	if _, err := call(t, o, `{}`); code(err) != "unavailable" {
		t.Errorf("got %v, want unavailable", err)
	}
}

// Simultaneous calls of one tool get each its own answer.
func TestAnswersAreNotMixedUp(t *testing.T) {
	o := play(t, "where", running(t, anything, contextstore.Command{Stdin: "{{a}}"}))
	var all sync.WaitGroup
	for i := range 8 {
		all.Go(func() {
			res, err := moduletest.NewCall(t, "a", i).Tool(t.Context(), o.Tools[0])
			if err != nil || strings.Split(res.Content[0].Text, "\n")[1] != fmt.Sprint(i) {
				t.Errorf("call %d: got %v, %v", i, res.Content, err)
			}
		})
	}
	all.Wait()
}

// heard is what a server was asked.
type heard struct {
	method, uri, body, key, id string
}

func server(t *testing.T, answer http.HandlerFunc) (url string, last func() heard) {
	var mu sync.Mutex
	var h heard
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		mu.Lock()
		h = heard{r.Method, r.RequestURI, string(body), r.Header.Get("X-Key"), r.Header.Get("X-Request-Id")}
		mu.Unlock()
		answer(w, r)
	}))
	t.Cleanup(s.Close)
	return s.URL, func() heard { mu.Lock(); defer mu.Unlock(); return h }
}

func requesting(h contextstore.HTTP) contextstore.Record {
	return contextstore.Record{Definition: contextstore.Definition{
		Env:      map[string]string{"KEY": ""},
		OwnTools: []contextstore.Tool{{Name: "ask", Description: "Asks.", Input: json.RawMessage(anything), HTTP: &h}},
	}}
}

//redteam:attack Tools run with what the call carries: a value in the path of a tool's own HTTP request leads to another path
func TestARequestGoesWhereItsAuthorWrote(t *testing.T) {
	at, last := server(t, func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "fine") })
	get := contextstore.HTTP{
		Method:  "GET",
		URL:     at + "/items/{{a}}?q={{b?}}",
		Headers: map[string]string{"X-Key": "Bearer {{env.KEY}}"},
	}
	o := play(t, "", requesting(get))
	for args, uri := range map[string]string{
		`{"a":"x"}`:                      "/items/x?q=",
		`{"a":"..admin","b":"../1&z=2"}`: "/items/..admin?q=..%2F1%26z%3D2",
		`{"a":"?x#y@evil","b":"#"}`:      "/items/%3Fx%23y@evil?q=%23",
		`{"a":7,"b":true}`:               "/items/7?q=true",
	} {
		res, err := call(t, o, args)
		if err != nil || res.Content[0].Text != "fine" {
			t.Errorf("%s: got %v, %v", args, res.Content, err)
		}
		if h := last(); h.uri != uri || h.method != "GET" || h.key != `Bearer s3cret "key"` || h.id != "call_test" ||
			h.body != "" {
			t.Errorf("%s: the server heard %+v, want %s", args, h, uri)
		}
	}
	for _, args := range []string{
		`{}`, `{"a":".."}`, `{"a":"."}`, `{"a":"../private"}`, `{"a":"x/../private"}`, `{"a":"/private"}`,
		`{"a":"x/y"}`, `{"a":"..\\private"}`,
		`{"a":"%2e%2e"}`, `{"a":"%2E."}`, `{"a":"..%2fprivate"}`, `{"a":"..%5Cprivate"}`, `{"a":"..%252fprivate"}`,
		`{"a":"%25252e%2525252e"}`,
		`{"a":"..;x=1"}`, `{"a":"..%3b/private"}`, `{"a":"%zz%2fprivate"}`, `{"a":"x\u0000"}`, `{"a":"x%0d%0aX: y"}`,
		`{"a":["/"]}`, `{"a":"%` + strings.Repeat("25", 20) + `41"}`,
	} {
		if res, err := call(t, o, args); code(err) != "invalid_arguments" {
			t.Errorf("%s: got %v, %v; the server heard %+v", args, res.Content, err, last())
		}
	}
}

func TestWhatARequestSends(t *testing.T) {
	at, last := server(t, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(204) })
	for body, want := range map[string]string{
		"": `{"a":"\"x","list":[1]}`,
		`{"q":"{{a}}","n":"{{list}}","t":"v {{a}}","gone":"{{b?}}","k":1.50,"l":["{{b?}}",null]}`: `{"k":1.50,"l":[null],"n":[1],"q":"\"x","t":"v \"x"}`,
	} {
		h := contextstore.HTTP{URL: at + "/"}
		if body != "" {
			h.Body = json.RawMessage(body)
		}
		if _, err := call(t, play(t, "", requesting(h)), `{"a":"\"x","list":[1]}`); err != nil {
			t.Fatal(err)
		}
		if got := last(); got.body != want || got.method != "POST" {
			t.Errorf("sent %s %s, want %s", got.method, got.body, want)
		}
	}
	evil := contextstore.HTTP{URL: at + "/", Headers: map[string]string{"X-Key": "{{a}}"}}
	if _, err := call(t, play(t, "", requesting(evil)), `{"a":"x\r\nX-Admin: 1"}`); code(err) != "invalid_arguments" {
		t.Errorf("got %v, want a header that is two refused", err)
	}
}

func TestWhatAServerAnswers(t *testing.T) {
	slow := make(chan struct{})
	at, _ := server(t, func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/image":
			w.Header().Set("Content-Type", "image/png")
			w.Write([]byte("\x89PNG"))
		case "/binary":
			w.Header().Set("Content-Type", "application/zip")
			w.Write([]byte{0xff, 0xfe})
		case "/missing":
			http.Error(w, "no such thing", 404)
		case "/away":
			http.Redirect(w, r, "http://169.254.169.254/", http.StatusFound)
		case "/large":
			w.Write(make([]byte, 2000))
		case "/slow":
			<-slow
		}
	})
	defer close(slow)
	ask := func(path string) (tool.Result, error) {
		r := requesting(contextstore.HTTP{Method: "GET", URL: at + path})
		r.OwnTools[0].MaxOutput = 1000
		if path == "/slow" {
			r.OwnTools[0].Timeout = "200ms"
		}
		return call(t, play(t, "", r), `{}`)
	}
	if res, err := ask("/image"); err != nil || res.Content[0].Type != "image" ||
		string(res.Content[0].Data) != "\x89PNG" {
		t.Errorf("got %+v, %v", res, err)
	}
	for path, want := range map[string]string{"/missing": "failed: HTTP 404 Not Found\nno such thing",
		"/away": "failed: HTTP 302 Found; redirects are not followed"} {
		if res, err := ask(path); err != nil || !res.IsError || !strings.HasPrefix(res.Content[0].Text, want) {
			t.Errorf("%s: got %+v, %v", path, res, err)
		}
	}
	for path, want := range map[string]string{"/binary": "binary", "/large": "too_large", "/slow": "timeout"} {
		if _, err := ask(path); code(err) != want {
			t.Errorf("%s: got %v, want %s", path, err, want)
		}
	}
	gone := httptest.NewServer(nil)
	gone.Close()
	_, err := call(t, play(t, "", requesting(contextstore.HTTP{URL: gone.URL + "/"})), `{}`)
	if code(err) != "unavailable" || strings.Contains(err.Error(), "127.0.0.1") {
		t.Errorf("got %v, want unavailable without an address", err)
	}
}

func TestPrompts(t *testing.T) {
	o := play(t, "", contextstore.Record{Definition: contextstore.Definition{OwnPrompts: []contextstore.Prompt{{
		Name: "review", Description: "Reviews.",
		Arguments: []contextstore.PromptArg{
			{Name: "lang", Required: true, Values: []string{"go", "golang", "c"}}, {Name: "note"},
		},
		Messages: []contextstore.Message{
			{Role: "user", Text: "Review this {{lang}}. {{note}}"}, {Role: "assistant", Text: `\{{ok}}`},
		},
	}}}})
	p := o.Prompts[0]
	res, err := moduletest.NewCall(t, "lang", "{{note}}").Run(t.Context(), p.Get)
	if err != nil || len(res.Messages) != 2 || res.Messages[0].Content.Text != "Review this {{note}}. " ||
		res.Messages[1].Role != "assistant" || res.Messages[1].Content.Text != "{{ok}}" {
		t.Errorf("got %+v, %v", res, err)
	}
	if !p.Args[0].Required || p.Args[1].Required {
		t.Errorf("got %+v", p.Args)
	}
	for typed, want := range map[string][]string{"": {"go", "golang", "c"}, "go": {"go", "golang"}, "x": {}} {
		res, err := moduletest.NewCall(t, "argument", "lang", "value", typed).Run(t.Context(), p.Complete)
		if err != nil || !slices.Equal(res.Completion.Values, want) {
			t.Errorf("%q: got %+v, %v", typed, res.Completion, err)
		}
	}
}
