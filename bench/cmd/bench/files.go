package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"

	"gatehouse/internal/tests/conformance"
)

// Who is measured beside us where files are concerned.
const (
	official  = "file server"
	oursAlike = "gatehouse, read_text_file"
	ripgrep   = "ripgrep"
)

// peerTools is the official file server as it is installed.
type peerTools struct {
	conformance.Tools
	script string
}

const peerPackage = "node_modules/@modelcontextprotocol/server-filesystem"

// findPeer looks for the pinned packages of this source tree.
func findPeer() (*peerTools, error) {
	dir, err := filepath.Abs("../.tools/npm")
	if err != nil {
		return nil, err
	}
	tools, err := conformance.Open(dir)
	if err != nil {
		return nil, err
	}
	return &peerTools{tools, tools.Script(peerPackage, "dist", "index.js")}, nil
}

// fileBench is the part about files. It has peers of its own, and so a sheet
// and a section of the report of its own.
type fileBench struct {
	b       *bench
	sheet   *sheet
	peer    *peerTools // nil where it is not
	rg      string     // path of ripgrep; "" where it is not
	missing []string   // what is not here, in words
	tree    int        // files of the tree that is searched
	edits   string     // what the test of edits says
}

// files measures reading side by side with the official file server, and
// searching side by side with ripgrep. Peers that are not on this machine are
// left out, and the report says so.
func (b *bench) files() error {
	f := &fileBench{b: b, sheet: newSheet(), tree: b.number(30_000)}
	b.asides["files"] = f.report
	var err error
	if f.peer, err = findPeer(); err != nil {
		f.missing = append(f.missing, "The official file server is not here: "+err.Error()+".")
	}
	if f.rg, err = exec.LookPath("rg"); err != nil {
		f.missing = append(f.missing, "ripgrep (`rg`) is not here; it was not compared with.")
	}
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	for _, step := range []func(context.Context) error{f.reads, f.searches, f.matrix} {
		if err := step(ctx); err != nil {
			return err
		}
	}
	return nil
}

// Figures that bars speak of.
const (
	inSequence = "2,000 reads in sequence: "
	inFlight   = "10,000 reads, 32 in flight: "
)

func (f *fileBench) reads(ctx context.Context) error {
	dir := filepath.Join(f.b.lab.dir, "reads")
	if err := makeReads(dir); err != nil {
		return err
	}
	f.sheet.begin("Reading")
	for rep := range f.b.reps {
		all, err := f.b.fileServers(ctx, f.peer, dir)
		if err != nil {
			return err
		}
		err = f.readRound(rep, all)
		stopFileServers(all)
		if err != nil {
			return err
		}
	}
	return nil
}

// readRound has every server read in short turns, so that a busy moment weighs
// on all of them.
func (f *fileBench) readRound(rep int, all []*fileServer) error {
	for _, s := range all {
		if _, err := s.read(0, f.b.number(2000), 8); err != nil { // a just-in-time compiler needs some
			return fmt.Errorf("%s: %w", s.name, err)
		}
	}
	for _, kind := range []struct {
		at            string
		count, flight int
	}{{inSequence, 2000, 1}, {inFlight, 10_000, 32}} {
		const turns = 5
		n := f.b.number(kind.count) / turns
		sums := make([]readSum, len(all))
		for turn := range turns {
			for i := range all {
				k := (i + rep + turn) % len(all)
				if err := sums[k].turn(all[k], turn*n, n, kind.flight); err != nil {
					return fmt.Errorf("%s: %w", all[k].name, err)
				}
			}
		}
		for i, s := range all {
			total := float64(n * turns)
			f.sheet.add(kind.at+"rate", "reads/s", s.name, total/sums[i].took.Seconds())
			f.sheet.add(kind.at+"server CPU", "µs/read", s.name, micros(sums[i].cpu)/total)
			f.sheet.add(kind.at+"answer", "bytes", s.name, float64(sums[i].bytes)/total)
		}
	}
	return nil
}

type readSum struct {
	took, cpu time.Duration
	bytes     int
}

func (r *readSum) turn(s *fileServer, from, n, flight int) error {
	before, err := s.cpu()
	if err != nil {
		return err
	}
	begin := time.Now()
	size, err := s.read(from, n, flight)
	r.took += time.Since(begin)
	if err != nil {
		return err
	}
	after, err := s.cpu()
	r.cpu += after - before
	r.bytes += size
	return err
}

// hunt is one search, in our words and in ripgrep's.
type hunt struct {
	name   string
	args   string // of file_search
	rgArgs []string
	named  bool // files are counted, not lines
}

var hunts = []hunt{
	{"glob", `{"mode":"names","glob":"*_test.go"}`, []string{"--files", "-g", "*_test.go"}, true},
	{"regular expression", `{"pattern":"func Order\\w+\\(river"}`, []string{"-n", `func Order\w+\(river`}, false},
	{
		"regular expression without a literal",
		`{"pattern":"[A-Z][a-z]+[A-Z]x[a-z]+\\b|\\b9\\d9\\)$"}`,
		[]string{"-n", `[A-Z][a-z]+[A-Z]x[a-z]+\b|\b9\d9\)$`},
		false,
	},
	{"literal", `{"pattern":"` + rareText + `","literal":true}`, []string{"-n", "-F", rareText}, false},
	{
		"no hit",
		`{"pattern":"nothing of that kind","literal":true}`,
		[]string{"-n", "-F", "nothing of that kind"},
		false,
	},
}

func (f *fileBench) searches(ctx context.Context) error {
	dir := filepath.Join(f.b.lab.dir, "tree")
	if err := makeTree(dir, f.tree); err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	f.sheet.begin("Searching")
	cmd := exec.CommandContext(ctx, f.b.lab.product(), "serve", "-d", dir)
	cmd.Env = append(os.Environ(), "HOME="+f.b.lab.dir, "XDG_CONFIG_HOME="+f.b.lab.dir, "XDG_STATE_HOME="+f.b.lab.dir)
	s, err := startFileServer(ours, "", dir, cmd)
	if err != nil {
		return err
	}
	defer s.stop()
	for rep := range max(f.b.reps, 5) + 1 { // the first only warms up
		for _, h := range hunts {
			if err := f.hunt(ctx, s, h, dir, rep); err != nil {
				return fmt.Errorf("%s: %w", h.name, err)
			}
		}
	}
	return nil
}

// hunt searches once with each, and compares what they found.
func (f *fileBench) hunt(ctx context.Context, s *fileServer, h hunt, dir string, rep int) error {
	var found searched
	var lines int
	var took [2]time.Duration
	for i := range 2 {
		var err error
		begin := time.Now()
		switch {
		case (i+rep)%2 == 0:
			found, err = s.search(h.args)
			took[0] = time.Since(begin)
		case f.rg != "":
			lines, err = f.ripgrep(ctx, h.rgArgs, dir)
			took[1] = time.Since(begin)
		}
		if err != nil {
			return err
		}
	}
	n := found.hits
	if h.named {
		n = found.files
	}
	if f.rg != "" && n != lines {
		return fmt.Errorf("we found %d and ripgrep %d", n, lines)
	}
	if rep == 0 {
		return nil
	}
	f.sheet.add(h.name+": time", "ms", ours, micros(took[0])/1e3)
	if f.rg != "" {
		f.sheet.add(h.name+": time", "ms", ripgrep, micros(took[1])/1e3)
	}
	f.sheet.add(h.name+": found", "times", ours, float64(n))
	f.sheet.add(h.name+": first page", "bytes", ours, float64(found.bytes))
	return nil
}

// ripgrep counts the lines that ripgrep prints.
func (f *fileBench) ripgrep(ctx context.Context, args []string, dir string) (lines int, err error) {
	cmd := exec.CommandContext(ctx, f.rg, append(append([]string{"--no-config"}, args...), ".")...)
	cmd.Dir = dir
	var out lineCount
	cmd.Stdout = &out
	err = cmd.Run()
	if e, ok := errors.AsType[*exec.ExitError](err); ok && e.ExitCode() == 1 {
		err = nil // it found nothing
	}
	return int(out), err
}

type lineCount int

func (l *lineCount) Write(b []byte) (int, error) {
	*l += lineCount(strings.Count(string(b), "\n"))
	return len(b), nil
}

// matrix has the test of the edit engine say how many edits it gets right.
func (f *fileBench) matrix(ctx context.Context) error {
	cmd := exec.CommandContext(ctx, "go", "test", "-count=1", "-v", "-run", "^TestMatrix$", "./internal/files/edit")
	cmd.Dir = ".."
	out, err := cmd.CombinedOutput()
	if err != nil {
		return fmt.Errorf("the test of edits: %w\n%s", err, out)
	}
	m := matrixLine.FindStringSubmatch(string(out))
	if m == nil {
		return fmt.Errorf("the test of edits says nothing of all of them:\n%s", out)
	}
	f.edits = m[0]
	f.sheet.begin("Editing")
	right, _ := strconv.Atoi(m[1])
	all, _ := strconv.Atoi(m[2])
	wrong, _ := strconv.Atoi(m[3])
	middle, err := time.ParseDuration(m[4])
	if err != nil {
		return err
	}
	f.sheet.add("edits: right", "%", ours, 100*float64(right)/float64(all))
	f.sheet.add("edits: wrong", "times", ours, float64(wrong))
	f.sheet.add("edits: time, median", "ms", ours, micros(middle)/1e3)
	return nil
}

var matrixLine = regexp.MustCompile(`all: right (\d+) of (\d+), refused \d+, wrong (\d+); median ([0-9.]+[a-zµ]+)`)

func (f *fileBench) bars() []bar {
	bars := []bar{
		{figure: inSequence + "rate", of: official, least: true, limit: 2.4},
		{figure: inFlight + "rate", of: official, least: true, limit: 1.2},
	}
	for _, h := range hunts {
		bars = append(
			bars,
			bar{figure: h.name + ": time", of: ripgrep, limit: 2},
			bar{figure: h.name + ": first page", limit: 8000},
		)
	}
	return append(
		bars,
		bar{figure: "edits: right", least: true, limit: 97},
		bar{figure: "edits: wrong", limit: 0},
		bar{figure: "edits: time, median", limit: 3},
	)
}

// report writes the section.
func (f *fileBench) report(w io.Writer) {
	fmt.Fprintf(w, "## Files\n\n")
	fmt.Fprintf(
		w,
		`The command as it is installed, `+"`gatehouse serve -d FOLDER`"+
			`, on standard input and output: reading beside the official
file server (npm package %s, %s) and searching beside ripgrep (%s). They take turns in
one run, the driver checks every answer, and both searches have to find the same number of lines. Files of about %s bytes
are read; the tree that is searched has %s, made anew and the same each time, and is in the system's cache.
A cell is the median of the repetitions with the range in parentheses. ripgrep's time is that of a process that prints all
it finds, ours that of a call that gives the first page and how many there are. Server CPU is the system's account.
`,
		peerVersion(f.peer),
		said(f.peerNode(), "--version"),
		said(f.rg, "--version"),
		thousands(strconv.Itoa(readSize)),
		thousands(strconv.Itoa(f.tree))+" files",
	)
	for _, m := range f.missing {
		fmt.Fprintf(w, "\n%s\n", m)
	}
	f.b.circumstances(w)
	fmt.Fprintf(w, "\n### What is to hold\n\n")
	f.sheet.judge(w, f.bars())
	f.tables(w)
	if f.edits != "" {
		fmt.Fprintf(
			w,
			"\nThe matrix of edits, nine kinds of disturbance on 40 files, judged by bytes (`go test -v -run "+
				"'^TestMatrix$' ./internal/files/edit`):\n%s.\n",
			f.edits,
		)
	}
}

func (f *fileBench) tables(w io.Writer) {
	for _, sec := range f.sheet.sections {
		others := map[string][]string{"Reading": {oursAlike, official}, "Searching": {ripgrep}}[sec.title]
		fmt.Fprintf(w, "\n### %s\n\n| figure | unit | %s |", sec.title, ours)
		for _, who := range others {
			fmt.Fprintf(w, " %s | of it |", who)
		}
		fmt.Fprintf(w, "\n|---|---|---|%s\n", strings.Repeat("---|", 2*len(others)))
		for _, fig := range sec.figures {
			fmt.Fprintf(w, "| %s | %s | %s |", fig.name, fig.unit, spread(fig.values[ours]))
			for _, who := range others {
				fmt.Fprintf(w, " %s | %s |", f.cell(fig, who), spread(fig.ratios(ours, who)))
			}
			fmt.Fprintln(w)
		}
	}
}

// cell says if a subject could not be measured.
func (f *fileBench) cell(fig *figure, who string) string {
	if who == ripgrep && f.rg == "" || who == official && f.peer == nil {
		return "not here"
	}
	return spread(fig.values[who])
}

func (f *fileBench) peerNode() string {
	if f.peer == nil {
		return ""
	}
	return f.peer.Node
}

// said is the first line of what a command prints.
func said(command string, args ...string) string {
	if command == "" {
		return "not here"
	}
	out, err := exec.Command(command, args...).Output()
	if err != nil {
		return "?"
	}
	line, _, _ := strings.Cut(string(out), "\n")
	if base := filepath.Base(command); base == "node" {
		line = "Node " + line
	}
	return line
}

// peerVersion is what the package of the official server calls itself.
func peerVersion(p *peerTools) string {
	if p == nil {
		return "not here"
	}
	b, err := os.ReadFile(p.Script(peerPackage, "package.json"))
	if err != nil {
		return "?"
	}
	m := regexp.MustCompile(`"version":\s*"([^"]+)"`).FindSubmatch(b)
	if m == nil {
		return "?"
	}
	return string(m[1])
}
