package builds

import (
	"crypto/sha256"
	"math/big"
	"os"
	"path/filepath"
	"slices"
	"sort"
	"strconv"
	"strings"
	"testing"
)

// score counts the places of errors that were found in logs.
type score struct{ right, wrong, missing int }

func (s score) precision() float64 { return float64(s.right) / float64(max(s.right+s.wrong, 1)) }
func (s score) recall() float64    { return float64(s.right) / float64(max(s.right+s.missing, 1)) }

// The logs in testdata/corpus are the output of real tools on small broken projects. The labels beside each are the
// places that a person would open first, written by hand: file:line, of errors and failed tests. Each third log in the
// order of their names was not looked at while the parser was written.
func TestCorpus(t *testing.T) {
	logs, err := filepath.Glob("testdata/corpus/*.log")
	if err != nil {
		t.Fatal(err)
	}
	sort.Strings(logs)
	var known, held score
	tools := map[string]bool{}
	for i, log := range logs {
		tool, _, _ := strings.Cut(filepath.Base(log), "-")
		tools[tool] = true
		to := &known
		if i%3 == 2 {
			to = &held
		}
		wrong, missing, right := compare(t, log)
		to.right, to.wrong, to.missing = to.right+right, to.wrong+len(wrong), to.missing+len(missing)
		if len(wrong)+len(missing) > 0 && (to == &known || os.Getenv("GATEHOUSE_HELD_OUT") != "") {
			t.Logf("%s: wrong %v, missing %v", log, wrong, missing)
		}
	}
	if len(logs) < 60 || len(tools) < 6 {
		t.Errorf("%d logs of %d tools, want 60 of 6", len(logs), len(tools))
	}
	for name, s := range map[string]score{"known": known, "held out": held} {
		t.Logf("%s: %+v, precision %.3f, recall %.3f", name, s, s.precision(), s.recall())
		if s.precision() < 0.95 || s.recall() < 0.95 {
			t.Errorf("%s: precision %.3f, recall %.3f, want 0.95 of each", name, s.precision(), s.recall())
		}
	}
}

// The logs in testdata/real are of real projects, see README.md there. The labels were written
// before the parser had seen the logs, and what it finds in the blind ones is only counted.
func TestRealProjects(t *testing.T) {
	logs, err := filepath.Glob("testdata/real/*.log")
	if err != nil {
		t.Fatal(err)
	}
	var known, blind score
	tools := map[string]bool{}
	for _, log := range logs {
		name := strings.TrimSuffix(filepath.Base(log), ".log")
		tool, _, _ := strings.Cut(name, "-")
		tools[tool] = true
		to := &known
		sum := sha256.Sum256([]byte(name))
		third := new(big.Int).Mod(new(big.Int).SetBytes(sum[:]), big.NewInt(3)).Sign() == 0
		if third {
			to = &blind
		}
		wrong, missing, right := compare(t, log)
		to.right, to.wrong, to.missing = to.right+right, to.wrong+len(wrong), to.missing+len(missing)
		if len(wrong)+len(missing) > 0 && !third {
			t.Logf("%s: wrong %v, missing %v", log, wrong, missing)
		}
	}
	if len(logs) < 60 || len(tools) < 6 {
		t.Errorf("%d logs of %d tools, want 60 of 6", len(logs), len(tools))
	}
	for name, s := range map[string]score{"known": known, "blind": blind} {
		t.Logf("%s: %+v, precision %.3f, recall %.3f", name, s, s.precision(), s.recall())
		if s.precision() < 0.95 || s.recall() < 0.95 {
			t.Errorf("%s: precision %.3f, recall %.3f, want 0.95 of each", name, s.precision(), s.recall())
		}
	}
}

// compare returns the places that were found and are no labels, and the labels that were not found.
func compare(t *testing.T, log string) (wrong, missing []string, right int) {
	t.Helper()
	b, err := os.ReadFile(log)
	if err != nil {
		t.Fatal(err)
	}
	l, err := os.ReadFile(strings.TrimSuffix(log, ".log") + ".labels")
	if err != nil {
		t.Fatal(err)
	}
	missing = strings.Fields(string(l))
	_, name, _ := strings.Cut(strings.TrimSuffix(filepath.Base(log), ".log"), "-")
	for _, p := range Parse(string(b), "/home/ann/"+name) {
		at := p.File + ":" + strconv.Itoa(p.Line)
		if p.Severity != "error" || slices.Contains(wrong, at) {
			continue
		}
		if i := slices.IndexFunc(missing,
			func(m string) bool {
				return m == at || strings.HasSuffix(m, "/"+at) ||
					strings.HasSuffix(at, "/"+m)
			}); i >= 0 {
			missing = slices.Delete(missing, i, i+1)
			right++
		} else {
			wrong = append(wrong, at)
		}
	}
	return wrong, missing, right
}
