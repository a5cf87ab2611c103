package shellpolicy

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
	"zzz", "zzz", "zzz", "zzz x", "echo ", ": ", "x", " ", " ", " ", "\n", "\n", ";", " ; ", "&", "&&", " | ", "||",
	"|&", "(", ")", " ( ", " ) ", "((", "))", "{ ", "; }", "{", "}",
	"$(", ")", "`", "`", "\"", "\"", "'", "'", "\\", "\\\n", "$x", "${x:-", "${x#", "${x/", "${x:", "}", "<<E\n",
	"\nE\n", "<<'E'\n", "<<-E\n", "\n\tE\n", "<<<", "E",
	"if ", "then ", "else ", "fi", "[[ ", " ]]", " == ", " =~ ", " -eq ", "@(", "!(", "+(", "case x in ", " in ",
	"esac", ";;", "for i in ", "for ((", "do ", "done", "function g ", "g() ",
	"time ", "-p ", "-- ", "! ", "!", "coproc ", "#", " #", "=", "v=", "a[", "]", "]=", "a=(", "+=", "$'", "$\"", "$((",
	"$[", "let ", "eval ", "\t", "> o", "<o", ">&2", "&> o", "<(", ">(",
	"{zzz,", ",", "{x,", "*", "?", "~", "..", "[", "command ", "builtin ", "exec ", "trap ", " EXIT", "export ",
	"declare ", "test ", "set -- ", "\"$@\"", "$1", "$*", "\\'", "\\\"", "\\`", "\\$", "\u00a0", "1", "+", "a", "@P}",
	"${!x", "${x@",
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

// tricks make a shell run zzz although the line hides it: with an allow list of
// echo alone, with zzz on a deny list, or with halves in the environment.
var tricks = []string{
	`a='x[$(zzz)]'; echo $((a))`, `a='x[$(zzz)]'; ((a))`, `a='x[$(zzz)]'; [[ $a -eq 0 ]]`,
	`a='x[$(zzz)]'; [[ a -eq 0 ]]`, `[[ $H$I -eq 0 ]]`, `echo $((H))`,
	`a=$H$I; echo ${b[a]}`, `a=$H$I; b[a]=1`, `a=$H$I; b=([a]=1)`, `a=$H$I; echo ${b:a}`, `a=$H$I; echo ${b:0:a}`,
	`let "a=$H$I"`, `for ((i=H;i<1;i++)); do echo; done`,
	`a=$H$I; printf -v "b[a]" x`, `printf -v "b[$H$I]" x`, `declare -i a=$H$I`, `declare -i a; a=$H$I`,
	`typeset -i a="$H$I"`, `local -i a="$H$I"`, `readonly -i a=$H$I`,
	`a=$H$I; unset "b[a]"`, `a=$H$I; read "b[a]" <<<x`, `a=$H$I; [[ -v b[a] ]]`, `a=$H$I; test -v "b[a]"`,
	`a=$H$I; [ -v 'b[a]' ]`, `a=$H$I; echo ${!a}`, `a=b; b=$H$I; echo $((a))`,
	`declare -a "a=([$H$I]=1)"`, `declare -A m; m[$H]=1; echo $((m))`, `echo $[H]`, `a=$H$I; echo $((1+a))`,
	`a=$H$I; echo $((a++))`, `a=$H$I; : $((b=a))`,
	`time -- zzz`, `time -p -- zzz`, `compgen -W '$(zzz)'`, `compgen -W "$H"`, `compgen -C zzz`, `complete -C zzz x`,
	`command -- zzz`, `exec -- zzz`, `builtin command zzz`,
	`{PATH}</dev/null; echo x`, `exec {PATH}</dev/null`, `coproc PATH { echo; }`, `echo $((PATH=0))`,
	`((PATH=1)); echo`, `: ${PATH:=x}`, `n=PATH; : ${!n:=x}`, `read PATH <<<bin`,
	`printf -v PATH bin`, `mapfile PATH <<<bin`, `getopts x PATH -x`, `for PATH in bin; do echo; done`,
	`select PATH in bin; do echo; done <<<1`, `declare PATH=bin`, `export PATH=bin`,
	`mapfile -C zzz -c 1 <<<x`, `wait -n -p 'b[H]'`, `trap zzz EXIT`, `a=zzz; $a`, `alias e=zzz; e`, `eval "z""zz"`,
	`PS4='$(zzz)'; set -x; echo`, `BASH_ENV=x bash -c :`,
}

// What hides in arithmetic, subscripts, options and variables reaches no shell.
//
//redteam:attack One function says yes: arithmetic, subscripts, options and variables of the shell run what a list refuses
func TestNoTrickGetsAroundAList(t *testing.T) {
	s := newShells(t)
	ran := 0
	for _, list := range []*Rules{rules(t, []string{"echo", ":", "test", "[", "true"}, nil),
		rules(t, nil, []string{"zzz"})} {
		for _, shell := range s.names {
			for _, line := range tricks {
				for _, halves := range [][]string{{"H=x[$(zzz)]", "I="}, {"H=x[$(z", "I=zz)]"}, {"H=$(zzz)", "I="}} {
					runs := s.runsWith(shell, line, halves)
					if runs {
						ran++
					}
					if list.Judge(line, shell).Allowed() && runs {
						t.Errorf("%s runs what no list lets it: %q with %q", shell, line, halves)
					}
				}
			}
		}
	}
	if ran == 0 {
		t.Error("no shell ran any of them, so that nothing was tried")
	}
	t.Logf("%d runs would have been had", ran)
}

// What is harmless stays so: a list that refuses everything is of no use.
func TestPlainArithmeticPasses(t *testing.T) {
	r := rules(t, []string{"echo", "test", "[", "true", "ls"}, nil)
	for _, line := range []string{
		`echo $((1+2*3))`, `echo $(( (1<<3) % 5 ))`, `[[ 1 -eq 2 ]] || echo x`, `[ "$x" -eq 3 ] && echo x`,
		`[[ $x == y* ]] && echo`, `[[ -f a && -n $x ]] && echo`,
		`for i in 1 2 3; do echo $i; done`, `echo "${a[0]}" "${a[@]}" "${#a[@]}" "${!a[@]}"`, `echo ${x:1:2} ${x: -1}`,
		`a=(1 2 3); echo "${a[@]}"`, `test -v x && echo`, `time ls -l`,
	} {
		if v := r.Judge(line, "bash"); !v.Allowed() {
			t.Errorf("%s: %+v", line, v)
		}
	}
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

func (s *shells) runs(shell, line string) bool { return s.runsWith(shell, line, nil) }

func (s *shells) runsWith(shell, line string, env []string) bool {
	mark := filepath.Join(s.dir, "ran")
	ctx, cancel := context.WithTimeout(s.t.Context(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, s.paths[shell], "-c", line)
	cmd.Dir, cmd.Env, cmd.WaitDelay = s.dir, append(
		[]string{"PATH=" + filepath.Join(s.dir, "bin"), "MARK=" + mark},
		env...), time.Second
	cmd.Run() // most lines fail, and that is well
	return os.Remove(mark) == nil
}
