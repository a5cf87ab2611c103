package process

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// need skips a test where a program is missing.
func need(t *testing.T, programs ...string) string {
	t.Helper()
	for _, p := range programs {
		if _, err := exec.LookPath(p); err == nil {
			return p
		}
	}
	t.Skipf("none of %v is installed", programs)
	return ""
}

func TestDrivesAREPL(t *testing.T) {
	python := need(t, "python3")
	d := open(t, "")
	id := d.terminal(python, "-i", "-q")
	d.sees(id, ">>> ")
	d.do("input", args{"id": id, "input": "6 * 7000\n"})
	d.sees(id, "42000")
	d.do("input", args{"id": id, "input": "for i in range(2):\n    print('turn', i * 100)\n\n"})
	d.sees(id, "turn 100")
	// A terminal shows what is typed before the program reads it, and an interrupt
	// throws that away: it has to be seen that the line runs. It sleeps in short
	// turns, because Python misses an interrupt that comes just before a sleep.
	d.do(
		"input",
		args{"id": id, "input": "import time; print('as' + 'leep'); [time.sleep(0.01) for _ in range(10**6)]\n"},
	)
	d.sees(id, "asleep")
	d.do("input", args{"id": id, "keys": []string{"C-c"}})
	d.sees(id, "KeyboardInterrupt")
	d.do("input", args{"id": id, "input": "exit(5)\n"})
	if r := d.ended(id); r.Status != "exited" || *r.ExitCode != 5 {
		t.Errorf("%+v", r)
	}
}

func TestDrivesAShell(t *testing.T) {
	bash := need(t, "bash")
	d := open(t, "")
	id := d.terminal(bash, "--norc", "-i")
	d.sees(id, "$")
	d.do("input", args{"id": id, "input": "echo $((6*7))-$COLUMNS; tty\n"})
	d.sees(id, "42-80")
	d.sees(id, "/dev/pts/")
	d.do("input", args{"id": id, "input": "echo first\n"})
	d.sees(id, "\nfirst\n$") // keys mean something else to the terminal until it is bash that reads
	d.do("input", args{"id": id, "keys": []string{"Up", "Backspace", "Backspace", "X", "Y", "Enter"}})
	d.sees(id, "\nfirXY\n$") // before its prompt, readline sets the size that it found a moment ago
	d.do("resize", args{"id": id, "cols": 100, "rows": 30})
	d.do("input", args{"id": id, "input": "stty size\n"})
	d.sees(id, "30 100")
	d.do("input", args{"id": id, "input": "sleep 1000 & sleep 1000\n"}) // groups of their own, in one session
	d.sees(id, "[1]")
	d.do("stop", args{"id": id, "grace": 1})
	rec := d.m.(*manager).records[id]
	if u, err := rec.child.Usage(); err != nil || u.Processes != 0 {
		t.Errorf("left: %+v, %v", u, err)
	}
}

func TestDrivesAnEditor(t *testing.T) {
	vim := need(t, "vim.tiny", "vim", "vi")
	d := open(t, "")
	name := filepath.Join(d.dir.List()[0].Path, "poem.txt")
	if err := os.WriteFile(name, []byte("roses are red\nviolets are bleu\nthe end\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	id := d.terminal(vim, "-u", "NONE", "-N", "-n", "poem.txt")
	r := d.sees(id, "violets are bleu")
	if !strings.HasPrefix(r.Screen, "roses are red\n") || !strings.Contains(r.Screen, "\n~\n") {
		t.Errorf("the screen is\n%s", r.Screen)
	}
	d.do("input", args{"id": id, "input": "/bleu\n"})
	d.do("input", args{"id": id, "input": "cwblue"})
	d.sees(id, "violets are blue")
	d.do("input", args{"id": id, "keys": []string{"Escape"}, "input": ""})
	d.do("input", args{"id": id, "input": "Gosugar is sweet"})
	d.sees(id, "sugar is sweet")
	d.do("input", args{"id": id, "keys": []string{"Escape", "Up", "0", "i", "#", "Escape"}})
	d.sees(id, "#the end")
	d.do("input", args{"id": id, "input": ":wq\n"})
	if r := d.ended(id); *r.ExitCode != 0 {
		t.Errorf("%+v", r)
	}
	if b, _ := os.ReadFile(name); string(b) != "roses are red\nviolets are blue\n#the end\nsugar is sweet\n" {
		t.Errorf("the file is %q", b)
	}
}

func TestAnswersAPasswordPrompt(t *testing.T) {
	bash := need(t, "bash")
	d := open(t, "")
	id := d.terminal(
		bash, "-c", `read -r -s -p "Password: " p; echo; [ "$p" = "open sesame" ] && echo welcome || echo go away`,
	)
	d.sees(id, "Password:")
	d.do("input", args{"id": id, "input": "open sesame", "keys": []string{"Enter"}})
	d.sees(id, "welcome")
	if r := d.ended(id); strings.Contains(r.Output, "sesame") {
		t.Errorf("it was shown: %q", r.Output)
	}
}

func TestATerminalsOutputIsPlain(t *testing.T) {
	d := open(t, "")
	id := d.terminal("printf", `\033[1;31mred\033[0m\n\033]0;title\007next\n`)
	r := d.ended(id)
	if r.Output != "red\nnext\n" {
		t.Errorf("%q", r.Output)
	}
	if raw := d.do("output", args{"id": id, "raw": true}); !strings.Contains(raw.Output, "\x1b[1;31mred") {
		t.Errorf("raw: %q", raw.Output)
	}
	if s := d.do("screen", args{"id": id}); s.Screen != "red\nnext" || s.Title != "title" || s.Cols != 80 ||
		s.Rows != 24 || s.CursorRow != 2 {
		t.Errorf("%+v", s)
	}
	if _, code := d.try("screen", args{"id": d.sh("exit 0")}); code != "unsupported" {
		t.Errorf("no terminal: %q", code)
	}
}

func TestFindsPorts(t *testing.T) {
	python := need(t, "python3")
	d := open(t, "")
	id := d.do("start", args{"command": python, "args": []string{"-c", "import socket,time\ns=socket.socket(); " +
		"s.bind(('127.0.0.1',0)); s.listen(); print(s.getsockname()[1], flush=True); time.sleep(1000)"}}).ID
	r := d.do("output", args{"id": id, "wait": "port", "timeout": 45})
	port := strings.TrimSpace(d.do("output", args{"id": id, "wait": "regexp", "match": `\d+\n`}).Output)
	if r.TimedOut || len(r.Ports) != 1 || port != itoa(r.Ports[0]) {
		t.Errorf("found %v, want %s", r.Ports, port)
	}
	if l := d.do("list", args{"usage": true}).Processes[0]; len(l.Ports) != 1 || l.Memory == 0 {
		t.Errorf("%+v", l)
	}
}
