package builds

import (
	"strings"
	"testing"
	"testing/fstest"
)

func TestDetect(t *testing.T) {
	for _, c := range []struct {
		files string // name=content, by blanks
		want  string // tool: build / test
	}{
		{"go.mod=", "go: go build ./... / go test -v ./..."},
		{"Cargo.toml= Makefile=", "cargo: cargo build / cargo test; make: make / make test"},
		{"pom.xml= mvnw=", "maven: ./mvnw -B compile / ./mvnw -B test"},
		{"build.gradle.kts=", "gradle: gradle --console=plain assemble / gradle --console=plain test"},
		{`package.json={"scripts":{"test":"jest"}}`, "npm:  / npm test"},
		{`package.json={} tsconfig.json={}`, "tsc: tsc -p . --noEmit --pretty false / "},
		{"tests/test_a.py=", "pytest:  / python3 -m pytest -v"},
		{"setup.py=", ""},
	} {
		dir := fstest.MapFS{}
		for f := range strings.FieldsSeq(c.files) {
			name, content, _ := strings.Cut(f, "=")
			dir[name] = &fstest.MapFile{Data: []byte(content)}
		}
		var got []string
		for _, tool := range Detect(dir) {
			got = append(got, tool.Name+": "+strings.Join(tool.Build, " ")+" / "+strings.Join(tool.Test, " "))
		}
		if s := strings.Join(got, "; "); s != c.want {
			t.Errorf("%s: got %s, want %s", c.files, s, c.want)
		}
	}
}

func TestTestsAreATree(t *testing.T) {
	for output, want := range map[string]string{
		"=== RUN   TestA\n--- PASS: TestA (0.00s)\n--- FAIL: TestB (0.00s)\n    --- PASS: TestB/x (0.00s)\n" +
			"    --- FAIL: TestB/y (0.00s)\n": "failed TestB(failed y,passed x),passed TestA",
		"t/test_a.py::TestC::test_one PASSED [ 50%]\nt/test_a.py::test_two FAILED [100%]\n": "failed t/test_a.py(failed test_two,passed TestC(passed test_one))",
		"test tests::adds ... FAILED\ntest tests::fine ... ok\ntest slow ... ignored\n":     "failed tests(failed adds,passed fine),skipped slow",
		"  math\n    ✔ works (2ms)\n    1) adds\n":                                          "failed adds,passed works",
		"not ok 1 - throws\nok 2 - fine\n":                                                  "failed throws,passed fine",
		"[ERROR] ATest.adds -- Time elapsed: 0.01 s <<< FAILURE!\n[ERROR] Tests run: 2, Failures: 1, Errors: 0, " +
			"Skipped: 0, Time elapsed: 0.1 s <<< FAILURE! -- in ATest\n": "failed ATest(failed adds)",
	} {
		if got := tree(ParseTests(output)); got != want {
			t.Errorf("%q\ngot  %s\nwant %s", output, got, want)
		}
	}
}

func tree(all []*Test) string {
	var words []string
	for _, x := range all {
		s := x.Status + " " + x.Name
		if len(x.Tests) > 0 {
			s += "(" + tree(x.Tests) + ")"
		}
		words = append(words, s)
	}
	return strings.Join(words, ",")
}
