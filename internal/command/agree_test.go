package command

import (
	"context"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

// pieces are what random lines are made of. zzz is the program that is denied.
var pieces = []string{
	"zzz", "zzz", "zzz", "zzz x", "echo ", ": ", "x", " ", " ", " ", "\n", "\n", ";", " ; ", "&", "&&", " | ", "||", "|&", "(", ")", " ( ", " ) ", "((", "))", "{ ", "; }", "{", "}",
	"$(", ")", "`", "`", "\"", "\"", "'", "'", "\\", "\\\n", "$x", "${x:-", "${x#", "${x/", "${x:", "}", "<<E\n", "\nE\n", "<<'E'\n", "<<-E\n", "\n\tE\n", "<<<", "E",
	"if ", "then ", "else ", "fi", "[[ ", " ]]", " == ", " =~ ", " -eq ", "@(", "!(", "+(", "case x in ", " in ", "esac", ";;", "for i in ", "for ((", "do ", "done", "function g ", "g() ",
	"time ", "-p ", "-- ", "! ", "!", "coproc ", "#", " #", "=", "v=", "a[", "]", "]=", "a=(", "+=", "$'", "$\"", "$((", "$[", "let ", "eval ", "\t", "> o", "<o", ">&2", "&> o", "<(", ">(",
	"{zzz,", ",", "{x,", "*", "?", "~", "..", "[", "command ", "builtin ", "exec ", "trap ", " EXIT", "export ", "declare ", "test ", "set -- ", "\"$@\"", "$1", "$*", "\\'", "\\\"", "\\`", "\\$", "\u00a0", "1", "+", "a", "@P}", "${!x", "${x@",
}

// A line that passes although it holds what is denied is given to the shells
// themselves, which must not run it.
func TestNoShellRunsWhatIsDenied(t *testing.T) {
	rounds := 20_000
	if os.Getenv("GATEHOUSE_TEST_ALL") != "" {
		rounds = 500_000
	}
	if n, err := strconv.Atoi(os.Getenv("GATEHOUSE_TEST_ROUNDS")); err == nil {
		rounds = n
	}
	r := rules(t, nil, []string{"zzz"})
	random := rand.New(rand.NewPCG(uint64(rounds), 7))
	if rounds != 20_000 {
		random = rand.New(rand.NewPCG(uint64(time.Now().UnixNano()), 7))
	}
	s := newShells(t)
	ran := 0
	for range rounds {
		var b strings.Builder
		for range 2 + random.IntN(14) {
			b.WriteString(pieces[random.IntN(len(pieces))])
		}
		line := b.String()
		if !strings.Contains(strings.NewReplacer("\\", "", "'", "", "\"", "", "\n", "").Replace(line), "zzz") {
			continue
		}
		for _, shell := range s.names {
			if !r.Judge(line, shell).Allowed() {
				continue
			}
			ran++
			if s.runs(shell, line) {
				t.Errorf("%s runs what is denied: %q", shell, line)
			}
		}
	}
	t.Logf("%d lines passed and were tried", ran)
}

// shells run lines in a folder where zzz is the only program.
type shells struct {
	t     *testing.T
	names []string
	paths map[string]string
	dir   string
}

func newShells(t *testing.T) *shells {
	s := &shells{t: t, dir: t.TempDir(), paths: map[string]string{}}
	for _, name := range []string{"bash", "dash"} {
		if path, err := exec.LookPath(name); err == nil {
			s.names = append(s.names, name)
			s.paths[name] = path
		}
	}
	if len(s.names) == 0 {
		t.Skip("neither bash nor dash is here")
	}
	if err := os.Mkdir(filepath.Join(s.dir, "bin"), 0o755); err != nil {
		t.Fatal(err)
	}
	script := "#!" + s.paths[s.names[0]] + "\n: > \"$MARK\"\n"
	if err := os.WriteFile(filepath.Join(s.dir, "bin", "zzz"), []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	return s
}

func (s *shells) runs(shell, line string) bool {
	mark := filepath.Join(s.dir, "ran")
	ctx, cancel := context.WithTimeout(s.t.Context(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, s.paths[shell], "-c", line)
	cmd.Dir, cmd.Env, cmd.WaitDelay = s.dir, []string{"PATH=" + filepath.Join(s.dir, "bin"), "MARK=" + mark}, time.Second
	cmd.Run() // most lines fail, and that is well
	return os.Remove(mark) == nil
}
