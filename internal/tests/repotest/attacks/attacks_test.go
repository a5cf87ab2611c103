package attacks

import (
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// made is a Go module with tests that hold, fail, are skipped and end early.
func made(t *testing.T, text string) string {
	top := t.TempDir()
	for name, content := range map[string]string{"go.mod": "module example\n\ngo 1.26\n", "in/a_test.go": text,
		"testdata/b_test.go": "no Go"} {
		file := filepath.Join(top, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return top
}

const text = `package in

import "testing"

// TestGood holds.
//
//redteam:attack Doors are shut: knocks
//redteam:attack Windows too: throws a stone
func TestGood(t *testing.T) { t.Run("part", func(t *testing.T) {}) }

//redteam:attack Windows too: pushes
func TestBad(t *testing.T) { t.Run("part", func(t *testing.T) { t.Error("it gave way") }) }

//redteam:attack Doors are shut: picks the lock
func TestSkipped(t *testing.T) { t.Skip("there is no lock") }

func TestOther(t *testing.T) { t.Fatal("this is no attack and is not run") }
`

func TestAttacksAreFoundRunAndWritten(t *testing.T) {
	top := made(t, text)
	all, err := ListAttacks(top)
	if err != nil {
		t.Fatal(err)
	}
	var log strings.Builder
	verdicts, err := Run(t.Context(), top, all, &log)
	if err != nil {
		t.Fatal(err)
	}
	promises := Promises(
		"# X\n\n- **Not here.** x\n\n## Promises\n\n- **Windows\n  too.** They are.\n" +
			"- **Doors are shut,** always.\n\n## Limits\n\n- **Nor here.** y\n",
	)
	got := string(Table(promises, all, verdicts))
	if read := Verdicts(got); !maps.Equal(read, verdicts) {
		t.Errorf("of %v the document has %v", verdicts, read)
	}
	const want = "| Windows too | pushes | `in TestBad` | **broken** |\n" +
		"| Windows too | throws a stone | `in TestGood` | held |\n" +
		"| Doors are shut | knocks | `in TestGood` | held |\n" +
		"| Doors are shut | picks the lock | `in TestSkipped` | not run: there is no lock |\n"
	if !strings.HasSuffix(got, "|---|---|---|---|\n"+want) {
		t.Errorf("the table is\n%s\nwant it to end in\n%s\nlog:\n%s", got, want, &log)
	}
	if !strings.Contains(log.String(), "it gave way") {
		t.Errorf("the log does not say why a test failed:\n%s", &log)
	}
}

func TestATestThatDoesNotEndDidNotHold(t *testing.T) {
	top := made(
		t,
		"package in\n\nimport (\n\t\"os\"\n\t\"testing\"\n)\n\n//redteam:attack A: b\n"+
			"func TestGone(t *testing.T) { os.Exit(0) }\n",
	)
	all, err := ListAttacks(top)
	if err != nil {
		t.Fatal(err)
	}
	var log strings.Builder
	verdicts, err := Run(t.Context(), top, all, &log)
	if err != nil || !strings.HasPrefix(verdicts["in TestGone"], Broken) {
		t.Errorf("verdicts %q, %v; log:\n%s", verdicts, err, &log)
	}
}

func TestDirectivesThatAreMalformedAreNamed(t *testing.T) {
	for _, bad := range []string{
		"//redteam:attack no colon\nfunc TestX(t *testing.T) {}\n",
		"//redteam:attack A: no test\nvar x int\n",
		"//redteam:attack A: a helper\nfunc help(t *testing.T) {}\n",
		"//redteam:attack A: a | b\nfunc TestX(t *testing.T) {}\n",
		"func TestX(t *testing.T) {\n//redteam:attack A: inside\n}\n",
	} {
		all, err := ListAttacks(made(t, "package in\n\nimport \"testing\"\n\n"+bad))
		if err == nil ||
			!strings.Contains(err.Error(), "a_test.go:5") && !strings.Contains(err.Error(), "a_test.go:6") {
			t.Errorf("%q: %v, %v", bad, all, err)
		}
	}
}
