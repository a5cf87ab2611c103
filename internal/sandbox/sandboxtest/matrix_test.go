package sandboxtest

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestTheMatrixKeepsWhatOthersWrote(t *testing.T) {
	path := filepath.Join(t.TempDir(), "matrix.md")
	t.Setenv(MatrixVariable, path)
	Record(t, "process",
		Verdicts([]byte("x\n    sandboxtest.go:9: verdict: calls: held\n verdict: traps: not held back\n")))
	Record(t, "namespaces, root", []Verdict{{"calls", "FAILED"}})
	Record(t, "namespaces, root", nil) // it was not run: what was known stays
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	table := readMatrix(b)
	for _, c := range [][3]string{{"calls", "process", "held"}, {"traps", "process", "not held back"},
		{"calls", "namespaces, root", "FAILED"}, {"calls", "qemu", "not run"}} {
		if got := table[c[0]][c[1]]; got != c[2] {
			t.Errorf("%s of %s: %q, want %q", c[0], c[1], got, c[2])
		}
	}
	if !strings.Contains(string(b), MatrixVariable+"=") {
		t.Error("the command is not named")
	}
}
