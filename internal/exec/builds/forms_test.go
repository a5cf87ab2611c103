package builds

import (
	"strconv"
	"strings"
	"testing"
)

// Forms of other tools, each with the places that it names as errors.
func TestForms(t *testing.T) {
	for _, c := range []struct{ name, output, want string }{
		{"mypy", "src/app/models.py:42: error: Incompatible types in assignment (expression has type \"str\")  " +
			"[assignment]", "src/app/models.py:42"},
		{"mypy column", "src/a.py:10:5: error: Name \"x\" is not defined  [name-defined]", "src/a.py:10"},
		{"flake8", "./pkg/mod.py:7:80: E501 line too long (88 > 79 characters)", "pkg/mod.py:7"},
		{"pylint", "pkg/mod.py:12:0: E0602: Undefined variable 'foo' (undefined-variable)", "pkg/mod.py:12"},
		{"golangci-lint", "internal/x/y.go:33:2: ineffectual assignment to err (ineffassign)", "internal/x/y.go:33"},
		{"clang", "../src/foo.cc:120:14: error: no member named 'bar' in 'ns::Foo'", "../src/foo.cc:120"},
		{"fatal", "/usr/src/app/main.c:3:10: fatal error: openssl/ssl.h: No such file or directory",
			"/usr/src/app/main.c:3"},
		{"msvc", "C:\\src\\app\\main.cpp(12): error C2065: 'x': undeclared identifier", "C:/src/app/main.cpp:12"},
		{"csharp", "/src/Program.cs(10,17): error CS0103: The name 'x' does not exist in the current context " +
			"[/src/app.csproj]", "/src/Program.cs:10"},
		{"kotlin", "e: file:///home/runner/app/src/main/kotlin/App.kt:14:9 Unresolved reference: foo",
			"/home/runner/app/src/main/kotlin/App.kt:14"},
		{"kotlin before 1.8", "e: /home/runner/app/src/main/kotlin/App.kt: (14, 9): Unresolved reference: foo",
			"/home/runner/app/src/main/kotlin/App.kt:14"},
		{"javac", "/home/runner/app/src/main/java/com/x/App.java:22: error: cannot find symbol",
			"/home/runner/app/src/main/java/com/x/App.java:22"},
		{"gradle test", "AppTest > adds() FAILED\n    org.opentest4j.AssertionFailedError: expected: <3> but was: " +
			"<2> at AppTest.java:15", "AppTest.java:15"},
		{"gradle 4", ":app:compileJava/home/ann/app/src/A.java:7: error: incompatible types", "/home/ann/app/src/A.java:7"},
		{"gradle script", "* Where:\nBuild file '/home/ann/app/build.gradle' line: 12",
			"/home/ann/app/build.gradle:12"},
		{"gradle kotlin script", "e: file:///home/ann/app/build.gradle.kts:9:5: Unresolved reference: foo",
			"/home/ann/app/build.gradle.kts:9"},
		{"maven kotlin", "[ERROR] /build/src/main/kotlin/A.kt: (3, 5) Unresolved reference: x",
			"/build/src/main/kotlin/A.kt:3"},
		{"maven warning", "[WARNING] /build/src/A.java:[3,5] deprecated", ""},
		{"maven summary", "[ERROR] Failures: \n[ERROR]   CalcTest.adds:14 expected: <3> but was: <-1>",
			"CalcTest.java:14"},
		{"swift", "/src/Sources/App/main.swift:5:9: error: cannot find 'x' in scope", "/src/Sources/App/main.swift:5"},
		{"webpack", "ERROR in ./src/index.ts:3:7\nTS2322: Type 'string' is not assignable to type 'number'.",
			"src/index.ts:3"},
		{"webpack 4", "ERROR in src/app.ts(4,5): error TS2304: Cannot find name 'x'.", "src/app.ts:4"},
		{"ts-loader", "[tsl] ERROR in /app/src/a.ts(7,3)\n      TS2304: Cannot find name 'q'.", "/app/src/a.ts:7"},
		{"vitest", " FAIL  src/a.test.ts > adds\nAssertionError: expected 1 to be 2\n ❯ src/a.test.ts:5:13",
			"src/a.test.ts:5"},
		{"vite", "src/main.ts:3:10: ERROR: Unexpected }", "src/main.ts:3"},
		{"esbuild", "✘ [ERROR] Could not resolve nope\n\n    src/main.js:1:18:\n      1 │ import x from nope;",
			"src/main.js:1"},
		{"rollup", "src/main.js (3:8): Unexpected token", "src/main.js:3"},
		{"next.js", "./pages/index.tsx:12:5\nType error: Property 'x' does not exist on type 'Y'.",
			"pages/index.tsx:12"},
		{"babel", "SyntaxError: /app/src/a.js: Unexpected token (4:10)", "/app/src/a.js:4"},
		{"cmake", "CMake Error at CMakeLists.txt:14 (find_package):", "CMakeLists.txt:14"},
		{"linker", "/usr/bin/ld: main.o: in function 'main':\n/src/main.c:5: undefined reference to 'foo'",
			"/src/main.c:5"},
		{"linker one line", "/usr/bin/ld: /src/main.c:5: undefined reference to 'foo'", "/src/main.c:5"},
		{"testify", "    do_test.go:21: \n        \tError Trace:\t/home/runner/y/do_test.go:21\n" +
			"        \tError:      \tNot equal", "do_test.go:21"},
		{"rust before 1.73", "thread 'tests::adds' panicked at 'assertion failed: (left == right)', src/lib.rs:8:9",
			"src/lib.rs:8"},
		{"ruff", "error[F401]: os imported but unused\n --> src/a.py:1:8", "src/a.py:1"},
		{"rspec", "     # ./spec/a_spec.rb:5:in 'block (2 levels) in <top (required)>'", "spec/a_spec.rb:5"},
		{"ruby", "app/a.rb:3: syntax error, unexpected end-of-input", "app/a.rb:3"},
		{"php", "PHP Parse error:  syntax error, unexpected '}' in /app/src/a.php on line 12", "/app/src/a.php:12"},
		{"time of a runner", "2024-05-01T10:11:12.1234567Z src/a.ts(3,5): error TS2304: Cannot find name 'x'.",
			"src/a.ts:3"},
		{"time of a runner, gcc", "2024-05-01T10:11:12.1234567Z main.c:3:5: error: expected ';'", "main.c:3"},
		{"annotation", "##[error]src/a.ts(3,5): error TS2304: Cannot find name 'x'.", "src/a.ts:3"},
		{"docker", "#12 3.456 main.go:5:2: undefined: x", "main.go:5"},
		{"a time", "12:30:45: starting server", ""},
		{"an address", "listening on localhost:8080: ok", ""},
		{"a URL", "npm ERR! https://example.com:443: not found", ""},
		{"an IP address", "dial tcp 127.0.0.1:5432: connect: connection refused", ""},
		{"a version", "npm warn deprecated foo@1.2.3: use bar", ""},
		{"a note", "src/a.c:4:3: note: in expansion of macro 'X'", ""},
		{"a frame of Node", "    at Module._compile (node:internal/modules/cjs/loader:1256:14)", ""},
		{"a passed package", "ok  \tgithub.com/x/y\t0.012s", ""},
		{"a log", "INFO main.py:33: loading", ""},
		{"a coverage line", "src/a.py      12      3    75%   7-9", ""},
		{"an image", "Step 3/8 : FROM node:20: pulling", ""},
	} {
		var got []string
		for _, p := range Parse(c.output, "") {
			if p.Severity == "error" {
				got = append(got, p.File+":"+strconv.Itoa(p.Line))
			}
		}
		if s := strings.Join(got, " "); s != c.want {
			t.Errorf("%s: got %q, want %q", c.name, s, c.want)
		}
	}
}

// Problems at frames of a stack trace have the message of its exception, which stands before or after the frames.
func TestMessagesOfExceptions(t *testing.T) {
	for _, c := range []struct{ name, output, want string }{
		{"pytest", "____ test_a ____\n\n    def test_a():\n>       assert x == 2\nE       assert 1 == 2\nE        +  where 1 = x\n\n" +
			"tests/test_a.py:3: AssertionError\n____ test_b ____\n\n>       f()\n\ntests/test_a.py:9: \n_ _ _\n\n" +
			">       raise ValueError('bad')\nE       ValueError: bad\n\napp/a.py:2: ValueError\n",
			"tests/test_a.py:3: assert 1 == 2 | app/a.py:2: ValueError: bad"},
		{"python", "Traceback (most recent call last):\n  File \"/p/a.py\", line 3, in <module>\n    f()\n" +
			"  File \"/p/b.py\", line 1, in f\n    raise KeyError('x')\nKeyError: 'x'\n", "b.py:1: KeyError: 'x'"},
		{"node", "/p/x.js:2\nnull.x;\n     ^\n\nTypeError: Cannot read properties of null (reading 'x')\n" +
			"    at Object.<anonymous> (/p/x.js:2:6)\n    at Module._compile (node:internal/modules/cjs/loader:1521:14)\n",
			"x.js:2: TypeError: Cannot read properties of null (reading 'x')"},
		{"node --test", "✖ adds (2.1ms)\n  AssertionError [ERR_ASSERTION]: 2 == 3\n      at TestContext.<anonymous> (/p/a.test.js:3:4)\n",
			"a.test.js:3: AssertionError [ERR_ASSERTION]: 2 == 3"},
		{"TAP", "not ok 1 - adds\n  ---\n  error: '2 == 3'\n  name: 'AssertionError'\n  stack: |-\n" +
			"    TestContext.<anonymous> (/p/a.test.js:3:4)\n  ...\n", "a.test.js:3: 2 == 3"},
		{"go", "panic: no such thing\n\ngoroutine 1 [running]:\nmain.main()\n\t/p/main.go:4 +0x18\nexit status 2\n",
			"main.go:4: panic: no such thing"},
	} {
		var got []string
		for _, p := range Parse(c.output, "/p") {
			got = append(got, p.File+":"+strconv.Itoa(p.Line)+": "+p.Message)
		}
		if s := strings.Join(got, " | "); s != c.want {
			t.Errorf("%s: got %q, want %q", c.name, s, c.want)
		}
	}
}
