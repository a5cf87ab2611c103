package hosttest_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"gatehouse/internal/access/audit"
	"gatehouse/internal/dispatch/views"
	"gatehouse/internal/modules/code"
	"gatehouse/internal/modules/dir"
	"gatehouse/internal/modules/file"
	"gatehouse/internal/tests/hosttest"
	"gatehouse/module"
	"gatehouse/module/moduletest"
	"gatehouse/tool"
)

// innerCalls is a ledger that keeps the calls of programs.
type innerCalls struct {
	mu  sync.Mutex
	all []audit.Entry
}

func (l *innerCalls) Note(e audit.Entry) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if e.Depth > 0 && e.Kind == "call" && e.Outcome != audit.Started && e.Outcome != audit.Asked {
		l.all = append(l.all, e)
	}
}
func (l *innerCalls) Keep(_ context.Context, e audit.Entry) error { l.Note(e); return nil }
func (l *innerCalls) Ready() error                                { return nil }

// rowsModule has a table of 1,000 rows.
type rowsModule struct{ padModule }

func (rowsModule) Offer(context.Context, module.Audience) (*module.Offer, error) {
	type row struct {
		ID    int    `json:"id"`
		Name  string `json:"name"`
		Value int    `json:"value"`
	}
	type in struct {
		Offset int `json:"offset" min:"0"`
		Limit  int `json:"limit" min:"1" max:"50"`
	}
	type out struct {
		Rows []row `json:"rows"`
		More bool  `json:"more"`
	}
	return &module.Offer{Tools: []tool.Tool{tool.New(
		tool.Def{Name: "rows_page", Description: "Returns rows of a table.", Effects: tool.Reads},
		func(_ context.Context, _ *tool.Call, in in) (out, error) {
			o := out{Rows: []row{}}
			for i := in.Offset; i < min(in.Offset+in.Limit, 1000); i++ {
				o.Rows = append(o.Rows, row{i, fmt.Sprintf("row number %d", i), i * 7 % 101})
			}
			o.More = in.Offset+in.Limit < 1000
			return o, nil
		})}}, nil
}

// tasks are programs with their answers over the files of taskFiles.
var tasks = []struct{ name, source, want string }{
	{"join two lists", `
people = dict(l.split(",") for l in tools.file_read(path="people.csv")["content"].splitlines())
sums = {}
for l in tools.file_read(path="orders.csv")["content"].split():
    who, amount = l.split(",")
    sums[people[who]] = sums.get(people[who], 0) + int(amount)
return sums["person 7"]`, "700"},
	{"page through 1,000 rows", `
total, at, more = 0, 0, True
while more:
    page = tools.rows_page(offset=at, limit=50)
    total += sum(r["value"] for r in page["rows"])
    at, more = at + 50, page["more"]
return total`, fmt.Sprint(rowsTotal())},
	{"50 parallel reads", `
calls = [tools.file_read.later(path="many/%d.txt" % i) for i in range(50)]
return sum(len(c["content"].split()) for c in tools.gather(*calls))`, "1225"},
	{"an approval in the middle", `
words = tools.file_read(path="many/3.txt")["content"].split()
said = tools.pen_write(word=words[0])["said"]
return said + " of " + str(len(words))`, "wrote w of 3"},
	{"the largest file of a folder", `
entries = tools.dir_list(path="many")["entries"]
return max(entries, key=lambda e: e["size"])["name"]`, "49.txt"},
	{"change ten files", `
for i in range(10):
    text = tools.file_read(path="many/%d.txt" % i)["content"]
    tools.file_write(path="upper/%d.txt" % i, content=text.upper())
return tools.file_read(path="upper/2.txt")["content"]`, "W W"},
	{"the first of several files that exists", `
for name in ("none.txt", "nowhere.txt", "people.csv", "orders.csv"):
    try:
        return name + " " + str(tools.file_read(path=name)["total_lines"])
    except ToolError:
        pass`, "people.csv 100"},
	{"compare two folders", `
a = {e["name"] for e in tools.dir_list(path="many")["entries"]}
b = {e["name"] for e in tools.dir_list(path="other")["entries"]}
return sorted(a - b)`, `["0.txt", "1.txt"]`},
	{"statistics of 20 documents", `
values = [__import__("json").loads(c["content"])["value"]
    for c in tools.gather(*[tools.file_read.later(path="docs/%d.json" % i) for i in range(20)])]
return sum(values) / len(values)`, "9.5"},
	{"find a line in many files", `
for i in range(50):
    text = tools.file_read(path="other/%d.txt" % (i + 2))["content"]
    if "needle" in text:
        return i + 2`, "33"},
}

func rowsTotal() (n int) {
	for i := range 1000 {
		n += i * 7 % 101
	}
	return n
}

func taskFiles(t *testing.T, dir string) {
	t.Helper()
	write := func(name, text string) {
		t.Helper()
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	var people, orders strings.Builder
	for i := range 100 {
		fmt.Fprintf(&people, "%d,person %d\n", i, i)
		for range 10 {
			fmt.Fprintf(&orders, "%d,%d\n", i, i*10)
		}
	}
	write("people.csv", people.String())
	write("orders.csv", orders.String())
	for i := range 50 {
		write(fmt.Sprintf("many/%d.txt", i), strings.TrimSpace(strings.Repeat("w ", i)))
		write(fmt.Sprintf("other/%d.txt", i+2), strings.Repeat("hay ", 50)+map[bool]string{true: "needle"}[i == 31])
	}
	for i := range 20 {
		write(fmt.Sprintf("docs/%d.json", i), fmt.Sprintf(`{"value": %d, "text": %q}`, i, strings.Repeat("x", 500)))
	}
	write("upper/x", "")
}

// Ten tasks have the same answer as a program as with plain calls, for less text. The plain side makes the calls that
// the program made, one by one, as a model does; what it sends and gets is counted once, though a
// model reads it again on every turn. make verify-code prints the figures.
func TestProgramsOfTenTasks(t *testing.T) {
	ledger := &innerCalls{}
	roots := moduletest.Folder(t)
	p := programsWith(t, modernClient(), hosttest.Options{
		Spec: &views.Spec{ProgramsAsk: true}, Ledger: ledger, Roots: roots,
		Modules: map[string]module.New{
			"file": file.New(file.Config{}), "dir": dir.New,
			"rows": func(context.Context, module.Deps) (module.Module, error) { return rowsModule{}, nil },
		},
	}, code.Settings{}, os.Getenv("GATEHOUSE_TEST_ALL") == "")
	taskFiles(t, roots.List()[0].Path)
	p.run("python", "pass", nil)
	sum := [2]int{}
	for _, task := range tasks {
		if testing.Short() && !strings.HasPrefix(task.name, "an approval") && !strings.HasPrefix(task.name, "join") {
			continue
		}
		if os.Getenv("GATEHOUSE_TEST_ALL") != "" {
			time.Sleep(400 * time.Millisecond) // the pool makes another sandbox
		}
		ledger.all = nil
		source := strings.TrimSpace(task.source)
		began := time.Now()
		text, r := p.run("python", source, accept)
		took := time.Since(began)
		if !strings.HasPrefix(text, task.want+"\n") {
			t.Errorf("%s: got %s, want %s", task.name, text, task.want)
		}
		calls := ledger.all
		bytes, plain := len(source)+len(r.Result), 0
		began = time.Now()
		for _, e := range calls {
			reply := hosttest.Call(p, e.Tool, string(e.Args), accept)
			plain += len(e.Tool) + len(e.Args) + len(reply.Result)
		}
		t.Logf("%-40s program: 1 call, %6d bytes, %7v; plain: %2d calls, %6d bytes, %7v", task.name, bytes,
			took.Round(100*time.Microsecond), len(calls), plain, time.Since(began).Round(100*time.Microsecond))
		sum[0] += bytes
		sum[1] += plain
		if len(calls) == 0 {
			t.Errorf("%s: the ledger has no calls", task.name)
		}
	}
	t.Logf("in all, program %d bytes, plain %d bytes", sum[0], sum[1])
}
