package symbols

import (
	"os"
	"strings"
	"testing"
	"unicode/utf8"
)

func TestDefines(t *testing.T) {
	for line, want := range map[string]bool{ // the match is between brackets
		"func [Open]() {": true, "func (s *Server) [Close]() error": true, "[func Open]()": true,
		"\tx := [Open]()": false, "func main() { [Open]() }": false,
		"func (s *S) x() { [Open]() }": false, "export default class [Door] {": true,
		"class Door extends [House]": false, "pub(crate) fn [open]()": true,
		"impl<T> [Door]<T> {": true, "  def [open](self):": true, "public static void [main]": false,
		"#define [MAX] 3": true, "#define MAX [LESS]": false,
		"// the class [of] things": false, "struct [point] {": true, "[type Door] struct": true, "[struct]": true,
		"": false,
	} {
		at := max(strings.IndexByte(line, '['), 0)
		plain := strings.NewReplacer("[", "", "]", "").Replace(line)
		if got := Defines([]byte(plain), at); got != want {
			t.Errorf("%s: got %v", line, got)
		}
	}
}

func TestOf(t *testing.T) {
	for _, c := range []struct{ language, text, want string }{
		{"go", "package a\n\nimport \"fmt\"\n\n// D is.\ntype D struct {\n\tA, B int\n}\n\n" +
			"type I interface{ M(x int) error }\n\nconst X, Y = 1, 2\n\nfunc (d *D) Close(\n\tx int,\n" +
			") error {\n\treturn nil\n}\n",
			"6-8: D struct\n  7: A, B int\n10: I interface\n  10: M(x int) error\n12: X, Y\n" +
				"14-18: func (d *D) Close( x int, ) error\n"},
		{"go", "package a\n\nfunc Good() {}\n\nfunc bad( {\n", "3: func Good()\n"},
		{"go", "// only\npackage a\n", "2: package a\n"},
		{"python", "import x\n\nclass A(B):\n    # def no\n    def f(self):\n        if x:\n" +
			"            return g()\n\nasync def main():\n    pass\n",
			"3: class A(B)\n  5: def f(self)\n9: async def main()\n"},
		{"typescript", "export interface A {\n  x: number;\n}\nexport class B {\n  private run(x: string): void {\n" +
			"    if (x) {\n    }\n  }\n}\nexport const f = (a: number) => {\n};\ntype C = string;\n",
			"1: export interface A\n4: export class B\n  5: private run(x: string): void\n" +
				"10: export const f = (a: number) =>\n12: type C = string;\n"},
		{"c", "#include <x.h>\n#define MAX 3\nint main(int argc, char **argv)\n{\n\tif (x) {\n\t}\n\treturn f(x);\n" +
			"}\nstruct p {\n};\nstatic void *g(void) {\n",
			"2: #define MAX 3\n3: int main(int argc, char **argv)\n9: struct p\n11: static void *g(void)\n"},
		{"java", "public class A {\n    public int f(int x) {\n        while (x > 0) {\n        }\n" +
			"        return g(x);\n    }\n}\n", "1: public class A\n  2: public int f(int x)\n"},
		{"rust", "pub struct P;\nimpl P {\n    pub fn new() -> Self {\n    }\n}\nmacro_rules! m {\n}\n",
			"1: pub struct P;\n2: impl P\n  3: pub fn new() -> Self\n6: macro_rules! m\n"},
		{"cpp", "template <typename T>\nclass Box : public Base {\npublic:\n  Box(int n);\n  T get() const { return v; }\n};\n" +
			"std::vector<int> all(std::vector<int> v) {\n  for (int x : v) { }\n  return f(v);\n}\nvoid Box<int>::set(int x) {\n}\n",
			"2: class Box : public Base\n  5: T get() const { return v; }\n7: std::vector<int> all(std::vector<int> v)\n" +
				"11: void Box<int>::set(int x)\n"},
		{"javascript", "class A {\n  #hidden(x) {\n    if (x) { return 1; }\n  }\n}\n", "1: class A\n  2: #hidden(x)\n"},
		{"dart", "class A {\n  void run(int x) {\n    while (x > 0) { x--; }\n  }\n  Future<int> load() async {\n  }\n}\n" +
			"int top(int a) => a;\n", "1: class A\n  2: void run(int x)\n  5: Future<int> load() async\n8: int top(int a) => a;\n"},
		{"scala", "case class Circle(r: Double) {\n  x match {\n    case Some(y) => y\n  }\n  def area = 1\n}\n",
			"1: case class Circle(r: Double)\n  5: def area = 1\n"},
		{"swift", "struct P {\n  init(x: Int) { self.x = x }\n  func go() {}\n}\nextension P: Hashable {}\n",
			"1: struct P\n  2: init(x: Int) { self.x = x }\n  3: func go() {}\n5: extension P: Hashable {}\n"},
		{"r", "area <- function(r) {\n  x <- f(r)\n}\n", "1: area <- function(r)\n"},
		{"zig", "const std = @import(\"std\");\npub fn main() !void {\n}\nconst P = struct { x: i32 };\n",
			"2: pub fn main() !void\n4: const P = struct { x: i32 };\n"},
		{"haskell", "module A where\ndata S = C Double\narea :: S -> Double\narea (C r) = r\n",
			"1: module A where\n2: data S = C Double\n3: area :: S -> Double\n"},
		{"markdown", "# A\ntext\n## B\n```\n# no\n```\n### C\n## D\n", "1: # A\n  3: ## B\n    7: ### C\n  8: ## D\n"},
		{"makefile", "CC = x\nall: a b\n\tdo it: now\n.PHONY: all\n", "2: all: a b\n4: .PHONY: all\n"},
		{"yaml", "a:\n  b: 1\nc: 2\n# d: no\n", "1: a\n3: c: 2\n"},
		{"toml", "[a]\nx = 1\n[[b]]\n", "1: [a]\n3: [[b]]\n"},
		{"sql", "CREATE TABLE x (\n  a int\n);\nselect 1;\n", "1: CREATE TABLE x (\n"},
		{"shell", "set -e\nrun() {\n  if x; then\n}\nfunction go_on {\n", "2: run()\n5: function go_on\n"},
		{"plaintext", "a class of things\n", ""},
	} {
		if got := Write(Of(c.language, []byte(c.text))); got != c.want {
			t.Errorf("%s: got\n%swant\n%s", c.language, got, c.want)
		}
	}
}

// TestBodiesAreBlank checks what is left of Go source to parse.
func TestBodiesAreBlank(t *testing.T) {
	for _, c := range []struct{ text, want string }{
		{"func f() { a }", "func f() {   }"},
		{"func f(x struct{ a int }) interface{ M() } { b }", "func f(x struct{ a int }) interface{ M() } {   }"},
		{"func f() {\n\tif x { y() }\n}\nvar a int", "func f() {\n             \n}\nvar a int"},
		{"var x = []struct /* { */ { A int }{ { 1 } }", "var x = []struct /* { */ { A int }{       }"},
		{"type T struct {\n\tA struct{ B int } `{`\n}", "type T struct {\n\tA struct{ B int } `{`\n}"},
		{"func f() { a = '{' + \"{\" + `}` // }\n}", "func f() {                         \n}"},
		{"func f() { a = '\\'' }; var b int", "func f() {          }; var b int"},
		{"type A[T interface{ ~int }] map[T]struct{}", "type A[T interface{ ~int }] map[T]struct{}"},
		{"func f() { a }; func g() { if x {", "func f() {   }; func g() { if x {"}, // does not end
	} {
		if got := string(withoutBodies([]byte(c.text))); got != c.want {
			t.Errorf("%q\ngave %q\nwant %q", c.text, got, c.want)
		}
	}
}

func TestOwnSource(t *testing.T) {
	b, err := os.ReadFile("parse.go")
	if err != nil {
		t.Fatal(err)
	}
	got := Write(Of("go", b))
	for _, want := range []string{"func Of(language string, text []byte) []Symbol", ": Line int", "longestText"} {
		if !strings.Contains(got, want) {
			t.Errorf("%q is missing in\n%s", want, got)
		}
	}
}

func FuzzOutline(f *testing.F) {
	f.Add("go", []byte("package a\nfunc x("))
	f.Add("python", []byte("class \xff:\n  def x"))
	f.Fuzz(func(t *testing.T, language string, text []byte) {
		if s := Write(Of(language, text)); !utf8.ValidString(s) {
			t.Errorf("%q", s)
		}
		Defines(text, len(text)/2)
	})
}
