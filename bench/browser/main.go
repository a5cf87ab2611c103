// Command browser measures the browser of Gatehouse beside Playwright MCP and chrome-devtools-mcp: the same pages, the
// same Chromium and the same client in one run.
//
//	browser                  7 rounds
//	browser -n 2             a first look
//	browser -o file.md       the table into a file too
//	browser -start           only the start, which needs a quiet machine
//	browser -chromium PROG   the browser of the two others; Gatehouse uses the one that it finds
//
// It is run in bench, below the tree that it measures.
// In each round every subject is started, does everything and is stopped; the order changes from round to round. A
// ratio is the median of the ratios within the rounds, to the better of the two others.
package main

import (
	"context"
	"embed"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/tiktoken-go/tokenizer"

	"gatehouse/internal/tests/conformance"
)

//go:embed npm
var peers embed.FS

const bar = 0.8 // of the better peer

// figure is one line of the table.
type figure struct {
	name, unit string
	most       float64 // what it may be at most; 0 means that nothing is said
	compared   bool
	got        map[string][]float64 // by subject, of each round
}

var figures = []*figure{
	{name: "list of tools", unit: "tokens"},
	{name: "start of the server to the first page", unit: "ms"},
	{name: "start of the browser and first page", unit: "ms", most: 450, compared: true},
	{name: "table of 1,000 rows, first page", unit: "tokens", most: 4000, compared: true},
	{name: "table of 1,000 rows, first page: read", unit: "ms", most: 300, compared: true},
	{name: "table of 1,000 rows, first page: open and read", unit: "ms", compared: true},
	{name: "page of documentation", unit: "tokens", most: 4000, compared: true},
	{name: "page of documentation: read", unit: "ms", compared: true},
	{name: "page of documentation: open and read", unit: "ms", compared: true},
	{name: "click", unit: "ms", most: 30, compared: true},
	{name: "form of 20 steps, one call each", unit: "tokens", compared: true},
	{name: "form of 20 steps, one call each: time", unit: "ms", compared: true},
	{name: "the same form, many fields in a call", unit: "tokens", compared: true},
	{name: "the same form, many fields in a call: time", unit: "ms", compared: true},
	{name: "page that renders anew, 100 steps: pages read again", unit: "times"},
	{name: "page that renders anew, 100 steps", unit: "tokens", compared: true},
	{name: "page that renders anew, 100 steps: time", unit: "ms", compared: true},
}

func add(subject, name string, v float64) {
	i := slices.IndexFunc(figures, func(f *figure) bool { return f.name == name })
	f := figures[i]
	if f.got == nil {
		f.got = map[string][]float64{}
	}
	f.got[subject] = append(f.got[subject], v)
}

func ms(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// onlyStart leaves out everything after the first page.
var onlyStart bool

func main() {
	n := flag.Int("n", 7, "rounds")
	flag.BoolVar(&onlyStart, "start", false, "only the start of the server and of the browser")
	chromium := flag.String("chromium", "chromium", "the browser of the two others")
	out := flag.String("o", "", "write the table to this file too")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := measure(ctx, *n, *chromium, *out); err != nil {
		fmt.Fprintln(os.Stderr, "browser:", err)
		os.Exit(1)
	}
}

func measure(ctx context.Context, n int, chromium, out string) error {
	top, err := filepath.Abs("..")
	if err != nil {
		return err
	}
	tools, err := conformance.Packages{Files: peers}.Install(ctx, filepath.Join(top, ".tools", "browser"), os.Stderr)
	if err != nil {
		return err
	}
	chromium, err = exec.LookPath(chromium)
	if err != nil {
		return err
	}
	folder, err := os.MkdirTemp("", "browserbench")
	if err != nil {
		return err
	}
	defer os.RemoveAll(folder)
	program := filepath.Join(folder, "gatehouse")
	build := exec.CommandContext(ctx, "go", "build", "-o", program, "./cmd/gatehouse")
	build.Dir, build.Stderr = top, os.Stderr
	if err := build.Run(); err != nil {
		return err
	}
	codec, err := tokenizer.Get(tokenizer.O200kBase)
	if err != nil {
		return err
	}
	url, stop, err := servePages()
	if err != nil {
		return err
	}
	defer stop()
	subjects := []subject{gatehouse(program), playwright(tools.Node, tools.Dir, chromium), devtools(tools.Node, tools.Dir, chromium)}
	load := readLoad()
	for i := range n + 1 {
		for j := range subjects {
			s := subjects[(i+j)%len(subjects)]
			if err := round(ctx, s, codec, url); err != nil {
				return err
			}
		}
		if i == 0 { // it read everything from the disk
			for _, f := range figures {
				f.got = nil
			}
		}
		fmt.Fprintf(os.Stderr, "round %d of %d\n", i, n)
	}
	version, err := exec.CommandContext(ctx, chromium, "--version").Output()
	if err != nil {
		return err
	}
	about := fmt.Sprintf("%s, %d rounds after one that is not counted, load %s before and %s after.",
		strings.TrimSpace(string(version)), n, load, readLoad())
	var b strings.Builder
	missed := print(&b, about, subjects)
	os.Stdout.WriteString(b.String())
	if out != "" && !onlyStart {
		if err := writeInto(out, b.String()); err != nil {
			return err
		}
	}
	if missed > 0 {
		return fmt.Errorf("%d bars are missed", missed)
	}
	return nil
}

func readLoad() string {
	b, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return "unknown"
	}
	return strings.Fields(string(b))[0]
}

// writeInto replaces the table of a document: everything from the line that begins it.
func writeInto(path, table string) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	before, _, ok := strings.Cut(string(text), begins)
	if !ok {
		return fmt.Errorf("%s has no line %q", path, begins)
	}
	return os.WriteFile(path, []byte(before+begins+"\n\n"+table), 0o644)
}

const begins = "## Measured"

// round starts a subject, has it do everything and stops it.
func round(ctx context.Context, s subject, codec tokenizer.Codec, url string) error {
	ctx, cancel := context.WithTimeout(ctx, 15*time.Minute) // the slowest takes minutes for a page that renders anew
	defer cancel()
	began := time.Now()
	r, err := start(ctx, s, codec)
	if err != nil {
		return err
	}
	defer r.stop()
	ready := time.Now()
	if _, err := r.openAndRead(ctx, url+"/first"); err != nil {
		return err
	}
	add(s.name, "start of the server to the first page", ms(time.Since(began)))
	add(s.name, "start of the browser and first page", ms(time.Since(ready)))
	if onlyStart {
		return nil
	}
	if err := r.countTools(ctx); err != nil {
		return err
	}
	add(s.name, "list of tools", float64(r.tools))
	for _, p := range [][3]string{{"table of 1,000 rows, first page", "/table", "Edit order 10001"}, {"page of documentation", "/docs", "Section 1: "}} {
		if err := r.look(ctx, p[0], url+p[1], p[2]); err != nil {
			return err
		}
	}
	if err := r.clicks(ctx, url+"/click"); err != nil {
		return err
	}
	if err := r.form(ctx, "form of 20 steps, one call each", url+"/form", r.oneByOne); err != nil {
		return err
	}
	if err := r.form(ctx, "the same form, many fields in a call", url+"/form", r.together); err != nil {
		return err
	}
	return r.anew(ctx, "page that renders anew, 100 steps", url+"/anew")
}

// anew enters a text and presses a button 50 times each, in a page whose elements do not last. Where an element that was
// read once is not found any more, the page is read again and the step repeated.
func (r *run) anew(ctx context.Context, name, url string) error {
	r.tokens = 0
	began, again := time.Now(), 0
	page, err := r.openAndRead(ctx, url)
	if err != nil {
		return err
	}
	for i := range 100 {
		f := field{label: "Entry", kind: "text", value: fmt.Sprint("entry ", i/2), replace: i > 0}
		if i%2 == 1 {
			f = field{label: "Keep", kind: "button"}
		}
		for try := 0; ; try++ {
			ref, err := r.ref(page, roles[f.kind], f.label)
			if err != nil {
				return err
			}
			tool, a, _ := r.do(f, ref)
			if _, err = r.call(ctx, tool, a); err == nil {
				break
			}
			if try > 0 {
				return err
			}
			again++
			if page, err = r.call(ctx, r.read, args{}); err != nil {
				return err
			}
		}
	}
	if page, err = r.call(ctx, r.read, args{}); err != nil {
		return err
	}
	add(r.name, name+": time", ms(time.Since(began)))
	add(r.name, name, float64(r.tokens))
	add(r.name, name+": pages read again", float64(again))
	if !strings.Contains(page, "kept 50 of") {
		return fmt.Errorf("%s: steps were lost: %s", r.name, page)
	}
	return nil
}

func (r *run) look(ctx context.Context, name, url, holds string) error {
	began := time.Now()
	if _, err := r.openAndRead(ctx, url); err != nil {
		return err
	}
	add(r.name, name+": open and read", ms(time.Since(began)))
	began = time.Now()
	text, err := r.call(ctx, r.read, args{})
	if err != nil {
		return err
	}
	add(r.name, name+": read", ms(time.Since(began)))
	add(r.name, name, float64(r.count(text)))
	if !strings.Contains(text, holds) {
		return fmt.Errorf("%s: the page lacks %q: %.500s", r.name, holds, text)
	}
	return nil
}

const timesClicked = 20

func (r *run) clicks(ctx context.Context, url string) error {
	text, err := r.openAndRead(ctx, url)
	if err != nil {
		return err
	}
	ref, err := r.ref(text, "button", "Count")
	if err != nil {
		return err
	}
	var took []float64
	for range timesClicked {
		tool, a, _ := r.do(field{kind: "button"}, ref)
		began := time.Now()
		if _, err := r.call(ctx, tool, a); err != nil {
			return err
		}
		took = append(took, ms(time.Since(began)))
	}
	add(r.name, "click", median(took))
	if text, err = r.call(ctx, r.read, args{}); err != nil {
		return err
	}
	if want := fmt.Sprintf("clicked %d", timesClicked); !strings.Contains(text, want) {
		return fmt.Errorf("%s: the page does not say %q: %s", r.name, want, text)
	}
	return nil
}

// form does the flow, and checks what the page received.
func (r *run) form(ctx context.Context, name, url string, do func(context.Context, string) (string, error)) error {
	r.tokens = 0
	began := time.Now()
	text, err := r.openAndRead(ctx, url)
	if err != nil {
		return err
	}
	if text, err = do(ctx, text); err != nil {
		return err
	}
	add(r.name, name+": time", ms(time.Since(began)))
	add(r.name, name, float64(r.tokens))
	if !strings.Contains(text, formDone) {
		return fmt.Errorf("%s: %s: the page says: %s", r.name, name, text)
	}
	return nil
}

func (r *run) oneByOne(ctx context.Context, page string) (string, error) {
	for _, f := range flow {
		ref, err := r.ref(page, roles[f.kind], f.label)
		if err != nil {
			return "", err
		}
		if page, err = r.step(ctx, f, ref, page); err != nil {
			return "", err
		}
	}
	return page, nil
}

// step does one step and returns the page as it is known then.
func (r *run) step(ctx context.Context, f field, ref, page string) (string, error) {
	tool, a, shows := r.do(f, ref)
	text, err := r.call(ctx, tool, a)
	if err != nil || !f.then {
		return page, err
	}
	if shows {
		return text, nil
	}
	return r.call(ctx, r.read, args{})
}

func (r *run) together(ctx context.Context, page string) (string, error) {
	var fields []field
	var refs []string
	for _, f := range flow {
		ref, err := r.ref(page, roles[f.kind], f.label)
		if err != nil {
			return "", err
		}
		if f.kind != "button" {
			fields, refs = append(fields, f), append(refs, ref)
			continue
		}
		tool, a := r.many(fields, refs)
		if _, err := r.call(ctx, tool, a); err != nil {
			return "", err
		}
		fields, refs = nil, nil
		if page, err = r.step(ctx, f, ref, page); err != nil {
			return "", err
		}
	}
	return page, nil
}

func median(all []float64) float64 {
	sorted := slices.Sorted(slices.Values(all))
	return sorted[len(sorted)/2]
}

// print writes the table and returns how many bars are missed.
func print(w io.Writer, about string, subjects []subject) (missed int) {
	fmt.Fprintf(w, "%s\n\n| figure | unit | at most |", about)
	for _, s := range subjects {
		fmt.Fprintf(w, " %s |", s.name)
	}
	fmt.Fprintf(w, " ratio to the better | |\n|---|---|---|%s---|---|\n", strings.Repeat("---|", len(subjects)))
	for _, f := range figures {
		if f.got == nil {
			continue
		}
		most := ""
		if f.most > 0 {
			most = fmt.Sprint(f.most)
		}
		fmt.Fprintf(w, "| %s | %s | %s |", f.name, f.unit, most)
		for _, s := range subjects {
			fmt.Fprintf(w, " %s |", number(f.got[s.name]))
		}
		ratio, verdict := f.verdict(subjects)
		if verdict == "**misses**" {
			missed++
		}
		fmt.Fprintf(w, " %s | %s |\n", ratio, verdict)
	}
	return missed
}

func number(all []float64) string {
	if len(all) == 0 {
		return ""
	}
	m := median(all)
	if lowest, highest := slices.Min(all), slices.Max(all); lowest != highest {
		return fmt.Sprintf("%.0f (%.0f–%.0f)", m, lowest, highest)
	}
	return fmt.Sprintf("%.0f", m)
}

// verdict compares the first subject with the better of the others, round by round. Milliseconds are a goal on a quiet
// machine, so that only the ratio counts for them.
func (f *figure) verdict(subjects []subject) (ratio, verdict string) {
	var ratios []float64
	own := f.got[subjects[0].name]
	for i, v := range own {
		best := 0.0
		for _, s := range subjects[1:] {
			if o := f.got[s.name][i]; best == 0 || o < best {
				best = o
			}
		}
		ratios = append(ratios, v/best)
	}
	r := median(ratios)
	verdict = "holds"
	switch {
	case !f.compared && f.most == 0:
		verdict = ""
	case r > bar || f.unit == "tokens" && f.most > 0 && slices.Max(own) > f.most:
		verdict = "**misses**"
	case f.most > 0 && median(own) > f.most:
		verdict = "holds; above the goal"
	}
	return fmt.Sprintf("%.2f", r), verdict
}
