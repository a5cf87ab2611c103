package shellpolicy

import (
	"strings"
	"testing"
)

// verdicts are command lines, most of them known tricks to get around lists
// of words, with what is decided about each.
//
// D is denied, U unclear, N not on the allow list, A allowed; the first is
// for deny rm*, the second for allow ls* cat echo "git status*", the third
// for both, with bash; where the language matters, a fourth is for sh.
var verdicts = []struct{ want, line string }{
	// Plain ones.
	{"AAA", `ls`},
	{"AAA", `ls -l /tmp`},
	{"AAA", `lsblk`},
	{"DND", `rm -rf /`},
	{"DND", `rmdir x`},
	{"ANN", `id`},
	{"AAA", `git status -s`},
	{"ANN", `git push`},
	{"AAA", ``},
	{"AAA", `# rm -rf /`},
	{"AAA", `echo rm -rf /`},
	{"AAA", `echo 'rm; rm' "rm" \; rm`},
	{"AAA", `x=1`},

	// Lists, pipes, groups.
	{"DND", `ls; rm x`},
	{"DND", "ls\nrm x"},
	{"DND", `ls && rm x`},
	{"DND", `false || rm x`},
	{"DND", `ls | rm x`},
	{"DND", `ls |& rm x`},
	{"DND", `ls & rm x`},
	{"DND", `ls;rm x`},
	{"DND", `ls&rm x&`},
	{"DND", `(rm x)`},
	{"UUU", `((rm x) | ls)`},
	{"UUU", `((rm x); (ls))`},
	{"DND", `( (rm x) )`},
	{"DND", `{ rm x; }`},
	{"DND", `! rm x`},
	{"DND", "ls \\\n; r\\\nm x"},
	{"DND", `ls # x` + "\n" + `rm x`},

	// Substitutions.
	{"DND", `echo $(rm x)`},
	{"DND", "echo `rm x`"},
	{"DND", "echo \"`rm x`\""},
	{"DND", `echo "$(rm x)"`},
	{"DND", `echo "a ${y:-$(rm x)} b"`},
	{"DND", `echo $(echo $(echo $(rm x)))`},
	{"DND", "echo `echo \\`rm x\\``"},
	{"DND", `cat <(rm x)`},
	{"DND", `ls > >(rm x)`},
	{"DND", `x=$(rm x)`},
	{"DND", `x=$(rm x) ls`},
	{"DND", `export x=$(rm x)`},
	{"DUD", `echo $((1+$(rm x)))`},
	{"DUD", `((x=$(rm x)))`},
	{"DND", `[[ -n $(rm x) ]]`},
	{"DND", `a=($(rm x))`},
	{"DUD", `echo ${a[$(rm x)]}`},
	{"DND", `echo ${x//$(rm x)/y}`},
	{"DND", `ls > $(rm x)`},
	{"DND", "cat <<E\n$(rm x)\nE"},
	{"AAA", "cat <<'E'\n$(rm x)\nE"},
	{"UUU", "cat <<E\n\\\nE\nrm x\nE\n"},
	{"UUU", "echo $(cat <<E\nE)\nrm x\nE\n)"},
	{"UUU", "cat <<$'E'\nrm x\nE"},
	{"DND", "cat <<E\\E\nEE\nrm x\nE\\E"},
	{"AAA", "echo \"$(cat <<'E'\n$(rm x)\nE\n)\""},
	{"UUU", `[[ a == @($(rm x)) ]]`},
	{"UUU", "case a in +(`rm x`)) ls;; esac"},
	{"DND", `cat <<< $(rm x)`},
	{"DND", `case $(rm x) in *) ls;; esac`},
	{"DND", `for i in $(rm x); do ls; done`},
	{"DUD", `let x=$(rm x)`},
	{"DND", `echo {a,$(rm x)}`},
	{"UUU", `echo $((rm x) | cat)`},
	{"DUD", `echo $[$(rm x)]`},

	// Compound commands.
	{"DND", `if rm x; then ls; fi`},
	{"DND", `if ls; then ls; elif ls; then rm x; fi`},
	{"DND", `if ls; then ls; else rm x; fi`},
	{"DND", `while rm x; do ls; done`},
	{"DND", `until ls; do rm x; done`},
	{"DND", `for i in 1 2; do rm $i; done`},
	{"DND", `for ((;;)); do rm x; done`},
	{"DND", `select i in a; do rm x; done`},
	{"DND", `case x in x) rm x;; esac`},
	{"DND", `f() { rm x; }; f`},
	{"DND", `function ls { rm x; }; ls`},
	{"DND", `ls() { rm x; }; ls`},
	{"DND", `coproc rm x`},
	{"DND", `time rm x`},
	{"DND", `time -p rm x`},
	{"DND", `[[ -f x ]] && rm x`},

	// Ways to write a name.
	{"DND", `/bin/rm x`},
	{"DND", `/usr/bin/../bin/rm x`},
	{"DND", `./rm x`},
	{"DND", `~/bin/rm x`},
	{"DND", `"$HOME"/bin/rm x`},
	{"DND", `"$HOME/bin/rm" x`},
	{"DND", `\rm x`},
	{"DND", `r\m x`},
	{"DND", `'rm' x`},
	{"DND", `"rm" x`},
	{"DND", `r""m x`},
	{"DND", `r''m x`},
	{"DND", `'r'"m" x`},
	{"DND", `$'rm' x`},
	{"DND", `$'\x72\x6d' x`},
	{"DND", `$'\162\155' x`},
	{"DND", `$'\u0072m' x`},
	{"DND", `{rm,x}`},
	{"DND", `{rm,-rf,/}`},
	{"DND", `{,rm} x`},
	{"DND", `{r,}m x`},
	{"DND", `r{m,mdir} x`},
	{"DND", `RM x`},
	{"DND", `rm.exe x`},
	{"DND", `>/dev/null rm x`},
	{"DND", `2>&1 rm x`},
	{"DND", `a=1 b=2 rm x`},
	{"AAA", `l\s`},
	{"AAA", `l""s`},
	{"AAA", `$'\x6c\x73'`},
	{"AAA", `{ls,-l}`},
	{"AAA", `/bin/ls`},
	{"ANN", `/tmp/ls`},
	{"ANN", `./ls`},
	{"ANN", `/bin/../tmp/ls`},

	// Unknown names.
	{"UUU", `$x`},
	{"UUU", `${x}`},
	{"UUU", `$x y`},
	{"UUU", `"$x" y`},
	{"UUU", `x=rm; $x y`},
	{"UUU", `a=r; b=m; $a$b y`},
	{"UUU", `r$x y`},
	{"UUU", `rm$IFS-rf$IFS/`},
	{"UUU", `ls$IFS-l`},
	{"UUU", `r${u}m x`},
	{"UUU", `r$@m x`},
	{"UUU", `$(echo rm) x`},
	{"UUU", "`echo rm` x"},
	{"UUU", `$(printf '\162\155') x`},
	{"UUU", `/bin/r? x`},
	{"UUU", `/bin/[r]m x`},
	{"UUU", `/???/r* x`},
	{"UUU", `${x:-rm} y`},
	{"UUU", `${HOME:0:1}bin${HOME:0:1}rm x`},
	{"UUU", `set -- rm x; "$@"`},
	{"UUU", `"$@"`},
	{"UUU", `$0 x`},
	{"UUU", `a=(rm x); "${a[@]}"`},
	{"UUU", `${!x} y`},
	{"UUU", `{a..z} x`},
	{"UUU", `$x/rm y`},
	{"UUU", `@(rm|x) y`},

	// Programs that run others.
	{"DND", `env rm x`},
	{"DND", `env -i rm x`},
	{"DND", `env A=1 B=2 rm x`},
	{"DND", `env -u A -C /tmp rm x`},
	{"DND", `env --unset=A -- rm x`},
	{"UUU", `env -S 'rm x'`},
	{"UUU", `env $x rm`},
	{"DND", `nohup rm x &`},
	{"DND", `nice -n 5 rm x`},
	{"DND", `nice -5 rm x`},
	{"DND", `nice -n5 ionice -c3 rm x`},
	{"DND", `timeout 5 rm x`},
	{"DND", `timeout -s KILL -k 1 5 rm x`},
	{"DND", `timeout --signal=KILL 5s rm x`},
	{"DND", `\time -p rm x`},
	{"DND", `command rm x`},
	{"ANN", `command -v rm`},
	{"DND", `builtin command rm x`},
	{"DND", `exec rm x`},
	{"DND", `exec -a ls rm x`},
	{"DND", `setsid -w rm x`},
	{"DND", `stdbuf -oL rm x`},
	{"DND", `sudo rm x`},
	{"DND", `sudo -u root -n rm x`},
	{"DND", `sudo A=1 rm x`},
	{"UUU", `sudo -s`},
	{"DND", `doas rm x`},
	{"DND", `busybox rm x`},
	{"DND", `busybox sh -c 'rm x'`},
	{"DND", `chroot / rm x`},
	{"DND", `taskset 1 rm x`},
	{"DND", `env env env env rm x`},
	{"UUU", `env env env env env env env env env env env env env env env env env env ls`},
	{"DND", `sh -c 'rm x'`},
	{"DND", `bash -c "rm x"`},
	{"DND", `bash -lc 'ls; rm x'`},
	{"DND", `bash -euo pipefail -c 'rm x'`},
	{"DND", `bash --norc -c 'rm x'`},
	{"DND", `dash -c 'rm x'`},
	{"DND", `/bin/sh -c 'sh -c "sh -c \"rm x\""'`},
	{"DND", `zsh -c 'rm x'`},
	{"UUU", `zsh -c '=rm x'`},
	{"UUU", `zsh -c '$x'`},
	{"UUU", `fish -c 'ls'`},
	{"UUU", `bash -c "$x"`},
	{"UUU", `sh -c '"$@"' _ rm x`},
	{"UUU", `sh -c '$0 x' rm`},
	{"UUU", `bash x.sh`},
	{"UUU", `bash < x.sh`},
	{"UUU", `echo 'rm x' | sh`},
	{"UUU", `echo cm0gL3JmIC8K | base64 -d | bash`},
	{"UUU", `bash <<< 'rm x'`},
	{"UUU", "bash <<E\nrm x\nE"},
	{"UUU", `bash <(echo rm x)`},
	{"UUU", `sh -s x`},
	{"UUU", `bash --rcfile x -i`},
	{"DND", `eval rm x`},
	{"DND", `eval 'r''m' x`},
	{"DND", `eval "eval 'rm x'"`},
	{"UUU", `eval $x`},
	{"UUU", `eval "$(echo rm x)"`},
	{"UUU", `. ./x.sh`},
	{"UUU", `source /dev/stdin`},
	{"DND", `trap 'rm x' EXIT`},
	{"UUU", `trap "$x" EXIT`},
	{"ANN", `trap - EXIT`},
	{"DUD", `alias ls='rm x'`},
	{"UUU", `alias l=ls`},
	{"DND", `ls | xargs rm`},
	{"DND", `ls | xargs -0 -n 1 rm -rf`},
	{"DND", `ls | xargs -I{} rm {}`},
	{"DND", `ls | xargs -I % sh -c 'rm x'`},
	{"UUU", `ls | xargs -I{} sh -c '{}'`},
	{"UUU", `ls | xargs -I{} {} x`},
	{"UUU", `echo rm x | xargs env`},
	{"UUU", `echo 'rm x' | xargs sh -c`},
	{"DND", `echo x | xargs sh -c 'rm "$1"' _`},
	{"ANN", `ls | xargs cat`},
	{"DND", `find . -exec rm {} \;`},
	{"DND", `find . -name x -exec rm {} +`},
	{"DND", `find . -execdir sh -c 'rm "$1"' _ {} \;`},
	{"DND", `find . -exec ls {} \; -ok rm {} \;`},
	{"UUU", `find . -exec {} \;`},
	{"UUU", `find . -exec sh -c 'ls {}' \;`},
	{"DND", `find . -delete`},
	{"ANN", `find . -name '*.go'`},
	{"ANN", `find . -name *.go`},
	{"UUU", `find . $x`},
	{"UUU", `find "$x"`},
	{"ANN", `find . -fprint /etc/x`},
	{"DND", `parallel rm ::: x`},
	{"UUU", `parallel ::: 'rm x'`},
	{"UUU", `parallel {} x ::: rm`},
	{"DND", `watch -n 1 rm x`},
	{"DND", `watch 'ls; rm x'`},
	{"UUU", `ssh host rm x`},
	{"UUU", `su -c 'rm x'`},
	{"UUU", `flock x rm y`},
	{"UUU", `script -c 'rm x' /dev/null`},
	{"UUU", `/lib64/ld-linux-x86-64.so.2 /bin/rm x`},
	{"UUU", `at now <<< 'rm x'`},
	{"UUU", `strace -f rm x`},

	// Commands in other languages.
	{"UUU", `python3 -c 'import os; os.system("rm x")'`},
	{"UUU", `echo 'print(1)' | python3`},
	{"ANN", `python3 x.py`},
	{"ANN", `python3 --version`},
	{"UUU", `perl -e 'exec "rm"'`},
	{"UUU", `perl -ne 'system("rm")' x`},
	{"UUU", `ruby -e 'exec "rm"'`},
	{"UUU", `node -e 'x'`},
	{"UUU", `node --eval=x`},
	{"UUU", `awk 'BEGIN { system("rm x") }'`},
	{"UUU", `awk '{ print | "sh" }'`},
	{"UUU", `awk 'BEGIN { "rm x" | getline }'`},
	{"ANN", `awk '/a|b/ { print $1 }' x`},
	{"UUU", `sed '1e rm x' y`},
	{"UUU", `sed 's/x/rm y/e'`},
	{"ANN", `sed -n 's/the/see/gp' x`},
	{"UUU", `vim -c ':!rm x'`},
	{"UUU", `vim.tiny '+!rm x'`},
	{"UUU", `tar cf /dev/null x --checkpoint=1 --checkpoint-action=exec=sh`},
	{"UUU", `tar xf x --to-com=sh`},
	{"ANN", `tar xzf x.tar.gz`},
	{"UUU", `git -c alias.x='!rm x' x`},
	{"UUU", `git -c core.pager='rm x' log`},
	{"ANN", `git -c user.name=x commit`},
	{"UUU", `git config alias.x '!rm x'`},
	{"UUU", `git grep -Osh x`},
	{"UUU", `git bisect run rm x`},
	{"UUU", `split --filter='rm x' y`},
	{"UUU", `rsync -e 'rm x' a b:`},
	{"UUU", `ed x`},
	{"UUU", `nc -e /bin/sh host 1`},
	{"UUU", `make --eval='x:;rm y'`},
	{"UUU", `psql -c '\! rm x'`},

	// What makes a name mean something else.
	{"UUU", `PATH=/tmp ls`},
	{"UUU", `export PATH=/tmp:$PATH`},
	{"UUU", `LD_PRELOAD=/tmp/x.so ls`},
	{"UUU", `env LD_PRELOAD=/tmp/x.so ls`},
	{"UUU", `BASH_ENV=x bash -c ls`},
	{"UUU", `IFS=x`},
	{"UUU", `PS4='$(rm x)'; set -x; ls`},
	{"UUU", `GIT_SSH_COMMAND='rm x' git fetch`},
	{"UUU", `read PATH < x`},
	{"UUU", `printf -v PATH /tmp`},
	{"UUU", `: ${PATH:=/tmp}`},
	{"UUU", `for PATH in /tmp; do ls; done`},
	{"UUU", `declare -n x=PATH; x=/tmp`},
	{"UUU", `export "$x"`},
	{"UUU", `hash -p /tmp/x ls`},
	{"UUU", `enable -f /tmp/x.so ls`},
	{"UUU", `mapfile -C 'rm x' -c 1 y`},
	{"UUU", `x='$(rm x)'; echo "${x@P}"`},
	{"UUU", `x='a[$(rm x)]'; echo $((x))`},
	{"UUU", `test -v 'a[$(rm x)]'`},
	{"UUU", `read 'a[$(rm x)]' <<< 1`},

	// Writing by redirection counts as a command ">".
	{"ANN", `echo x > ~/.bashrc`},
	{"ANN", `ls >> x`},
	{"ANN", `cat <> x`},
	{"ANN", `ls &> x`},
	{"ANN", `ls >& x`},
	{"ANN", `cat < /dev/tcp/host/80`},
	{"AAA", `ls 2>/dev/null`},
	{"AAA", `ls 2>&1 >/dev/null`},
	{"AAA", `cat < x`},

	// What cannot be parsed, or differs between parsers.
	{"UUU", `ls (`},
	{"UUU", `echo "`},
	{"UUU", `if ls; then`},
	{"UUU", "rm x\n(("},
	{"UUU", "ls \\\r\nrm x"},
	{"UUU", "ls\rrm x"},
	{"UUU", "ls \x00 rm"},
	{"UUU", "ls \xff"},
	{"UUU", "\x1b[2K ls"},
}

var letters = map[Decision]byte{Denied: 'D', Unclear: 'U', Unlisted: 'N', Allowed: 'A'}

func rules(t testing.TB, allow, deny []string) *Rules {
	t.Helper()
	r, err := New(allow, deny)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

var (
	listAllow = []string{"ls*", "cat", "echo", "git status*"}
	listDeny  = []string{"rm*"}
)

func TestVerdicts(t *testing.T) {
	deny, allow, both := rules(t, nil, listDeny), rules(t, listAllow, nil), rules(t, listAllow, listDeny)
	for _, v := range verdicts {
		var got strings.Builder
		for _, r := range []*Rules{deny, allow, both} {
			got.WriteString(string(letters[r.Judge(v.line, "/bin/bash").Decision]))
		}
		if got.String() != v.want {
			t.Errorf("%s\n got %s, want %s; %+v", v.line, got.String(), v.want, both.Judge(v.line, "bash"))
		}
	}
	t.Logf("%d lines", len(verdicts))
}

// Whatever bash is not let run, sh is not let run either.
func TestShIsNoLessStrict(t *testing.T) {
	for _, r := range []*Rules{rules(t, nil, listDeny), rules(t, listAllow, nil)} {
		for _, v := range verdicts {
			if as := r.Judge(v.line, "sh"); as.Allowed() && !r.Judge(v.line, "bash").Allowed() {
				t.Errorf("%s is allowed", v.line)
			}
		}
	}
}

// sh may be dash or bash, which read some lines differently.
func TestShIsSeveralShells(t *testing.T) {
	r := rules(t, []string{"ls", "cat"}, nil)
	for line, want := range map[string]Decision{
		"ls | cat":          Allowed,
		"ls &>/dev/null id": Unclear,
		"((id))":            Unclear,
		"{ls,-l}":           Unlisted,
		"[[ x = y ]] && ls": Unlisted,
		"cat <(ls)":         Unclear,
	} {
		if v := r.Judge(line, "sh"); v.Decision != want {
			t.Errorf("%s: %+v", line, v)
		}
	}
}

func TestPatterns(t *testing.T) {
	for _, c := range []struct {
		allow, deny, line string
		want              Decision
	}{
		{"", "git push*", `git push`, Denied},
		{"", "git push*", `git push --force`, Denied},
		{"", "git push*", `git -C dir push`, Denied},
		{"", "git push*", `git --no-pager -C dir push origin`, Denied},
		{"", "git push*", `git 'push' x`, Denied},
		{"", "git push*", `git pu"sh" x`, Denied},
		{"", "git push*", `GIT push`, Denied},
		{"", "git push*", `git commit -m push`, Allowed},
		{"", "git push*", `git log push`, Allowed},
		{"", "git push*", `git $x`, Unclear},
		{"", "git push*", `git "$x" y`, Unclear},
		{"", "git push*", `git p$x`, Unclear},
		{"", "git push*", `git log $x`, Allowed},
		{"", "git push*", `echo push | xargs git`, Unclear},
		{"", "git push*", `git p{ush,ull}`, Denied},
		{"", "rm -rf*", `rm -rf x`, Denied},
		{"", "rm -rf*", `rm -fr x`, Denied},
		{"", "rm -rf*", `rm -r -f x`, Denied},
		{"", "rm -rf*", `rm x -vrf`, Denied},
		{"", "rm -rf*", `rm --recursive --force x`, Denied},
		{"", "rm -rf*", `rm -R --force x`, Denied},
		{"", "rm -rf*", `rm -r x`, Allowed},
		{"", "rm -rf*", `rm -- -rf`, Denied},
		{"", "rm -rf /", `rm -fr /`, Denied},
		{"", "rm -rf /", `rm -fr /tmp/x`, Allowed},
		{"", "rm -rf /", `rm -fr "$x"`, Unclear},
		{"", "*", `ls`, Denied},
		{"", "[k]ill", `kill 1`, Denied},
		{"", "/opt/x", `/opt/x`, Denied},
		{"", "/opt/x", `x`, Allowed},
		{"", "> /etc/*", `ls > /etc/x`, Denied},
		{"", "> /etc/*", `ls > x`, Allowed},
		{"", "> /etc/*", `ls > "$x"`, Unclear},
		{"", "dd*", `d''d if=x`, Denied},

		{"git status*", "", `git status`, Allowed},
		{"git status*", "", `git status -s`, Allowed},
		{"git status*", "", `git $x`, Unlisted},
		{"git status*", "", `git status $x`, Allowed},
		{"git status", "", `git status -s`, Unlisted},
		{"git status", "", `git status $x`, Unlisted},
		{"git status", "", `git  'status'`, Allowed},
		{"git [sl]*", "", `git log`, Allowed},
		{"git ?????", "", `git "$x"`, Unlisted},
		{"ls*", "", `lsblk`, Allowed},
		{"ls", "", `lsblk`, Unlisted},
		{"ls", "", `LS`, Unlisted},
		{"./configure", "", `./configure --x`, Allowed},
		{"configure", "", `./configure`, Unlisted},
		{"./*", "", `./a/b`, Allowed},
		{"ls,>", "", `ls > x`, Allowed},
		{"ls,> /tmp/*", "", `ls > /tmp/x`, Allowed},
		{"ls,> /tmp/*", "", `ls > /etc/x`, Unlisted},
		{"env,ls", "", `env ls`, Allowed},
		{"ls", "", `env ls`, Unlisted},
		{"xargs,ls", "", `xargs ls`, Allowed},
		{"find", "", `find . -exec id \;`, Unlisted},
		{"sh,ls", "", `sh -c 'ls'`, Allowed},
		{"sh", "", `sh -c 'ls'`, Unlisted},
		{"sh", "", `sh x.sh`, Unclear},
		{"python*", "", `python3 -c 'x'`, Unclear},
		{"python* *", "", `python3 -c 'x'`, Unclear},
		{"python3 -c x*", "", `python3 -c 'x'`, Allowed},
		{"git", "", `git status`, Allowed},
		{"git", "", `git -c alias.x='!rm y' x`, Unclear},
		{"", "rm*", `git -c alias.x='!rm y' x`, Unclear},
		{"tar", "", `tar xf a.tar --to-command=id`, Unclear},
		{"awk", "", `awk 'BEGIN { system("id") }'`, Unclear},
		{"make", "", `make --eval 'x:;id'`, Unclear},
		{"ssh", "", `ssh host id`, Unclear},
		{"ssh host *", "", `ssh host id`, Allowed},
		{"*", "", `python3 -c 'x'`, Unclear},
		{"*,python*", "rm*", `python3 -c 'x'`, Unclear},
		{"*,python* -c x", "rm*", `python3 -c 'x'`, Allowed},
		{"*", "rm*", `ls`, Allowed},
		{"*", "rm*", `rm`, Denied},
		{"[", "", `[ -f x ]`, Allowed},
	} {
		list := func(s string) (all []string) {
			if s != "" {
				all = strings.Split(s, ",")
			}
			return all
		}
		v := rules(t, list(c.allow), list(c.deny)).Judge(c.line, "bash")
		if v.Decision != c.want {
			t.Errorf("allow %q deny %q: %s: got %s, want %s; %+v", c.allow, c.deny, c.line, v.Decision, c.want, v)
		}
	}
}

// A verdict says which command and which pattern decided.
func TestVerdictExplains(t *testing.T) {
	v := rules(t, nil, []string{"dd", "rm*"}).Judge(`ls | (cat; env A=1 /bin/rm -r "$x")`, "sh")
	if v.Decision != Denied || v.Pattern != "rm*" || v.Command != "/bin/rm -r …" ||
		!strings.Contains(v.Reason, `"rm*"`) {
		t.Errorf("%+v", v)
	}
	if got, want := strings.Join(v.Commands, "|"), "ls|cat|env A=1 /bin/rm -r …|/bin/rm -r …"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	// A denial weighs more than what is unclear, wherever it stands.
	if v := rules(t, []string{"ls"}, []string{"rm"}).Judge(`$x; id; rm y`, "bash"); v.Decision != Denied {
		t.Errorf("%+v", v)
	}
	if v := rules(t, []string{"ls"}, nil).Judge(`./ls`, "bash"); !strings.Contains(v.Reason, "by its path") {
		t.Errorf("%+v", v)
	}
	if (Verdict{}).Allowed() {
		t.Error("the zero verdict allows")
	}
}

func TestWithoutPatternsNothingIsJudged(t *testing.T) {
	r := rules(t, nil, nil)
	for _, line := range []string{"rm -rf /", "if", "\xff", "$x"} {
		if !r.Empty() || !r.Judge(line, "fish").Allowed() {
			t.Errorf("%q is not allowed", line)
		}
	}
	if v := rules(t, []string{"*"}, nil).Judge("ls", "fish"); v.Decision != Unclear {
		t.Errorf("%+v", v)
	}
}

func TestLimits(t *testing.T) {
	r := rules(t, []string{"*"}, []string{"rm"})
	for name, line := range map[string]string{
		"long":     "echo " + strings.Repeat("x", MaxLine),
		"deep":     strings.Repeat("eval ", MaxDepth+2) + "ls",
		"many":     strings.Repeat("ls;", mostCommands+1),
		"words":    "ls " + strings.Repeat("{a,b,c,d,e,f,g,h} ", 2000),
		"nested":   strings.Repeat("( ", 20000) + "rm" + strings.Repeat(" )", 10000),
		"unclosed": strings.Repeat("$(", 30000),
		"braces":   "{rm," + strings.Repeat("{a,b}", 100) + "}",
		"amplify":  "eval " + strings.Repeat("'eval '", 10) + strings.Repeat("{a,b}", 6) + strings.Repeat("x", 9000),
	} {
		if v := r.Judge(line, "bash"); v.Allowed() {
			t.Errorf("%s: allowed", name)
		}
	}
	for _, bad := range [][]string{{""}, {" "}, {strings.Repeat("x", patternBytes+1)}, make([]string, mostPatterns+1)} {
		if _, err := New(bad, nil); err == nil {
			t.Errorf("%.20q is taken for patterns", bad)
		}
	}
}

func TestSteers(t *testing.T) {
	for name, want := range map[string]bool{"PATH": true, "LD_PRELOAD": true, "BASH_FUNC_ls%%": true, "GIT_PAGER": true,
		"GIT_AUTHOR_NAME": false, "FOO": false, "LANG": false} {
		if Steers(name) != want {
			t.Errorf("%s: %v", name, !want)
		}
	}
}

// Nothing that is fed to the judge stops it, a name that is denied is not
// hidden by what stands before or behind it on lines of their own, and no
// letter of a pattern is a mistake.
func FuzzJudge(f *testing.F) {
	for _, v := range verdicts {
		f.Add(v.line, "git push*")
	}
	f.Fuzz(func(t *testing.T, line, pattern string) {
		r, err := New([]string{"*"}, []string{"rm*", pattern})
		if err != nil {
			r = rules(t, []string{"*"}, []string{"rm*"})
		}
		for _, shell := range []string{"sh", "bash", "zsh"} {
			v := r.Judge(line, shell)
			if v.Allowed() != (v.Reason == "") {
				t.Errorf("%q: %+v", line, v)
			}
			if v := r.Judge("rm x\n"+line, shell); v.Allowed() {
				t.Errorf("rm before %q is allowed", line)
			}
		}
	})
}

// Where the kernel reports each program, a line is refused for what is sure, and for what only the line can tell.
func TestTheEarlyAnswer(t *testing.T) {
	for _, c := range []struct {
		allow, deny []string
		line        string
		want        Decision
	}{
		{nil, []string{"rm"}, "rm x", Denied}, {nil, []string{"rm"}, "sh -c 'env rm x'", Denied},
		{nil, []string{"rm"}, "git -c alias.x='!rm x' x", Allowed}, {nil, []string{"rm"}, "$x y", Allowed},
		{nil, []string{"rm", ">"}, "$x y", Unclear}, {nil, []string{"kill"}, "$x 1", Unclear},
		{nil, []string{"rm", ">"}, "sh -c \"$x\"", Unclear}, {nil, []string{">"}, "sh -c 'a > b'", Denied},
		{[]string{"git"}, nil, "git -c alias.x='!rm x' x", Allowed}, {[]string{"git"}, nil, "rm x", Unlisted},
		{[]string{"env with: ls"}, nil, "env ls", Allowed}, {[]string{"env with: ls"}, nil, "ls", Unlisted},
		{[]string{"sh"}, nil, "sh ./file", Allowed}, {[]string{"sh"}, nil, "sh -c 'ls > x'", Unlisted},
		{[]string{"sh"}, nil, "$x", Unclear}, {[]string{"*"}, nil, "eval $x", Unclear},
	} {
		if v := rules(t, c.allow, c.deny).JudgeEarly(c.line, "sh"); v.Decision != c.want {
			t.Errorf("%v %v %s: got %v (%s), want %v", c.allow, c.deny, c.line, v.Decision, v.Reason, c.want)
		}
	}
}
