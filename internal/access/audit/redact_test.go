package audit

import (
	"encoding/json"
	"strings"
	"testing"

	"gatehouse/internal/mcp/rawjson"
	"gatehouse/internal/mcp/schema"
)

func redactedArgs(args json.RawMessage, names *memberNames, secret map[string]bool) []byte {
	got, _ := redact(nil, args, names, secret, nil, nil)
	return got
}

func TestSecretsAreMasked(t *testing.T) {
	in, err := schema.Compile(json.RawMessage(`{"type":"object","properties":{
		"code":{"type":"string","writeOnly":true},
		"login":{"type":"object","properties":{"word":{"type":"string","format":"password"}}},
		"list":{"type":"array","items":{"type":"object","properties":{"mine":{"x-secret":true}}}}}}`))
	if err != nil {
		t.Fatal(err)
	}
	var c secretCache
	names := &memberNames{}
	for args, want := range map[string]string{
		`{"path":"a.txt","n":12345678901234567890}`:                   `{"path":"a.txt","n":12345678901234567890}`,
		`{"password":"x","apiKey":1,"API_KEY":["a"]}`:                 `{"password":"***","apiKey":"***","API_KEY":"***"}`,
		`{"keyFile":"x","key":"y","keys":[1],"sshKey":"z"}`:           `{"keyFile":"***","key":"***","keys":"***","sshKey":"***"}`,
		`{"keyword":"x","keyboard":"y","monkeys":1}`:                  `{"keyword":"x","keyboard":"y","monkeys":"***"}`,
		`{"access_token":"x","AuthorizationHeader":"y"}`:              `{"access_token":"***","AuthorizationHeader":"***"}`,
		`{"env":{"A":"b"},"a":{"b":[{"secret":{"c":1}}]}}`:            `{"env":"***","a":{"b":[{"secret":"***"}]}}`,
		`{"code":"x","login":{"word":"y"},"list":[{"mine":1,"b":2}]}`: `{"code":"***","login":{"word":"***"},"list":[{"mine":"***","b":2}]}`,
		`{"p\u0061ssword":"x"}`:                                       `{"password":"***"}`,
		`{"cmd":"curl -H 'Authorization: Bearer abc.def' https://x"}`: `{"cmd":"curl -H 'Authorization: Bearer ***' https://x"}`,
		`{"cmd":"mysql --password=hunter2 --user root"}`:              `{"cmd":"mysql --password=*** --user root"}`,
		`{"cmd":"login --password hunter2; ls"}`:                      `{"cmd":"login --password ***; ls"}`,
		`{"cmd":"git clone https://bob:hunter2@host/x"}`:              `{"cmd":"git clone https://bob:***@host/x"}`,
		`{"cmd":"GITHUB_TOKEN=abcdef make"}`:                          `{"cmd":"GITHUB_TOKEN=*** make"}`,
		`{"cmd":"echo \"token\": \"abc\""}`:                           `{"cmd":"echo \"token\": \"***\""}`,
		`{"note":"the password is easy to guess"}`:                    `{"note":"the password is easy to guess"}`,
		`{"text":"key gh_0123456789abcdefghij end"}`:                  `{"text":"key *** end"}`,
		`{"text":"https://example.org:8080/a@b"}`:                     `{"text":"https://example.org:8080/a@b"}`,
		`[]`:     `[]`,
		`"text"`: `"text"`,
		`null`:   `null`,
	} {
		if got := string(redactedArgs(json.RawMessage(args), names, c.secretsOf(in))); got != want {
			t.Errorf("%s:\ngot  %s\nwant %s", args, got, want)
		}
	}
}

// A tool's message quotes what a caller gave as the name of a secret, which may be the secret itself.
//
//redteam:attack What destroys is written down before it begins: a tool's refusal quotes a masked argument
func TestReasonsQuoteNoMaskedArguments(t *testing.T) {
	for args, reason := range map[string]string{
		`{"secret":"hunter2hunter2"}`:                 "this host has no secret hunter2hunter2",
		`{"note":"n","token":"hunter2hunter2 \"a\""}`: `there is no hunter2hunter2 "a"`,
		`{"password":"hunter2hunter2\n"}`:             `the text "hunter2hunter2\n" is too short`,
	} {
		e := Entry{Kind: "call", Args: json.RawMessage(args), Outcome: "refused", Reason: reason}
		if line := string(e.append(nil, nil, &seen{})); strings.Contains(line, "hunter2") || !strings.Contains(line, "***") {
			t.Errorf("%s: %s", args, line)
		}
	}
}

// A password under a name that the tool does not know is in no line, because the content of such a
// member is unknown.
//
//redteam:attack What destroys is written down before it begins: passwords under wrong names of arguments
func TestMembersTheSchemaDoesNotAllowAreMasked(t *testing.T) {
	in, err := schema.Compile(json.RawMessage(`{"type":"object","additionalProperties":false,"properties":{
		"user":{"type":"string"},
		"login":{"type":"object","additionalProperties":false,"properties":{"name":{"type":"string"}}},
		"headers":{"type":"object","additionalProperties":{"type":"string"}},
		"list":{"type":"array","items":{"type":"object","additionalProperties":false,"properties":{"id":{"type":"string"}}}}}}`))
	if err != nil {
		t.Fatal(err)
	}
	l := ledger(t, fresh(t), Options{})
	for args, want := range map[string]string{
		`{"user":"ann","newPasswort":"hunter2","old":"hunter1"}`: `{"user":"ann","newPasswort":"***","old":"***"}`,
		`{"n":["hunter2"],"m":{"a":"hunter2"},"k":7}`:            `{"n":"***","m":"***","k":"***"}`,
		`{"login":{"name":"ann","pw":"hunter2"}}`:                `{"login":{"name":"ann","pw":"***"}}`,
		`{"headers":{"Accept":"text/plain"}}`:                    `{"headers":{"Accept":"text/plain"}}`,
		`{"list":[{"id":"a","x":"hunter2"},{"id":"b"}]}`:         `{"list":[{"id":"a","x":"***"},{"id":"b"}]}`,
	} {
		if err := l.Keep(t.Context(),
			Entry{Kind: "call", Tool: "x", Args: json.RawMessage(args), Input: in}); err != nil {
			t.Fatal(err)
		}
		all := collect(t, l, Filter{})
		if got := all[len(all)-1]; string(got.Args) != want {
			t.Errorf("%s: got %s, want %s", args, got.Args, want)
		}
	}
}

func TestWhatIsTypedIntoAProcessIsNotKept(t *testing.T) {
	l := ledger(t, fresh(t), Options{})
	l.Keep(
		t.Context(),
		Entry{Kind: "call", Tool: "process_input", Args: json.RawMessage(`{"id":"proc-1","input":"hunter2\n"}`)},
	)
	if got := collect(t, l, Filter{})[0]; string(got.Args) != `{"id":"proc-1","input":"***"}` || got.Digest == "" {
		t.Errorf("got %s", got.Raw)
	}
}

func TestLongArgumentsAreCut(t *testing.T) {
	long := strings.Repeat("wörter ", 1000)
	many := `{"a":1` + strings.Repeat(`,"b":"`+strings.Repeat("x", 200)+`"`, 100) + `}`
	for name, args := range map[string]string{
		"text":   `{"content":"` + long + `","path":"a"}`,
		"many":   many,
		"array":  `[` + strings.Repeat(`[1,2,{"a":"`+long+`"}],`, 50) + `1]`,
		"deep":   strings.Repeat(`{"a":`, 60) + `"secret"` + strings.Repeat(`}`, 60),
		"key":    `{"` + strings.Repeat(`\u0001`, 3000) + `":1}`,
		"number": `{"n":` + strings.Repeat("1", 5000) + `}`,
	} {
		got := redactedArgs(json.RawMessage(args), nil, nil)
		if len(got) > longestArgs || !json.Valid(got) || !strings.Contains(string(got), "…") {
			t.Errorf("%s: got %d bytes: %s", name, len(got), got)
		}
	}
	if got := string(redactedArgs(json.RawMessage(`{"content":"`+long+`","path":"a"}`),
		nil, nil)); !strings.HasSuffix(
		got,
		`… 8000 bytes","path":"a"}`,
	) {
		t.Errorf("got %s, want its length and what follows", got)
	}
}

func TestEveryTriggerIsLookedFor(t *testing.T) {
	for _, x := range triggers {
		if got := string(appendMasked(nil, []byte("a "+x.word+"=hunter2hunter2 b"))); strings.Contains(
			got,
			"hunter2",
		) ||
			!strings.HasSuffix(got, " b") {
			t.Errorf("behind %q: %s", x.word, got)
		}
	}
}

// A cached name gives the same result.
func TestNamesOfMembersAreRemembered(t *testing.T) {
	var names memberNames
	for range 2 {
		for name, want := range map[string]bool{"password": true, "text": false, "apiKey": true,
			strings.Repeat("x", longestName) + "token": true} {
			if got := names.secret([]byte(name)); got != want {
				t.Errorf("%s: got %t", name, got)
			}
		}
	}
}

func FuzzRedact(f *testing.F) {
	f.Add([]byte(`{"password":"S3CRET","a":["x",{"b":"--token S3CRET"}],"c":"😀"}`))
	f.Add([]byte(`{"cmd":"https://u:p@h Bearer S3CRET"}`))
	f.Fuzz(func(t *testing.T, args []byte) {
		if rawjson.Check(args, 0) != nil {
			return
		}
		got := redactedArgs(args, &memberNames{}, map[string]bool{"hidden": true})
		if len(got) > longestArgs {
			t.Errorf("%d bytes", len(got))
		}
		if err := rawjson.Check(got, 0); err != nil && !strings.Contains(err.Error(), "twice") {
			t.Errorf("%q becomes %q: %v", args, got, err)
		}
		var o map[string]any
		if json.Unmarshal(got, &o) == nil && o["hidden"] != nil && o["hidden"] != "***" {
			t.Errorf("hidden is shown: %s", got)
		}
	})
}
