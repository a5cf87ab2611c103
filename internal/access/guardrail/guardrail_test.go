package guardrail

import (
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"gatehouse/internal/access/secret"
)

// samples are made-up secrets and data, by their kinds. They are put together here, so that no program that looks for
// secrets in sources finds one.
var samples = map[string]string{
	"private-key":    "-----BEGIN RSA " + "PRIVATE KEY-----\nMIIEow\n-----END RSA " + "PRIVATE KEY-----",
	"aws-key":        "AKIA" + "QWERTYUIOPASDFGH",
	"github-token":   "ghp_" + strings.Repeat("aB3", 12),
	"gitlab-token":   "glpat-" + strings.Repeat("x1", 12),
	"slack-token":    "xoxb-" + strings.Repeat("12", 10),
	"stripe-key":     "sk_live_" + strings.Repeat("a1", 12),
	"google-key":     "AIza" + strings.Repeat("Z", 35),
	"model-key":      "sk-ant-" + strings.Repeat("q9", 15),
	"registry-token": "npm_" + strings.Repeat("k", 36),
	"jwt":            "eyJ" + "hbGciOiJIUzI1NiJ9.eyJ" + "zdWIiOiIxMjM0In0.c2lnbmF0dXJl",
	"email":          "ann.bird@mail.example.com",
	"card":           "4111 1111 1111 1111",
	"iban":           "DE89 3704 0044 0532 0130 00",
	"us-ssn":         "512-44-1234",
	"phone":          "+49 30 901820",
}

func scanner(t testing.TB, find ...string) *Scanner {
	t.Helper()
	s, err := newScanner(find)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestEachKindIsFound(t *testing.T) {
	all := scanner(t, "secrets", "personal")
	for kind, sample := range samples {
		masked, found := all.Text("before " + sample + " after")
		if found[kind] != 1 || masked != "before [masked: "+kind+"] after" {
			t.Errorf("%s: %s, %v", kind, masked, found)
		}
		alone := scanner(t, kind)
		if masked, _ := alone.Text(sample); masked != maskOf(kind) {
			t.Errorf("%s alone: %s", kind, masked)
		}
		again, found := all.Text(masked)
		if again != masked || found != nil {
			t.Errorf("%s: a masked text changes again: %s", kind, again)
		}
	}
	for text, want := range map[string]string{
		"postgres://ann:hunter22@db/x":            "postgres://ann:[masked: url-password]@db/x",
		"Authorization: Bearer abcdefghijklmnop1": "Authorization: Bearer [masked: bearer]",
		"DB_PASSWORD=hunter22 next":               "DB_PASSWORD=[masked: password] next",
		`api_key: "abcdef123456"`:                 `api_key: "[masked: password]"`,
	} {
		if masked, _ := all.Text(text); masked != want {
			t.Errorf("%s became %s", text, masked)
		}
	}
}

// What looks alike and is something else stays.
func TestOtherTextsStay(t *testing.T) {
	all := scanner(t, "secrets", "personal")
	for _, text := range []string{
		"4111 1111 1111 1112", "DE88 3704 0044 0532 0130 00", "000-12-3456",
		"commit 8a57b1b1deadbeefdeadbeefdeadbeefdeadbeef",
		"2026-11-22T21:22:23Z", "version 10.20.30.40", "user@host", "skip-to-main-content", "a+b=c",
		"12345678901234567890",
		"password: ${secret:DB}", "the password is kept elsewhere", "https://example.com/a@b", "", "\x00\xff\xfe",
		strings.Repeat("A", 5000), "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJ",
	} {
		if masked, found := all.Text(text); found != nil || masked != text {
			t.Errorf("%q became %q", text, masked)
		}
	}
}

// Attempts to get a secret past the scanner: encodings of JSON, base64, hexadecimal and percent,
// characters that are not shown, letters of full width, names of members, numbers and nesting.
//
//redteam:attack Guardrails: a secret in another form passes the scanner
func TestOtherFormsAreFound(t *testing.T) {
	all := scanner(t, "secrets", "personal")
	token := samples["github-token"]
	wide := strings.Map(func(r rune) rune {
		if r >= '!' && r <= '~' {
			return r - '!' + 0xff01
		}
		return r
	}, token)
	var escaped strings.Builder
	for _, r := range token {
		escaped.WriteString(fmt.Sprintf(`\u%04x`, r))
	}
	for name, text := range map[string]string{
		"escaped":         `{"a":"` + escaped.String() + `"}`,
		"the name":        `{"` + token + `":1}`,
		"nested":          `[[[{"a":[{"b":"x ` + token + `"}]}]]]`,
		"zero width":      `{"a":"` + token[:9] + "\u200b" + token[9:] + `"}`,
		"soft hyphen":     `{"a":"` + token[:9] + "\u00ad" + token[9:20] + "\u2060" + token[20:] + `"}`,
		"full width":      `{"a":"` + wide + `"}`,
		"base64":          `{"a":"` + base64.StdEncoding.EncodeToString([]byte("token is "+token)) + `"}`,
		"base64 of a URL": `{"a":"` + base64.RawURLEncoding.EncodeToString([]byte(token+"?>")) + `"}`,
		"hexadecimal":     `{"a":"` + hex.EncodeToString([]byte(token)) + `"}`,
		"percent": `{"a":"x=` +
			strings.ReplaceAll(url.QueryEscape("mail: ann@"+"mail.example.com"), "+", "%20") + `"}`,
		"JSON in a string":  `{"a":` + quote(`{"b":`+quote(token)+`}`) + `}`,
		"a number":          `{"a":4111111111111111}`,
		"a password member": `{"db":{"admin_password":"hunter2"}}`,
		"a list of them":    `{"passwords":[],"client_secret":["hunter2"]}`,
		"cut":               `{"a":"` + strings.ReplaceAll(samples["private-key"][:60], "\n", `\n`) + `"}`,
	} {
		masked, found := all.JSON([]byte(text))
		if len(found) == 0 || !json.Valid(masked) {
			t.Errorf("%s: %v, %s", name, found, masked)
		}
		for _, secretly := range []string{token, escaped.String(), "hunter2", "4111111111111111", wide} {
			if strings.Contains(string(masked), secretly) {
				t.Errorf("%s: it is still there: %s", name, masked)
			}
		}
	}
}

func quote(s string) string {
	b, _ := json.Marshal(s)
	return string(b)
}

func FuzzScan(f *testing.F) {
	for _, sample := range samples {
		f.Add(sample)
		f.Add(quote(sample))
		f.Add(base64.StdEncoding.EncodeToString([]byte(sample)))
	}
	f.Add(`{"a":[1,2.5e3,"\ud83d\ude00",{"password":"hunter22"}],"b":null}`)
	all, err := newScanner([]string{"secrets", "personal"})
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, text string) {
		masked, found := all.Text(text)
		if (found == nil) != (masked == text) && found == nil {
			t.Errorf("%q became %q, and nothing was found", text, masked)
		}
		for _, sample := range samples {
			if strings.Contains(masked, sample) && !strings.Contains(sample, " ") && strings.TrimSpace(text) == sample {
				t.Errorf("%q stays in %q", sample, masked)
			}
		}
		if !json.Valid([]byte(text)) {
			return
		}
		out, _ := all.JSON([]byte(text))
		if !json.Valid(out) {
			t.Errorf("%q became %q, which is no JSON", text, out)
		}
	})
}

// hookServer answers as handle says.
func hookServer(t *testing.T, handle http.HandlerFunc) string {
	s := httptest.NewServer(handle)
	t.Cleanup(s.Close)
	return s.URL
}

func judgeWith(t *testing.T, h Hook, part, value string) Verdict {
	t.Helper()
	h.Name = "dlp"
	g, err := New(Options{
		Settings: Settings{Hooks: []Hook{h}},
		Secret:   func(string) (secret.Text, error) { return secret.New("the-key"), nil },
	})
	if err != nil {
		t.Fatal(err)
	}
	return g.For("work", "mail", "mail_send").
		Judge(t.Context(), part, Call{ID: "1", Name: "mail_send"}, json.RawMessage(value))
}

func TestAHookDecides(t *testing.T) {
	var got map[string]any
	at := hookServer(t, func(w http.ResponseWriter, r *http.Request) {
		got = nil
		if err := json.NewDecoder(r.Body).Decode(&got); err != nil ||
			r.Header.Get("Authorization") != "Bearer the-key" {
			t.Errorf("%v, %v", err, r.Header)
		}
		text := fmt.Sprint(got)
		switch {
		case strings.Contains(text, "bad"):
			io.WriteString(w, `{"decision":"refuse","reason":"it is bad"}`)
		case strings.Contains(text, "other") && got["when"] == "before":
			io.WriteString(w, `{"decision":"rewrite","arguments":{"a":"new"}}`)
		case strings.Contains(text, "other"):
			io.WriteString(w, `{"decision":"rewrite","result":{"content":[]}}`)
		default:
			io.WriteString(w, `{"decision":"allow"}`)
		}
	})
	h := Hook{URL: at, Secret: "DLP_KEY"}
	if v := judgeWith(t, h, Arguments, `{"a":1}`); v.Refused != "" || v.Changed || len(v.Events) != 0 {
		t.Errorf("allowed: %+v", v)
	}
	if v := judgeWith(t, h, Arguments, `{"a":"bad"}`); !strings.Contains(v.Refused, "it is bad") {
		t.Errorf("refused: %+v", v)
	}
	if v := judgeWith(t, h, Arguments, `{"a":"other"}`); v.Refused != "" || string(v.Value) != `{"a":"new"}` {
		t.Errorf("rewritten: %+v", v)
	}
	if v := judgeWith(t, h, Results, `{"content":["other"]}`); v.Refused != "" || string(v.Value) != `{"content":[]}` {
		t.Errorf("rewritten: %+v", v)
	}
	if got["when"] != "after" || got["result"] == nil || got["guardrail"] != 1.0 || got["name"] != "mail_send" {
		t.Errorf("the question was %v", got)
	}
}

// A hook that does not decide refuses.
//
//redteam:attack Guardrails: a hook that is down, slow or confused lets a call pass
func TestAHookThatFailsRefuses(t *testing.T) {
	for name, handle := range map[string]http.HandlerFunc{
		"slow": func(_ http.ResponseWriter, r *http.Request) {
			io.Copy(io.Discard, r.Body)
			<-r.Context().Done()
		},
		"an error":     func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusTeapot) },
		"nothing":      func(http.ResponseWriter, *http.Request) {},
		"no JSON":      func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "allow") },
		"another word": func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, `{"decision":"yes"}`) },
		"two decisions": func(w http.ResponseWriter, _ *http.Request) {
			io.WriteString(w, `{"decision":"refuse","decision":"allow"}`)
		},
		"more after it": func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, `{"decision":"allow"}{}`) },
		"a member more": func(w http.ResponseWriter,
			_ *http.Request) {
			io.WriteString(w, `{"decision":"allow","x":1}`)
		},
		"the result": func(w http.ResponseWriter, _ *http.Request) {
			io.WriteString(w, `{"decision":"rewrite","result":{}}`)
		},
		"no object": func(w http.ResponseWriter, _ *http.Request) {
			io.WriteString(w, `{"decision":"rewrite","arguments":[]}`)
		},
		"a redirect": func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "/elsewhere", http.StatusTemporaryRedirect)
		},
		"too much": func(w http.ResponseWriter, _ *http.Request) { w.Write(make([]byte, mostAnswer+2)) },
	} {
		t.Run(name, func(t *testing.T) {
			v := judgeWith(t, Hook{URL: hookServer(t, handle), Deadline: 300 * time.Millisecond}, Arguments, `{"a":1}`)
			if !strings.Contains(v.Refused, "could not decide") || len(v.Events) != 1 ||
				v.Events[0].Outcome != "refused" {
				t.Errorf("got %+v", v)
			}
		})
	}
	if v := judgeWith(t, Hook{URL: "http://127.0.0.1:1/"}, Results, `{}`); v.Refused == "" {
		t.Errorf("nobody listens: %+v", v)
	}
}

func TestAProgramDecides(t *testing.T) {
	path := filepath.Join(t.TempDir(), "judge")
	script := "#!/bin/sh\ncase \"$(cat)\" in\n*bad*) echo '{\"decision\":\"refuse\",\"reason\":\"bad\"}';;\n" +
		"*slow*) sleep 100;;\n*fail*) echo '{\"decision\":\"allow\"}'; exit 3;;\n" +
		"*) echo '{\"decision\":\"allow\"}';;\nesac\n"
	if err := os.WriteFile(path, []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	h := Hook{Command: []string{path}, Deadline: 20 * time.Second}
	if v := judgeWith(t, h, Arguments, `{"a":1}`); v.Refused != "" {
		t.Errorf("allowed: %+v", v)
	}
	if v := judgeWith(t, h, Arguments, `{"a":"bad"}`); !strings.Contains(v.Refused, "bad") {
		t.Errorf("refused: %+v", v)
	}
	if v := judgeWith(t, h, Arguments, `{"a":"fail"}`); !strings.Contains(v.Refused, "code 3") {
		t.Errorf("failed: %+v", v)
	}
	h.Deadline = 200 * time.Millisecond
	if v := judgeWith(t, h, Arguments, `{"a":"slow"}`); !strings.Contains(v.Refused, "no decision within") {
		t.Errorf("slow: %+v", v)
	}
	h.Command = []string{filepath.Join(t.TempDir(), "missing")}
	if v := judgeWith(t, h, Arguments, `{"a":1}`); v.Refused == "" {
		t.Errorf("missing: %+v", v)
	}
}

// Rules hold for their contexts, modules, names and parts alone; what a hook rewrites is scanned again.
func TestRulesApplyWhereTheyMatch(t *testing.T) {
	at := hookServer(t, func(w http.ResponseWriter, _ *http.Request) {
		io.WriteString(w, `{"decision":"rewrite","arguments":{"a":"ann@mail.example.com"}}`)
	})
	g, err := New(Options{Settings: Settings{
		Scan: []ScanRule{
			{Name: "mail", Contexts: []string{"work*"}, Find: []string{"email"}, In: []string{Arguments}, Then: Mask},
			{Modules: []string{"db"}, Find: []string{"card"}, In: []string{Results}, Then: Refuse},
			{Names: []string{"note_*"}, Find: []string{"phone"}, Then: Warn},
		},
		Hooks: []Hook{{Name: "h", Contexts: []string{"work-b"}, When: []string{before}, URL: at}},
	}})
	if err != nil {
		t.Fatal(err)
	}
	if g.For("home", "mail", "send") != nil {
		t.Error("a call that no rule matches is judged")
	}
	judge := func(context, module, name, part, value string) Verdict {
		return g.For(context, module, name).Judge(t.Context(), part, Call{}, json.RawMessage(value))
	}
	if v := judge("work-a", "mail", "send", Arguments, `{"to":"ann@mail.example.com"}`); string(
		v.Value,
	) != `{"to":"[masked: email]"}` {
		t.Errorf("%s", v.Value)
	}
	if v := judge("work-a", "mail", "send", Results, `{"to":"ann@mail.example.com"}`); v.Changed {
		t.Errorf("%s", v.Value)
	}
	if v := judge("home", "db", "query", Results, `["4111 1111 1111 1111"]`); v.Refused == "" ||
		strings.Contains(v.Refused, "4111") ||
		strings.Contains(string(v.Value), "4111") {
		t.Errorf("%+v", v)
	}
	if v := judge("home", "x", "note_add", Arguments, `["+49 30 901820"]`); v.Changed || len(v.Events) != 1 ||
		v.Events[0].Outcome != "warned" {
		t.Errorf("%+v", v)
	}
	if v := judge("work-b", "x", "y", Arguments, `{}`); string(v.Value) != `{"a":"[masked: email]"}` {
		t.Errorf("what a hook rewrote was not scanned: %s", v.Value)
	}
}

func TestMistakesInSettings(t *testing.T) {
	for want, s := range map[string]Settings{
		"scan[0].find": {Scan: []ScanRule{{Find: []string{"moods"}, Then: Mask}}},
		"scan[0].then": {Scan: []ScanRule{{Find: []string{"email"}, Then: "look"}}},
		"scan[0]":      {Scan: []ScanRule{{Find: []string{"email"}, Then: Mask, Contexts: []string{"["}}}},
		"hooks[0]":     {Hooks: []Hook{{Name: "a", URL: "http://example.com/"}}},
		"hooks[1]":     {Hooks: []Hook{{Name: "a", Command: []string{"/bin/true"}}, {Name: "b"}}},
	} {
		var all []string
		s.Validate(func(path, text string) { all = append(all, path+": "+text) })
		if len(all) == 0 || !strings.HasPrefix(all[0], want) {
			t.Errorf("%s: %v", want, all)
		}
	}
}

func BenchmarkScan(b *testing.B) {
	s := scanner(b, "secrets", "personal")
	text := []byte(
		quote(
			strings.Repeat(
				"The quick brown fox jumps over 13 lazy dogs at 10:15, see https://example.com/a?b=c. ",
				400,
			),
		),
	)
	b.SetBytes(int64(len(text)))
	for b.Loop() {
		s.JSON(text)
	}
}
