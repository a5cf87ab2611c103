//go:build linux && (amd64 || arm64)

package interpreter

import (
	"context"
	"strings"
	"testing"
	"time"

	"gatehouse/internal/sandbox"
)

// tongue is how the same things are said in each language.
type tongue struct {
	language                                    Language
	program                                     string
	set, get, define, use, fail, forever, leave string
	errorName                                   string
}

var tongues = []tongue{
	{Python, "python3", "x = 41", "print(x)", "def f(n): return n + 1", "print(f(x))", "1/0", "while True: pass",
		"import os; os._exit(3)", "ZeroDivisionError"},
	{Node, "node", "const x = 41", "console.log(x)", "function f(n) { return n + 1 }", "console.log(f(x))",
		"null.x", "for (;;);", "process.exit(3)", "TypeError"},
	{Bash, "bash", "x=41", "echo $x", "f() { echo $(($1 + 1)); }", "f $x", "false", "while :; do :; done",
		"exit 3", ""},
}

func contextOf(t *testing.T, l tongue) Context {
	t.Helper()
	needs(t, l.program)
	k, err := NewContext(t.Context(), box(t, sandbox.Spec{}), l.language, "one")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(k.Close)
	return k
}

func TestContextsRemember(t *testing.T) {
	for _, l := range tongues {
		t.Run(string(l.language), func(t *testing.T) {
			t.Parallel()
			k := contextOf(t, l)
			for _, c := range []struct{ code, want string }{{l.set, ""}, {l.get, "41\n"}, {l.define, ""},
				{l.use, "42\n"}} {
				if r := do(t, k.Run, Code{Source: c.code}); r.Outcome != sandbox.OK || r.stdout != c.want ||
					r.err != nil {
					t.Errorf("%s: %+v, %v, %q, %q", c.code, r.Result, r.err, r.stdout, r.stderr)
				}
			}
			r := do(t, k.Run, Code{Source: l.fail})
			if r.Outcome != sandbox.Failed || r.Code != 1 || l.errorName != "" &&
				(r.Error == nil || r.Error.Name != l.errorName) {
				t.Errorf("%s: %+v, %+v", l.fail, r.Result, r.Error)
			}
			if r := do(t, k.Run, Code{Source: l.get}); r.stdout != "41\n" {
				t.Errorf("after an error: %+v, %q, %q", r.Result, r.stdout, r.stderr)
			}
		})
	}
}

func TestCodeInAContextIsInterrupted(t *testing.T) {
	for _, l := range tongues {
		t.Run(string(l.language), func(t *testing.T) {
			t.Parallel()
			k := contextOf(t, l)
			do(t, k.Run, Code{Source: l.set})
			if r := do(t, k.Run,
				Code{Source: l.forever, Timeout: 500 * time.Millisecond}); r.Outcome != sandbox.TimedOut ||
				r.StateLost {
				t.Errorf("at its deadline: %+v, %v, %q", r.Result, r.err, r.stderr)
			}
			done := make(chan Result)
			go func() {
				r, _ := k.Run(t.Context(), Code{Source: l.forever, Timeout: time.Minute})
				done <- r
			}()
			for stop := false; !stop; { // it may not have begun at the first
				select {
				case r := <-done:
					stop = true
					if r.Outcome == sandbox.TimedOut || r.Outcome == sandbox.OK || r.StateLost {
						t.Errorf("when asked: %+v", r)
					}
				case <-time.After(100 * time.Millisecond):
					k.Interrupt()
				}
			}
			if r := do(t, k.Run, Code{Source: l.get}); l.language != Bash && r.stdout != "41\n" || r.err != nil {
				t.Errorf("afterwards: %+v, %v, %q, %q", r.Result, r.err, r.stdout, r.stderr)
			}
		})
	}
}

func TestAContextBeginsAnewWhenItsInterpreterEnds(t *testing.T) {
	for _, l := range tongues {
		t.Run(string(l.language), func(t *testing.T) {
			t.Parallel()
			k := contextOf(t, l)
			do(t, k.Run, Code{Source: l.set})
			r := do(t, k.Run, Code{Source: l.leave})
			if r.Outcome != sandbox.Failed || r.Code != 3 || r.StateLost != (l.language != Bash) {
				t.Errorf("%+v, %v, %q", r.Result, r.err, r.stderr)
			}
			if r := do(t, k.Run, Code{Source: strings.ReplaceAll(l.set, "x", "y")}); r.Outcome != sandbox.OK {
				t.Errorf("%+v, %v, %q", r.Result, r.err, r.stderr)
			}
		})
	}
}

// What the code prints, what its programs print and what it shows go different
// ways, and a piece ends after all of it.
func TestAPieceEndsAfterAllThatCameOfIt(t *testing.T) {
	k := contextOf(t, tongues[0])
	long := strings.Repeat("long\n", 30_000)
	for range 20 {
		for _, c := range []struct {
			code, stdout, stderr string
			parts                int
		}{
			{"print('a')", "a\n", "", 0},
			{"pass", "", "", 0},
			{"import os, sys; print('a'); os.system('echo b'); print('c'); n = os.write(1, b'd\\n'); print('e')",
				"a\nb\nc\nd\ne\n", "", 0},
			{"print('o'); print('e', file=sys.stderr); n = os.write(2, b'f\\n')", "o\n", "e\nf\n", 0},
			{"display(1); print('a'); display(2); print('b', end='')", "a\nb", "", 2},
			{"print('long\\n' * 30000, end='')", long, "", 0},
			{"x = os.system('head -c 150000 /dev/zero | tr \"\\\\0\" l')", strings.Repeat("l", 150_000), "", 0},
			{"'a'", "", "", 1},
		} {
			r := do(t, k.Run, Code{Source: c.code})
			if r.Outcome != sandbox.OK || r.err != nil || r.stdout != c.stdout || r.stderr != c.stderr ||
				len(r.parts) != c.parts {
				t.Fatalf("%s: %+v, %v, %d bytes %.40q, %q, %d parts", c.code, r.Result, r.err, len(r.stdout),
					r.stdout, r.stderr, len(r.parts))
			}
		}
	}
}

// Code can take the ways away by which it is talked to.
func TestAContextGoesOnWhateverCodeDoesToItsFiles(t *testing.T) {
	needs(t, "python3")
	for name, code := range map[string]string{
		"closes all":               "import os; os.closerange(3, 64)",
		"closes the standard ones": "import os; os.closerange(0, 3)",
		"closes sys's":             "import sys; sys.stdout.close(); sys.stderr.close(); sys.stdin.close()",
		"puts others there": "import os\nfor fd in range(3, 32):\n  try: os.dup2(2, fd)\n" +
			"  except OSError: pass",
		"leaves a child": "import os, time\nif os.fork() == 0:\n  time.sleep(0.05); print('late'); os._exit(0)",
		"leaves a child with files": "import os, time\nif os.fork() == 0:\n  time.sleep(0.05)\n" +
			"  for fd in range(16):\n    try: os.write(fd, b'late\\n')\n    except OSError: pass\n  os._exit(0)",
		"leaves a child that goes on as if it were the context": "import os\npid = os.fork()",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			k, err := NewContext(t.Context(), box(t, sandbox.Spec{}), Python, "one")
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(k.Close)
			r := do(t, k.Run, Code{Source: code, Timeout: 30 * time.Second})
			if r.err != nil || r.Outcome != sandbox.OK && r.Outcome != sandbox.Failed {
				t.Errorf("the code itself: %+v, %v, %q", r.Result, r.err, r.stderr)
			}
			for range 3 { // what is late comes meanwhile, and may take an interpreter along
				r = do(t, k.Run, Code{Source: "import time; time.sleep(0.04); 6 * 7", Timeout: 30 * time.Second})
			}
			if r.Outcome != sandbox.OK || len(r.parts) != 1 {
				t.Errorf("%+v, %v, %q, %q", r.Result, r.err, r.stdout, r.stderr)
			}
		})
	}
}

func TestContextsShowWhatTheirCodeEndsWith(t *testing.T) {
	for _, l := range tongues[:2] {
		t.Run(string(l.language), func(t *testing.T) {
			k := contextOf(t, l)
			r := do(t, k.Run, Code{Source: "20 + 22"})
			if len(r.parts) != 1 || r.parts[0].MIME != "text/plain" || string(r.parts[0].Data) != "42" {
				t.Errorf("%+v, %q", r.parts, r.stderr)
			}
			if r := do(t, k.Run, Code{Source: "[1, 2]"}); len(r.parts) != 1 || r.parts[0].MIME != "application/json" {
				t.Errorf("%+v, %q", r.parts, r.stderr)
			}
		})
	}
	k := contextOf(t, tongues[1])
	if r := do(t, k.Run,
		Code{Source: "const v = await new Promise(r => setTimeout(() => r(7), 5)); console.log(v)"}); r.stdout != "7\n" {
		t.Errorf("%+v, %q, %q", r.Result, r.stdout, r.stderr)
	}
}

func TestBashRemembersMoreThanVariables(t *testing.T) {
	k := contextOf(t, tongues[2])
	do(
		t,
		k.Run,
		Code{
			Source: "cd /tmp; export E=exported; declare -A map=([k]='v w'); list=(a 'b c'); shopt -s nullglob; " +
				"text=$'two\nlines'; local_='q\"uo`te'",
		},
	)
	r := do(
		t,
		k.Run,
		Code{
			Source: "pwd; env | grep '^E='; echo \"${map[k]}|${list[1]}|$text|$local_\"; shopt -q nullglob && echo set",
		},
	)
	if want := "/tmp\nE=exported\nv w|b c|two\nlines|q\"uo`te\nset\n"; r.stdout != want {
		t.Errorf("%q, want %q: %q", r.stdout, want, r.stderr)
	}
}

func TestCodeRunsFromAFile(t *testing.T) {
	b := box(t, sandbox.Spec{})
	for _, c := range []struct {
		language Language
		program  string
		code     string
	}{
		{Python, "python3", "import sys; print(sys.stdin.read())"},
		{Node, "node", "console.log(require('fs').readFileSync(0, 'utf8'))"},
		{Bash, "bash", "[[ 1 ]] && cat; echo"}, {Shell, "sh", "cat; echo"},
	} {
		t.Run(string(c.language), func(t *testing.T) {
			needs(t, c.program)
			r := do(t, fileRunner(b, c.language), Code{Source: c.code, Stdin: []byte("in"), Timeout: time.Minute})
			if r.Outcome != sandbox.OK || r.stdout != "in\n" {
				t.Errorf("%+v, %v, %q, %q", r.Result, r.err, r.stdout, r.stderr)
			}
		})
	}
	entries, _, err := b.(sandbox.Files).List(t.Context(), "/tmp", "", 0)
	if err != nil || len(entries) != 0 {
		t.Errorf("left: %v, %v", entries, err)
	}
}

func fileRunner(b sandbox.Sandbox, l Language) func(context.Context, Code) (Result, error) {
	return func(ctx context.Context, c Code) (Result, error) { return RunFile(ctx, b, l, c) }
}

// What the code declares is its own, whatever the interpreter calls what it is
// made of, and is there afterwards, also where it was waited for.
func TestANodeThatRemembersIsNotInTheWayOfItsCode(t *testing.T) {
	needs(t, "node")
	k, err := NewContext(t.Context(), box(t, sandbox.Spec{}), Node, "declares")
	if err != nil {
		t.Fatal(err)
	}
	defer k.Close()
	for _, c := range []struct{ code, shown, failed string }{
		{"const fs = require('fs'), vm = 1, util = 2, input = 3; let got = 4, stop = 5, turn = 6, prompt = 7; " +
			"fs.constants.R_OK", "4", ""},
		{"function run() { return 5 } function send() {} function tell() {} function part() {} function complain() " +
			"{} function evaluate() {}", "", ""},
		{"var require = 1; function display() {} run()", "5", ""},
		{"const late = await Promise.resolve(40); late + 1", "41", ""},
		{"late + 2", "42", ""},
		{"let again = await (async () => 'x')(); again", "x", ""},
		{"again + again", "xx", ""},
		{"await (async () => { throw new TypeError('no') })()", "", "TypeError"},
		{"await 1; null.x", "", "TypeError"},
		{"await 1; }", "", "SyntaxError"},
		{"async function f() { return await (1) } f()", "1", ""},
		{"/* await (1) */ 1 + 1", "2", ""},
	} {
		r := do(t, k.Run, Code{Source: c.code})
		failed := ""
		if r.Error != nil {
			failed = r.Error.Name
		}
		var shown strings.Builder
		for _, p := range r.parts {
			shown.Write(p.Data)
		}
		if r.err != nil || r.StateLost || shown.String() != c.shown || failed != c.failed {
			t.Errorf("%s: %+v, %v, shows %q, fails with %+v, prints %q", c.code, r.Result, r.err, shown.String(),
				r.Error, r.stderr)
		}
	}
}
