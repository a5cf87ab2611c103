package attacks

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
)

// Verdicts of an attack. A test that was skipped says why after NotRun.
const (
	Held   = "held"
	Broken = "**broken**"
	NotRun = "not run"
)

// Run runs the tests of the attacks, one package after the other, in the Go
// module at top, and returns the verdicts by Attack.Name. What failed tests
// print goes to log.
func Run(ctx context.Context, top string, all []Attack, log io.Writer) (map[string]string, error) {
	tests := map[string][]string{}
	for _, a := range all {
		if !slices.Contains(tests[a.Package], a.Test) {
			tests[a.Package] = append(tests[a.Package], a.Test)
		}
	}
	folders := make([]string, 0, len(tests))
	for folder := range tests {
		folders = append(folders, folder)
	}
	slices.Sort(folders)
	verdicts := map[string]string{}
	for _, folder := range folders {
		fmt.Fprintf(log, "%s: %d attacks\n", folder, len(tests[folder]))
		of, err := runPackage(ctx, top, folder, tests[folder], log)
		if err != nil {
			return nil, err
		}
		for _, test := range tests[folder] {
			verdict, ended := of[test]
			if !ended {
				verdict = Broken + ": the test did not end"
			}
			verdicts[folder+" "+test] = verdict
		}
	}
	return verdicts, nil
}

// event is a line of go test -json; see go doc test2json.
type event struct{ Action, Test, Output string }

func runPackage(ctx context.Context, top, folder string, tests []string, log io.Writer) (map[string]string, error) {
	pattern := "^(" + strings.Join(tests, "|") + ")$"
	cmd := exec.CommandContext(ctx, "go", "test", "-json", "-count=1", "-timeout=20m", "-run", pattern, "./"+folder)
	cmd.Dir, cmd.Stderr = top, log
	cmd.Env = append(os.Environ(), "GATEHOUSE_TEST_ALL=1")
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	verdicts := readEvents(out, log)
	err = cmd.Wait()
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	if err != nil {
		fmt.Fprintf(log, "%s: %v\n", folder, err)
	}
	return verdicts, nil
}

// readEvents returns the verdicts of the tests that ended, without subtests:
// those count for the test they belong to.
func readEvents(r io.Reader, log io.Writer) map[string]string {
	verdicts, printed := map[string]string{}, map[string]*bytes.Buffer{}
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, 16<<20)
	for lines.Scan() {
		var e event
		if json.Unmarshal(lines.Bytes(), &e) != nil {
			fmt.Fprintf(log, "%s\n", lines.Bytes())
			continue
		}
		test, _, isSub := strings.Cut(e.Test, "/")
		if printed[test] == nil {
			printed[test] = new(bytes.Buffer)
		}
		if e.Action == "output" && printed[test].Len() < 1<<20 {
			printed[test].WriteString(e.Output)
		}
		switch {
		case e.Action == "fail" && !isSub:
			verdicts[test] = Broken
			log.Write(printed[test].Bytes())
		case test == "" || isSub:
		case e.Action == "pass":
			verdicts[test] = Held
		case e.Action == "skip":
			verdicts[test] = NotRun + skipReason(printed[test].String())
		}
	}
	io.Copy(io.Discard, r) // after a line that is too long, so that the tests can end
	return verdicts
}

// skipReason returns what t.Skip was given, which go test prints after the name of the
// file and the line.
func skipReason(output string) string {
	for line := range strings.Lines(output) {
		if _, reason, ok := strings.Cut(strings.TrimSpace(line), "_test.go:"); ok {
			if _, reason, ok = strings.Cut(reason, ": "); ok {
				return ": " + strings.ReplaceAll(reason, "|", "/")
			}
		}
	}
	return ""
}

const head = `# Security tests

<!-- Written by make redteam. Do not edit. -->

Each promise of [security.md](security.md), the attacks that are tried on it, and what came
of them at the last run of ` + "`make redteam`" + `. Every attack is a test, so ` + "`make test`" + `
runs it too, those that take long in a short form. *held*: the attack failed. *not run*: this
machine lacked what it needs.

| promise | attack | test | verdict |
|---|---|---|---|
`

// Verdicts returns the verdicts of a document that Table wrote.
func Verdicts(document string) map[string]string {
	verdicts := map[string]string{}
	for line := range strings.Lines(document) {
		cells := strings.Split(strings.TrimSpace(line), " | ")
		if n := len(cells); n >= 4 && strings.HasPrefix(cells[n-2], "`") {
			verdicts[strings.Trim(cells[n-2], "`")] = strings.TrimSuffix(cells[n-1], " |")
		}
	}
	return verdicts
}

// Table returns the table of docs/security-tests.md, in the order of the promises.
func Table(promises []string, all []Attack, verdicts map[string]string) []byte {
	var b bytes.Buffer
	b.WriteString(head)
	for _, p := range promises {
		for _, a := range all {
			if a.Promise == p {
				verdict := verdicts[a.Name()]
				if verdict == "" {
					verdict = NotRun
				}
				fmt.Fprintf(&b, "| %s | %s | `%s` | %s |\n", p, a.Tries, a.Name(), verdict)
			}
		}
	}
	return b.Bytes()
}
