package shellpolicy

import (
	"slices"
	"strings"
)

// carriers are programs that run commands in a way that is not analyzed here, with the options that make them do
// so: long options as words, short ones as letters, "*" for always. Code in another language, such as the text
// after python -c, counts as such a command.
var carriers = map[string]string{
	"python": "c", "pypy": "c", "perl": "e E", "ruby": "e", "node": "e p eval print", "nodejs": "e p eval print",
	"deno": "eval", "bun": "e eval",
	"php": "r B R E", "lua": "e", "luajit": "e", "tclsh": "", "wish": "", "expect": "*", "osascript": "*", "pwsh": "*",
	"powershell": "*", "cmd": "*",
	"groovy": "e", "scala": "e", "julia": "e E", "rscript": "e", "guile": "c", "ghc": "e", "sbcl": "eval", "clisp": "x",
	"erl": "eval", "elixir": "e eval",
	"irb": "*", "ghci": "*", "jshell": "*", "sqlite": "cmd", "psql": "c", "mysql": "e execute", "mariadb": "e execute",

	"vi": "c S cmd", "vim": "c S cmd", "nvim": "c S cmd", "view": "c S cmd", "ex": "c S cmd", "vimdiff": "c S cmd",
	"rvim": "c S cmd", "gvim": "c S cmd",
	"ed": "*", "red": "*", "emacs": "f l eval execute funcall load batch script", "man": "P H pager html",
	"nano": "s speller",

	"tar":    "I F checkpoint-action to-command use-compress-program rsh-command info-script new-volume-script",
	"bsdtar": "use-compress-program",
	"zip":    "T TT unzip-command test", "rsync": "e rsh rsync-path", "scp": "S o", "sftp": "S o D",
	"cpio": "rsh-command",
	"dar":  "E F",
	"sort": "compress-program", "split": "filter", "tcpdump": "z", "nmap": "script interactive", "wget": "use-askpass",
	"gcc": "wrapper", "ninja": "C",
	"make": "E eval", "gmake": "E eval", "dpkg": "pre-invoke post-invoke", "apt": "o option", "apt-get": "o option",
	"rpm": "E eval pipe", "yum": "c",
	"nc": "e c exec sh-exec lua-exec", "ncat": "e c exec sh-exec lua-exec", "netcat": "e c exec sh-exec lua-exec",
	"socat": "*", "openssl": "engine provider-path",

	"ssh": "*", "mosh": "*", "rsh": "*", "rlogin": "*", "su": "*", "runuser": "*", "pkexec": "*", "sg": "*",
	"newgrp": "*", "machinectl": "*", "systemd-run": "*",
	"at": "*", "batch": "*", "crontab": "*", "script": "*", "flock": "*", "lockfile-create": "*",
	"start-stop-daemon": "*", "run-parts": "*", "daemonize": "*",
	"unshare": "*", "nsenter": "*", "chrt": "*", "setpriv": "*", "prlimit": "*", "setarch": "*", "capsh": "*",
	"cgexec": "*", "choom": "*", "numactl": "*",
	"strace": "*", "ltrace": "*", "gdb": "*", "lldb": "*", "valgrind": "*", "perf": "*", "rlwrap": "*", "cpulimit": "*",
	"entr": "*", "logsave": "*",
	"firejail": "*", "bwrap": "*", "proot": "*", "fakeroot": "*", "fakechroot": "*", "xvfb-run": "*",
	"dbus-run-session": "*", "dbus-launch": "*", "tini": "*",
	"screen": "*", "tmux": "*", "xterm": "*", "gnome-terminal": "*", "konsole": "*", "ssh-agent": "*", "sshpass": "*",
	"ansible": "*", "pdsh": "*",
	"rename": "*", "prename": "*", "find2perl": "*", "install": "strip-program",
}

// interpreters are programs that execute their standard input if no file is given.
var interpreters = strings.Fields(
	"python pypy perl ruby node nodejs bun php lua luajit tclsh wish julia guile sbcl erl",
)

// carries returns the reason for which the commands that a program runs are unknown here; "" if it seems to run
// none.
func carries(c *simple) string {
	name := plainName(c.name)
	if strings.HasPrefix(name, "ld-linux") || strings.HasPrefix(name, "ld-musl") || strings.HasPrefix(name, "ld.so") ||
		strings.HasPrefix(name, "ld64.so") {
		return c.name + " runs any program"
	}
	if i := strings.IndexByte(name, '.'); i > 0 && carriers[name[:i]] != "" {
		name = name[:i] // nc.openbsd, vim.tiny
	}
	switch name {
	case "git":
		return gitCarries(c)
	case "awk", "gawk", "mawk", "nawk":
		return awkCarries(c)
	case "sed", "gsed":
		return sedCarries(c)
	}
	flags, ok := carriers[name]
	switch {
	case !ok:
		return ""
	case flags == "*":
		if informs(c.args()) {
			return ""
		}
		return "what " + c.name + " runs is not known here"
	}
	for i, w := range c.args() {
		if w.text == "--" {
			break
		}
		if isCarrier(w.text, flags) || strings.HasPrefix(w.text, "+") && strings.HasPrefix(flags, "c S") ||
			name == "tar" && i == 0 && strings.ContainsAny(w.text, "IF") && !strings.HasPrefix(w.text, "--") {
			return "what " + c.name + " " + w.formatWord() + " runs is not known here"
		}
		if strings.HasSuffix(name, "make") && strings.HasPrefix(w.text, "SHELL=") {
			return "the shell of make is changed"
		}
	}
	if slices.Contains(interpreters, name) && readsInput(c) {
		return c.name + " runs what it reads from its input"
	}
	return ""
}

// informs reports whether a program is only asked for its version or help.
func informs(args []word) bool {
	return len(args) == 1 && (args[0].text == "--version" || args[0].text == "--help" || args[0].text == "-V")
}

// isCarrier reports whether a word is one of a program's options that run something, also if it is abbreviated or
// among other letters.
func isCarrier(text, flags string) bool {
	if len(text) < 2 || text[0] != '-' {
		return false
	}
	name, _, _ := strings.Cut(strings.TrimLeft(text, "-"), "=")
	for f := range strings.FieldsSeq(flags) {
		switch {
		case len(f) == 1 && text[1] != '-' && strings.Contains(text, f), len(f) > 1 && name == f:
			return true
		case len(f) > 1 && strings.HasPrefix(text, "--") && len(name) > 2 && strings.HasPrefix(f, name):
			return true
		}
	}
	return false
}

// readsInput reports whether an interpreter is started without a file.
func readsInput(c *simple) bool {
	args := c.args()
	if informs(args) || len(args) == 1 && (args[0].text == "-v" || args[0].text == "-h") {
		return false
	}
	for _, w := range args {
		if w.text == "-m" {
			return false // a module of python's
		}
		if w.text != "" && w.text[0] != '-' {
			return w.text == "/dev/stdin" || strings.HasPrefix(w.text, "/dev/fd/") ||
				strings.HasPrefix(w.text, "/proc/self/fd/")
		}
	}
	return true
}

// gitSafe are the settings that a command line may pass to git.
var gitSafe = []string{
	"user.",
	"author.",
	"committer.",
	"color.",
	"advice.",
	"init.",
	"core.quotepath",
	"core.autocrlf",
	"core.longpaths",
	"log.",
	"status.",
	"push.default",
	"pull.rebase",
	"safe.directory",
	"commit.gpgsign",
}

// gitCarries returns what git is made to run.
func gitCarries(c *simple) string {
	why := "what git runs by %s is not known here"
	say := func(what string) string { return strings.Replace(why, "%s", literal(what).formatWord(), 1) }
	args := c.args()
	verb := ""
	for i := 0; i < len(args); i++ {
		switch text := args[i].text; {
		case verb == "" && (text == "-C" || text == "--git-dir" || text == "--work-tree" || text == "--namespace"):
			i++
		case verb == "" && text == "-c":
			if i++; i < len(args) && !gitKeyIsSafe(args[i].text) {
				return say("-c " + args[i].text)
			}
		case verb == "" && strings.HasPrefix(text, "-c") && !gitKeyIsSafe(text[2:]),
			verb == "" && (strings.HasPrefix(text, "--exec-path=") || strings.HasPrefix(text, "--config-env")):
			return say(text)
		case verb == "" && !strings.HasPrefix(text, "-"):
			if verb = text; slices.Contains(
				[]string{
					"filter-branch",
					"difftool",
					"mergetool",
					"instaweb",
					"daemon",
					"shell",
					"send-email",
					"p4",
					"svn",
				},
				verb,
			) {
				return say(verb)
			}
		case strings.HasPrefix(text, "--upload-pack"),
			strings.HasPrefix(text, "--receive-pack"),
			strings.HasPrefix(text, "--exec"),
			strings.HasPrefix(text, "--ext"),
			strings.HasPrefix(
				text,
				"--open-files-in-pager",
			),
			strings.HasPrefix(text, "ext::"),
			strings.HasPrefix(text, "--template"):
			return say(text)
		case verb == "grep" && strings.HasPrefix(text, "-O"),
			verb == "rebase" && strings.HasPrefix(text, "-x"),
			verb == "bisect" && text == "run",
			verb == "submodule" && text == "foreach",
			verb == "clone" &&
				(strings.HasPrefix(text, "-c") || strings.HasPrefix(text, "-u") || strings.HasPrefix(text, "--config")):
			return say(verb + " " + text)
		case verb == "config" && strings.Contains(text, ".") && !gitKeyIsSafe(text) && i+1 < len(args):
			return say("config " + text)
		}
	}
	return ""
}

func gitKeyIsSafe(setting string) bool {
	setting = strings.ToLower(setting)
	return slices.ContainsFunc(gitSafe, func(p string) bool { return strings.HasPrefix(setting, p) })
}

var awkRuns = lazily(`system\s*\(|(print|printf)[^;}\n]*\||\|\s*&?\s*getline|\|&|@load`)

// awkCarries returns what an awk program runs.
func awkCarries(c *simple) string {
	for _, w := range c.args() {
		if awkRuns().MatchString(w.text) || isCarrier(w.text, "f l i file load include exec") {
			return "what the program of " + c.name + " runs is not known here"
		}
	}
	return ""
}

var sedRuns = lazily(`(^|[;{\n0-9$/!~])\s*e(\s|$|;|})`)

// sedCarries returns what a sed script runs.
func sedCarries(c *simple) string {
	if slices.ContainsFunc(c.args(), func(w word) bool { return w.text == "--sandbox" }) {
		return ""
	}
	for _, w := range c.args() {
		script := strings.TrimPrefix(strings.TrimPrefix(w.text, "--expression="), "-e")
		if script != "" && (sedRuns().MatchString(script) || substitutes(script)) || isCarrier(w.text, "f file") {
			return "what the script of " + c.name + " runs is not known here"
		}
	}
	return ""
}

// substitutes reports whether a script has an s command whose flags run the
// result.
func substitutes(script string) bool {
	for i := 0; i+1 < len(script); i++ {
		if script[i] != 's' {
			continue
		}
		rest, delimiter := script[i+2:], script[i+1]
		for range 2 {
			n := 0
			for n < len(rest) && rest[n] != delimiter {
				if rest[n] == '\\' {
					n++
				}
				n++
			}
			if n >= len(rest) {
				rest = ""
				break
			}
			rest = rest[n+1:]
		}
		flags := rest[:len(rest)-len(strings.TrimLeft(rest, "gpiImMewW0123456789"))]
		if strings.Contains(flags, "e") {
			return true
		}
	}
	return false
}
