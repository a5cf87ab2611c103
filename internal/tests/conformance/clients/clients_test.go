package clients

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"gatehouse/internal/modules/webview/chromium"
	"gatehouse/internal/tests/conformance"
)

// patience limits the time of a client for all steps.
const patience = 4 * time.Minute

// Every client passes each result to its model completely: a text product once and with the data that a later call
// needs, and structured content in full.
func TestWhatTheModelIsGiven(t *testing.T) {
	tools, err := Open()
	if err != nil {
		t.Skip(err)
	}
	host := build(t)
	for _, c := range All {
		t.Run(c.Name, func(t *testing.T) {
			t.Parallel()
			home, folder := t.TempDir(), t.TempDir()
			fill(t, folder)
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			sent, mcp := serve(t, host, folder)
			all := steps()
			if _, err := chromium.FindProgram(""); err != nil && os.Getenv("CI") == "" {
				all = slices.DeleteFunc(all, func(s tried) bool { return strings.HasPrefix(s.tool, "webview_") })
			}
			model := NewModel(modelSteps(all))
			defer model.Close()
			out, err := c.Run(ctx, tools, home, model, mcp)
			if err != nil {
				t.Errorf("%v: %s", err, tail(out))
			}
			for _, wrong := range model.Wrong() {
				t.Error(wrong)
			}
			compare(t, c, all, model.Given(), sent.results(), out)
		})
	}
}

func compare(t *testing.T, c Client, all []tried, given []string, sent []result, out []byte) {
	t.Helper()
	if len(given) != len(all) || len(sent) != len(all) {
		t.Errorf(
			"of %d steps the model was given %d results, and the host sent %d: %s",
			len(all),
			len(given),
			len(sent),
			tail(out),
		)
	}
	for i, s := range all[:min(len(all), len(given), len(sent))] {
		name := s.tool
		if position(all, name) != i {
			name += " again"
		}
		t.Run(name, func(t *testing.T) {
			defer func() {
				if t.Failed() {
					t.Logf("the model was given:\n%s\nthe host sent:\n%s", given[i], sent[i].raw)
				}
			}()
			if sent[i].IsError != s.fails {
				t.Errorf("the call failed: %t, want %t: %s", sent[i].IsError, s.fails, sent[i].Content)
			}
			if s.picture && !c.TextOnly {
				wantPicture(t, given[i], sent[i])
			} else if s.text {
				wantText(t, s, given[i], sent[i])
			} else {
				wantStructured(t, given[i], sent[i])
			}
			for _, fact := range s.facts {
				if !regexp.MustCompile(fact).MatchString(plain(given[i])) {
					t.Errorf("the model is not told %s", fact)
				}
			}
		})
	}
}

func wantText(t *testing.T, s tried, given string, sent result) {
	t.Helper()
	if sent.Structured != nil {
		t.Errorf("the host sent structured content, which some clients show alone: %s", sent.Structured)
	}
	if len(sent.Content) == 0 {
		t.Fatal("the host sent no content")
	}
	if !strings.Contains(sent.Content[0].Text, s.product) {
		t.Errorf("the first text is %q, want %q in it", sent.Content[0].Text, s.product)
	}
	for _, c := range sent.Content {
		if s.cut {
			break
		}
		if c.Type != "text" {
			continue
		}
		if c.Type == "text" && c.Text == "" {
			t.Error("the host sent an empty text, which the API of a model refuses")
			continue
		}
		if strings.HasPrefix(c.Text, "{") && holds(given, json.RawMessage(c.Text)) {
			continue // a client may print JSON its own way
		}
		if n := occurrences(given, strings.TrimSpace(c.Text)); n != 1 {
			t.Errorf("the model is given this text %d times, want once: %q", n, c.Text)
		}
	}
}

// wantPicture checks that a picture reaches the model, as data of its API.
func wantPicture(t *testing.T, given string, sent result) {
	t.Helper()
	i := slices.IndexFunc(sent.Content, func(c content) bool { return c.Type == "image" })
	if i < 0 {
		t.Fatal("the host sent no picture")
	}
	if data := sent.Content[i].Data; len(data) < 1000 || !strings.Contains(given, data[:500]) {
		t.Errorf("the model is not given the picture of %d bytes", len(data))
	}
}

func wantStructured(t *testing.T, given string, sent result) {
	t.Helper()
	if sent.Structured == nil {
		t.Fatal("the host sent no structured content")
	}
	if !holds(given, sent.Structured) {
		t.Errorf("the model is not given the structured content")
	}
}

// occurrences counts a text in what a model was given, as it is or as a JSON string, also inside another string.
func occurrences(given, text string) int {
	n := 0
	for range 3 {
		n += strings.Count(given, text)
		escaped := quoted(text)
		if escaped == text {
			break
		}
		text = escaped
	}
	return n
}

// quoted is text inside a JSON string.
func quoted(text string) string {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(text); err != nil {
		panic(err) // strings can be encoded
	}
	line := strings.TrimSuffix(b.String(), "\n")
	return line[1 : len(line)-1]
}

// holds reports whether JSON equal to want occurs in given: as it is, indented, inside another value, or as a
// string.
func holds(given string, want json.RawMessage) bool {
	wanted := canonical(want)
	for at := 0; at < len(given); at++ {
		if given[at] != '{' && given[at] != '[' {
			continue
		}
		var value any
		if json.NewDecoder(strings.NewReader(given[at:])).Decode(&value) == nil {
			return within(value, wanted)
		}
	}
	return false
}

func within(value any, wanted string) bool {
	if b, err := json.Marshal(value); err == nil && string(b) == wanted {
		return true
	}
	switch v := value.(type) {
	case string:
		return strings.HasPrefix(strings.TrimSpace(v), "{") && holds(v, json.RawMessage(wanted))
	case []any:
		for _, inner := range v {
			if within(inner, wanted) {
				return true
			}
		}
	case map[string]any:
		for _, inner := range v {
			if within(inner, wanted) {
				return true
			}
		}
	}
	return false
}

// canonical sorts the members of objects and writes numbers in one way.
func canonical(raw json.RawMessage) string {
	var value any
	if err := json.Unmarshal(raw, &value); err != nil {
		return string(raw)
	}
	b, err := json.Marshal(value)
	if err != nil {
		return string(raw)
	}
	return string(b)
}

// Which values the comparison treats as equal, and which as duplicates.
func TestTheComparisonFindsWhatItShould(t *testing.T) {
	text := "a \"b\"\n\\c"
	wrapped := `Output: [{"type":"text","text":"` + quoted(text) + `"}]`
	for given, want := range map[string]int{
		text:                                1,
		wrapped:                             1,
		`"` + quoted(wrapped) + `"`:         1,
		text + "\n" + wrapped:               2,
		"a b":                               0,
		strings.ReplaceAll(text, "\n", " "): 0,
	} {
		if n := occurrences(given, text); n != want {
			t.Errorf("%q holds the text %d times, want %d", given, n, want)
		}
	}
	object := json.RawMessage(`{"b":1.0,"a":["x"]}`)
	for given, want := range map[string]bool{
		`{"a":["x"],"b":1}`: true,
		"Took 1 s\nOutput:\n{\n  \"a\": [\"x\"], \"b\": 1\n}":  true,
		`{"content":[],"structuredContent":{"a":["x"],"b":1}}`: true,
		`[{"text":"{\"a\":[\"x\"],\"b\":1}"}]`:                 true,
		`{"a":["x"]}`:                                          false,
		"":                                                     false,
	} {
		if got := holds(given, object); got != want {
			t.Errorf("%q holds the object: %t, want %t", given, got, want)
		}
	}
}

// content is one block of a result.
type content struct{ Type, Text, Data string }

// result is what the host sent for one call.
type result struct {
	Content    []content
	Structured json.RawMessage `json:"structuredContent"`
	IsError    bool
	raw        string
}

// record keeps the results of calls in the order in which the host sent them. That is the order of the steps,
// because the model requests one call at a time.
type record struct {
	mu  sync.Mutex // guards all
	all []result
}

func (r *record) See(s conformance.Sighting) {
	if s.Answers != "tools/call" {
		return
	}
	var answer struct{ Result json.RawMessage }
	var one result
	if json.Unmarshal(s.Message, &answer) != nil || json.Unmarshal(answer.Result, &one) != nil {
		one.IsError = true
	}
	one.raw = string(s.Message)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.all = append(r.all, one)
}

func (r *record) results() []result {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]result(nil), r.all...)
}

// fill creates the files that the steps read.
func fill(t *testing.T, folder string) {
	t.Helper()
	for name, text := range map[string]string{
		"page.go":         page,
		"long.txt":        strings.Join(longLines(200), ""),
		"below/inner.txt": "inner\n",
		"below/Makefile":  "all:\n\t@echo 'inner.txt:1:2: error: it is not a program'; exit 3\n",
		"manual.md":       "# Pumps\n\nThe red pump needs oil every 40 hours.\n",
	} {
		path := filepath.Join(folder, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

func build(t *testing.T) string {
	t.Helper()
	top, err := conformance.Top()
	if err != nil {
		t.Fatal(err)
	}
	bin := filepath.Join(t.TempDir(), "gatehouse")
	cmd := exec.CommandContext(t.Context(), "go", "build", "-o", bin, "./cmd/gatehouse")
	cmd.Dir = top
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build gatehouse: %v: %s", err, out)
	}
	return bin
}

// serve starts a host of its own for folder, and returns its address behind a
// tap that records what the host sends.
func serve(t *testing.T, bin, folder string) (*record, string) {
	t.Helper()
	home := t.TempDir()
	cmd := exec.Command(bin, "serve", "file", "dir", "process", "shell", "sandbox", "lang", "metrics", "server", "rag",
		"brain", "code", "webview", "build", "ide", "lsp", "--http", "-p", "0", "-d", folder)
	cmd.Dir = home
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + home, "TMPDIR=" + home}
	if gopls := goServer(t); gopls != "" {
		cmd.Env = append(cmd.Env, "GATEHOUSE_MODULES_LSP_SERVERS=go="+gopls)
	}
	stderr, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var log bytes.Buffer // read after done
	ready, done := make(chan string, 1), make(chan struct{})
	go func() {
		defer close(done)
		lines := bufio.NewReader(io.TeeReader(stderr, &log))
		for {
			line, err := lines.ReadString('\n')
			if _, address, ok := strings.Cut(line, "Listening on "); ok {
				ready <- strings.TrimSpace(address)
			}
			if err != nil {
				return
			}
		}
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		force := time.AfterFunc(time.Minute, func() { _ = cmd.Process.Kill() })
		defer force.Stop()
		<-done
		if err := cmd.Wait(); err != nil {
			t.Errorf("the host ended badly: %v: %s", err, tail(log.Bytes()))
		}
	})
	select {
	case address := <-ready:
		target, err := url.Parse(address)
		if err != nil {
			t.Fatal(err)
		}
		sent := &record{}
		tap := httptest.NewServer(conformance.NewTap(target, sent))
		t.Cleanup(func() {
			tap.CloseClientConnections()
			tap.Close()
		})
		return sent, tap.URL + target.Path
	case <-done:
		t.Fatalf("the host did not start: %s", log.Bytes())
	case <-time.After(time.Minute):
		t.Fatal("the host did not listen within a minute")
	}
	return nil, ""
}

// goServer returns the language server of Go that the tests of editors install; "" means that it is looked up.
func goServer(t *testing.T) string {
	t.Helper()
	top, err := conformance.Top()
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(top, ".tools", "editors", "gopls")
	if _, err := os.Stat(path); err != nil {
		return ""
	}
	return path
}

// tail is the end of what a program printed.
func tail(out []byte) []byte {
	const most = 4 << 10
	return out[max(0, len(out)-most):]
}
